"""Decides which folders to cover because an image declares them as `VOLUME`. Pure.

For each declared volume an engine makes a folder on the owner's disk without a size limit. The
request cannot prevent that: the engine merges both declarations. So each is covered with a sized
memory file system before the engine makes its folder. The image's files at such a path are hidden,
not copied. Every sandbox does the same, because results must not differ.
"""

import posixpath
from collections.abc import Sequence

from quorate_protocol.refusals import Code, Refused

VOLUMES_MAX = 16
PATH_MAX = 255
_REMEDY = "build the image without it, or name an ordinary folder such as /data"
_PLACES = ("/scratch", "/tmp", "/outputs")  # mounted already, so nothing is left to cover
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


def paths_to_cover(volumes: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
    """Paths to cover, parents first. `inputs` are the targets of inputs.

    Refused(UNSUPPORTED) names a volume that cannot be covered.
    """
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
    """Returns whether an input is mounted exactly there. Refuses paths that jobs need."""
    if path in inputs:
        return True
    if any(_is_below(path, taken) or _is_below(taken, path) for taken in _TAKEN):
        raise Refused(
            Code.UNSUPPORTED,
            f"image: Volumes: {path[:200]!r} would cover a folder that every job needs; {_REMEDY}",
        )
    if any(_is_below(path, target) for target in inputs):
        raise Refused(
            Code.UNSUPPORTED, f"image: Volumes: {path[:200]!r} lies inside an input; {_REMEDY}"
        )
    return False


def _clean(path: str) -> str:
    """Returns the path as engines write it.

    They keep `/data/` and `//data` as declared and mount both at /data; a path must begin with a
    slash.
    """
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
