"""The names of images in registries: `name@sha256:digest`, and `name:tag`, whose bytes change."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from quorate_protocol.refusals import Code, Refused
from quorate_runtime.http.client_networks import address_of

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


_TAG_NAME_MAX = 255
_PART = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_TAGGED = re.compile(
    rf"([a-z0-9][a-z0-9.:-]{{0,100}}/)?((?:{_PART}/)*{_PART}):([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})"
)


@dataclass(frozen=True, slots=True)
class TaggedImage:
    """The parts of `name:tag`. `name` is the engine's form, `path` the registry's."""

    name: str
    host: str
    path: str
    tag: str


@dataclass(frozen=True, slots=True)
class PinnedImage:
    """The parts of `name@digest`: the registry's host, the path there, the manifest's digest."""

    name: str
    host: str
    path: str
    digest: str


def parse_pinned(name: str) -> PinnedImage:
    """Raises Refused(MALFORMED) for a name without a digest."""
    match = _PINNED.fullmatch(name)
    if match is None:
        raise Refused(
            Code.MALFORMED,
            "image: name a registry image as name@sha256:digest, because a tag can change",
        )
    host, path = _split(match[1] or "", match[2])
    if (host and not _is_place(host)) or ".." in path.split("/"):
        raise Refused(Code.MALFORMED, f"image: {name[:200]!r} does not name a registry")
    return PinnedImage(name, *_at_registry(host, path), match[3])


def parse_tagged(text: str) -> TaggedImage | None:
    """Returns the parts of `[host[:port]/]path:tag`, or None."""
    match = _TAGGED.fullmatch(text) if len(text) <= _TAG_NAME_MAX else None
    if match is None:
        return None
    host, path = _split((match[1] or "").rstrip("/"), match[2])
    name = f"{host}/{path}" if host else path
    return TaggedImage(name, *_at_registry(host, path), match[3])


def scheme_of(host: str) -> str:
    """Returns "http" for this machine, else "https", as engines do."""
    name = urlsplit(f"//{host}").hostname or ""
    address = address_of(name if ":" not in name else f"[{name}]")
    return (
        "http" if name == "localhost" or (address is not None and address.is_loopback) else "https"
    )


def _split(host: str, path: str) -> tuple[str, str]:
    """As in engines, a host has a dot or a port, or is localhost."""
    if host and not ("." in host or ":" in host or host == "localhost"):
        return "", f"{host}/{path}"
    return host, path


def registry_host(host: str) -> str:
    """Which server is asked for the images of a name's host."""
    return _HUB_HOST if host in ("", _HUB) else host


def _at_registry(host: str, path: str) -> tuple[str, str]:
    if host in ("", _HUB):
        return _HUB_HOST, path if "/" in path else f"library/{path}"
    return host, path


def _is_place(host: str) -> bool:
    try:
        return bool(urlsplit(f"//{host}").hostname) and urlsplit(f"//{host}").port != 0
    except ValueError:
        return False  # a port beyond 65535
