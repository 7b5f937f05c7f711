"""Resolves an image's tag to its digest once, at submit. Tags move, and every execution must run
the same bytes.

It uses the registry HTTP API version 2 (https://distribution.github.io/distribution/spec/api/) and
the anonymous token of public registries
(https://distribution.github.io/distribution/spec/auth/token/). The digest is computed here from the
manifest's bytes and must equal the registry's. An index of several platforms keeps the index's
digest: the engine chooses the platform, and a pool has one architecture. Registries on this
machine are read over plain HTTP, as engines do; all others over HTTPS.
"""

import asyncio
import hashlib
from urllib.parse import urlsplit

import aiohttp

from quorate.base.errors import EvidenceError, UnavailableError, UsageError
from quorate_content.images.image_names import MANIFEST_TYPES, TaggedImage, scheme_of
from quorate_content.images.registry_http import TOKEN_BYTES_MAX, challenge_of, token_in

MANIFEST_BYTES_MAX = 4 << 20
SECONDS_MAX = 30.0
KINDS = MANIFEST_TYPES.split(", ")


async def resolve(session: aiohttp.ClientSession, image: TaggedImage) -> str:
    """Returns `name@sha256:digest` of the tag's present image.

    Raises UsageError if there is no such tag, EvidenceError if the registry's digest is wrong,
    UnavailableError if it does not answer.
    """
    url = f"{scheme_of(image.host)}://{image.host}/v2/{image.path}/manifests/{image.tag}"
    try:
        async with asyncio.timeout(SECONDS_MAX):
            body, said = await read_manifest(session, url, image)
    except (aiohttp.ClientError, TimeoutError) as error:
        why = str(error) or "too slow"
        raise UnavailableError(
            f"the registry {image.host} does not answer ({why}); try again, or name the image by "
            f"digest"
        ) from error
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if said and said != digest:
        other = f"sent a manifest with digest {digest}, but names it {said[:80]}"
        raise EvidenceError(f"image: the registry {image.host} {other}; nothing was ordered")
    return f"{image.name}@{digest}"


async def has_manifest(session: aiohttp.ClientSession, image: TaggedImage) -> bool:
    """Returns whether a registry of others has exactly the manifest whose digest is the tag.

    Raises UsageError or UnavailableError like `resolve`. A registry on this machine does not count.
    """
    if scheme_of(image.host) == "http":
        return False
    return (await resolve(session, image)).endswith(f"@{image.tag}")


async def read_manifest(
    session: aiohttp.ClientSession, url: str, image: TaggedImage
) -> tuple[bytes, str]:
    """Returns the manifest's bytes and the digest that the registry names, or "".

    Raises UsageError if there is no such image, UnavailableError if the registry cannot tell.
    """
    headers = {"Accept": MANIFEST_TYPES}
    for attempt in range(2):
        async with session.get(url, headers=headers, allow_redirects=False) as response:
            if response.status == 401 and attempt == 0:
                headers["Authorization"] = "Bearer " + await bearer_token(
                    session, response.headers.get("WWW-Authenticate", ""), image
                )
                continue
            if response.status in (401, 403, 404):
                what = f"public image {image.path}:{image.tag} ({response.status})"
                raise UsageError(
                    f"image: the registry {image.host} has no {what}; check the name, or give a "
                    "docker archive (.tar)"
                )
            if response.status != 200:
                raise UnavailableError(
                    f"the registry {image.host} answers {response.status}; try again, or name the "
                    f"image by digest"
                )
            if response.headers.get("Content-Type", "").partition(";")[0] not in KINDS:
                raise UsageError(
                    f"image: the registry {image.host} has {image.path}:{image.tag} in an old "
                    "form without digest; name another image"
                )
            return await bounded_body(response, MANIFEST_BYTES_MAX, image), response.headers.get(
                "Docker-Content-Digest", ""
            )
    raise UsageError(
        f"image: the registry {image.host} requires a login for {image.path}:{image.tag}; use "
        "a public image"
    )


async def bearer_token(session: aiohttp.ClientSession, challenge: str, image: TaggedImage) -> str:
    """Returns the anonymous token of a public registry. A remote registry cannot direct this
    request to our own machine.
    """
    realm, parts = challenge_of(challenge)
    if not _is_like(realm, scheme_of(image.host)):
        raise UsageError(
            f"image: the registry {image.host} requires a login, which is not supported yet; "
            "use a public image"
        )
    async with session.get(realm, params=parts, allow_redirects=False) as response:
        if response.status != 200:
            raise UsageError(
                f"image: the registry {image.host} gives no anonymous token for {image.path} "
                f"({response.status})"
            )
        try:
            token = token_in(await bounded_body(response, TOKEN_BYTES_MAX, image))
        except ValueError as error:
            raise UnavailableError(
                f"the registry {image.host} sent an unreadable token: {error}"
            ) from error
    if not token:
        raise UnavailableError(f"the registry {image.host} sent no token")
    return token


def _is_like(realm: str, scheme: str) -> bool:
    """Returns whether the registry's token service is reached with the same scheme as the
    registry.
    """
    try:
        place = urlsplit(realm)
        return place.scheme == scheme == scheme_of(place.netloc)
    except ValueError:
        return False  # not re-raised: it is not a URL


async def bounded_body(
    response: aiohttp.ClientResponse, bytes_max: int, image: TaggedImage
) -> bytes:
    """Returns the whole answer. UnavailableError if it is larger than `bytes_max`."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 << 10):
        body += chunk
        if len(body) > bytes_max:
            raise UnavailableError(
                f"the registry {image.host} sends more than {bytes_max} bytes; nothing was ordered"
            )
    return bytes(body)
