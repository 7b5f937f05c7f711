"""Decides which folders to mount over because an image declares them as `VOLUME`. Pure.

For each declared volume an engine makes a folder on the owner's disk without a size limit. The
create request cannot prevent that, because the engine merges its volumes with the image's. So each
executor mounts a memory file system of limited size at the path, before the engine makes its
folder. That hides the image's files at the path; the executor does not copy them. Every sandbox
does the same, because results must not differ.
"""

import posixpath
from collections.abc import Sequence

from quorate_protocol.refusals import Code, Refused

VOLUMES_MAX = 16
PATH_MAX = 255
_REMEDY = "build the image without it, or name an ordinary folder such as /data"
_PLACES = ("/scratch", "/tmp", "/outputs")  # every sandbox mounts these already
_TAKEN = (
    "/proc",
    "/sys",
    "/dev",
    "/inputs",
    "/outputs",
    "/scratch",
    "/sbin/docker-init",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
)


def volumes_to_mount_over(volumes: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
    """The volumes, parents first; `inputs` are targets. Raises Refused(UNSUPPORTED)."""
    if len(volumes) > VOLUMES_MAX:
        raise Refused(
            Code.UNSUPPORTED,
            f"image: Volumes: {len(volumes)} are declared, at most {VOLUMES_MAX}; {_REMEDY}",
        )
    found = {_clean(path) for path in volumes}
    return tuple(
        sorted(path for path in found if path not in _PLACES and not _is_taken(path, inputs))
    )


def _is_taken(path: str, inputs: Sequence[str]) -> bool:
    """Raises Refused for a path that jobs need."""
    if path in inputs:
        return True
    if any(_is_below(path, taken) or _is_below(taken, path) for taken in _TAKEN):
        raise Refused(
            Code.UNSUPPORTED,
            f"image: Volumes: {path[:200]!r} would hide a folder that every job needs; {_REMEDY}",
        )
    if any(_is_below(path, target) for target in inputs):
        raise Refused(
            Code.UNSUPPORTED, f"image: Volumes: {path[:200]!r} lies inside an input; {_REMEDY}"
        )
    return False


def _clean(path: str) -> str:
    """Engines keep `/data/` and `//data` as declared, and mount both at /data."""
    is_plain = (
        path.startswith("/")
        and ".." not in path.split("/")
        and len(path) <= PATH_MAX
        and path.isprintable()
    )
    if not is_plain or any(mark in path for mark in ":,\\"):
        raise Refused(
            Code.UNSUPPORTED,
            f"image: Volumes: {path[:200]!r} is not a plain absolute path; {_REMEDY}",
        )
    clean = posixpath.normpath("/" + path.lstrip("/"))
    if clean == "/":
        raise Refused(
            Code.UNSUPPORTED, f"image: Volumes: {path[:200]!r} is the whole image; {_REMEDY}"
        )
    return clean


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent + "/")
