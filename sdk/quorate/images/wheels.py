"""Lists the files of installed distributions by their RECORD, with all distributions that they
require.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from quorate_protocol.refusals import Code, Refused

_NAME = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_LEFT_OUT_FOLDERS = frozenset({"__pycache__", "tests"})
_LEFT_OUT_SUFFIXES = (".pyc", ".pyi", ".a")
# Differ between installations.
_LEFT_OUT_METADATA = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
_DISTRIBUTIONS_MAX = 500


@dataclass(frozen=True, slots=True)
class WheelFiles:
    """One distribution. `files` maps each path below site-packages to the file here."""

    name: str
    version: str
    files: dict[str, Path]


def wheel_closure(packages: Sequence[str]) -> tuple[WheelFiles, ...]:
    """Returns the named distributions and all they require, sorted by name.

    The standard library cannot evaluate markers. So a requirement of an extra is ignored, one with
    another marker is taken if installed, and one without marker must be installed. Raises
    Refused(UNKNOWN) that names what is missing.
    """
    found: dict[str, WheelFiles] = {}
    for name in packages:
        if not re.fullmatch(r"[\w.-]+", name):
            raise Refused(
                Code.MALFORMED,
                f"package {name[:60]!r}: write the name alone; the version that is installed here "
                "is packed",
            )
    queue = [(name, True) for name in packages]
    while queue and len(found) < _DISTRIBUTIONS_MAX:
        name, is_required = queue.pop()
        key = _normalised(name)
        if key in found:
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError as error:
            if not is_required:
                continue  # its marker excludes it here; otherwise pip would have installed it
            raise Refused(
                Code.UNKNOWN,
                f"package {name!r} is not installed in this environment; run pip install "
                f"{name} first",
            ) from error
        found[key] = WheelFiles(key, installed.version, _files(installed))
        queue += _requirements(installed)
    return tuple(found[key] for key in sorted(found))


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(installed: Distribution) -> list[tuple[str, bool]]:
    wanted: list[tuple[str, bool]] = []
    for line in installed.requires or ():
        requirement, _, marker = line.partition(";")
        match = _NAME.match(requirement)
        if match and "extra" not in marker:
            wanted.append((match[1], not marker))
    return wanted


def _files(installed: Distribution) -> dict[str, Path]:
    files: dict[str, Path] = {}
    if installed.files is None:
        raise Refused(
            Code.UNSUPPORTED,
            (
                f"{installed.name} has no RECORD (an editable or system installation); "
                "install it from a wheel"
            ),
        )
    for entry in installed.files:
        path = PurePosixPath(entry)
        if path.is_absolute() or ".." in path.parts or _is_left_out(path):
            continue
        source = Path(str(installed.locate_file(path)))
        if entry.hash is not None:
            _check(installed.name, source, entry.hash.mode, entry.hash.value)
        files[str(path)] = source
    return files


def _is_left_out(path: PurePosixPath) -> bool:
    if _LEFT_OUT_FOLDERS & set(path.parts[:-1]) or path.name.endswith(_LEFT_OUT_SUFFIXES):
        return True
    return path.parts[0].endswith(".dist-info") and path.name in _LEFT_OUT_METADATA


def _check(name: str, source: Path, algorithm: str, expected: str) -> None:
    """Checks a file against RECORD. An edited file would give a different image under the same
    name.
    """
    try:
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, algorithm).digest()
    except FileNotFoundError as error:
        raise Refused(Code.UNKNOWN, f"{source} of {name} is missing; reinstall {name}") from error
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != expected:
        raise Refused(
            Code.MALFORMED, f"{source} differs from the RECORD of {name}; reinstall {name}"
        )
