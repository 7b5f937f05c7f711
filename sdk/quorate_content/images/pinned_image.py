"""The name of a registry's image with its digest, `name@sha256:digest`."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from quorate_protocol.refusals import Code, Refused

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)
"""What an Accept header names: manifests, and indexes of several platforms."""

_HUB, _HUB_HOST = "docker.io", "registry-1.docker.io"
_PINNED = re.compile(
    r"(?:([a-z0-9][a-z0-9.-]{0,200}(?::[0-9]{1,5})?)/)?([a-z0-9][a-z0-9._/-]{0,200})@(sha256:[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class PinnedImage:
    """The parts of `name@digest`: the registry's host, the path there, the manifest's digest."""

    name: str
    host: str
    path: str
    digest: str


def parse_pinned(name: str) -> PinnedImage:
    """Returns the parts of an image's name.

    As in engines, a host has a dot or a port, or is localhost. Raises Refused(MALFORMED) for a name
    without a digest.
    """
    match = _PINNED.fullmatch(name)
    if match is None:
        raise Refused(
            Code.MALFORMED,
            "image: name a registry image as name@sha256:digest, because a tag can change",
        )
    host, path, digest = match[1] or "", match[2], match[3]
    if host and not ("." in host or ":" in host or host == "localhost"):
        host, path = "", f"{host}/{path}"
    if (host and not _is_place(host)) or ".." in path.split("/"):
        raise Refused(Code.MALFORMED, f"image: {name[:200]!r} does not name a registry")
    if host in ("", _HUB):
        return PinnedImage(name, _HUB_HOST, path if "/" in path else f"library/{path}", digest)
    return PinnedImage(name, host, path, digest)


def _is_place(host: str) -> bool:
    try:
        return bool(urlsplit(f"//{host}").hostname) and urlsplit(f"//{host}").port != 0
    except ValueError:
        return False  # a port beyond 65535
