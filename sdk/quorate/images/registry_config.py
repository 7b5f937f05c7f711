"""Reads an image's configuration from its registry, to learn which Python the image has.

Only the configuration is fetched, a few kilobytes; no layer is. Manifest and configuration are
compared with their digests (https://github.com/opencontainers/image-spec).
"""

import asyncio
import hashlib
import re
from typing import Any

import aiohttp

from quorate.base.errors import EvidenceError, QuorateError, UnavailableError, UsageError
from quorate.images.image_python import MACHINES, ImagePython, version_of
from quorate.images.tag_resolution import SECONDS_MAX, bearer_token, bounded_body, read_manifest
from quorate_content.images.image_names import MANIFEST_TYPES, TaggedImage, parse_tagged, scheme_of
from quorate_protocol.codec import canonical

CONFIG_BYTES_MAX = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
ARCHITECTURE = "amd64"  # of an image for several platforms; hosts of other kinds are rare


async def image_python(session: aiohttp.ClientSession, image: str) -> ImagePython | None:
    """Returns the Python of `name@sha256:digest` by the variables of its configuration.

    None for a CID, and if the configuration names no version. Raises the errors of the registry.
    """
    config = await _config_of(session, image)
    version = version_of(_words(config, "Env"))
    machine = str(config.get("architecture", ""))
    is_musl = "alpine" in str(config.get("history", "")).lower()
    return ImagePython(version, MACHINES.get(machine, machine), is_musl) if version else None


async def image_words(session: aiohttp.ClientSession, image: str) -> tuple[list[str], list[str]]:
    """Returns ENTRYPOINT and CMD of `name@sha256:digest`; none for a CID. Raises the errors of the
    registry.
    """
    config = await _config_of(session, image)
    return _words(config, "Entrypoint"), _words(config, "Cmd")


def _words(config: dict[str, Any], field: str) -> list[str]:
    inner = config.get("config")
    found = inner.get(field) if isinstance(inner, dict) else None
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


async def _config_of(session: aiohttp.ClientSession, image: str) -> dict[str, Any]:
    """Returns the configuration of an image that is named by digest; empty for a CID."""
    name, _, digest = image.partition("@")
    place = parse_tagged(f"{name}:latest") or parse_tagged(name)
    if not digest or place is None:
        return {}
    at = TaggedImage(place.name, place.host, place.path, digest)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            found: dict[str, Any] = await _config(session, at, digest)
            return found
    except (aiohttp.ClientError, TimeoutError) as error:
        why = str(error) or "too slow"
        raise UnavailableError(
            f"the registry {at.host} does not answer ({why}); try again, or name the image's "
            "Python (python, --python)"
        ) from error


async def _config(session: aiohttp.ClientSession, image: TaggedImage, digest: str) -> Any:
    tree = await _manifest(session, image, digest)
    if isinstance(tree.get("manifests"), list):
        tree = await _manifest(session, image, _platform_digest(tree["manifests"], image))
    named = tree.get("config")
    wanted = named.get("digest") if isinstance(named, dict) else None
    if not isinstance(wanted, str) or not _DIGEST.fullmatch(wanted):
        raise _unreadable(image)
    url = f"{scheme_of(image.host)}://{image.host}/v2/{image.path}/blobs/{wanted}"
    return _tree(await _blob(session, url, image), wanted, image)


async def _manifest(session: aiohttp.ClientSession, image: TaggedImage, digest: str) -> Any:
    url = f"{scheme_of(image.host)}://{image.host}/v2/{image.path}/manifests/{digest}"
    body, _ = await read_manifest(session, url, image)
    return _tree(body, digest, image)


def _platform_digest(manifests: list[Any], image: TaggedImage) -> str:
    for item in manifests:
        platform = item.get("platform") if isinstance(item, dict) else None
        if (
            isinstance(platform, dict)
            and platform.get("os") == "linux"
            and platform.get("architecture") == ARCHITECTURE
            and _DIGEST.fullmatch(str(item.get("digest")))
        ):
            return str(item["digest"])
    raise UsageError(f"image: {image.name} has no version for linux/{ARCHITECTURE}")


async def _blob(session: aiohttp.ClientSession, url: str, image: TaggedImage) -> bytes:
    """Returns a blob. Public registries send the client on to another host for it."""
    headers: dict[str, str] = {"Accept": MANIFEST_TYPES}
    for _ in range(2):
        async with session.get(url, headers=headers, max_redirects=3) as response:
            if response.status == 401 and "Authorization" not in headers:
                challenge = response.headers.get("WWW-Authenticate", "")
                headers["Authorization"] = "Bearer " + await bearer_token(session, challenge, image)
                continue
            if response.status != 200:
                break
            return await bounded_body(response, CONFIG_BYTES_MAX, image)
    raise _unreadable(image)


def _tree(body: bytes, digest: str, image: TaggedImage) -> Any:
    if f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
        raise EvidenceError(f"image: the registry {image.host} sent other bytes than {digest[:80]}")
    try:
        tree = canonical.loads(body)
    except ValueError as error:
        raise _unreadable(image) from error
    if not isinstance(tree, dict):
        raise _unreadable(image)
    return tree


def _unreadable(image: TaggedImage) -> QuorateError:
    return UnavailableError(
        f"the registry {image.host} sends no readable configuration of {image.name}; name the "
        "image's Python (python, --python)"
    )
