"""Finds out which Python an image has, so that its wheels fit and nothing is ordered in vain."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import LABEL_PYTHON
from quorate_content.images.layers import opened_layers

PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_VERSION = re.compile(r"(3\.\d{1,2})(?:\.\d.*)?")
_PROGRAM = re.compile(r"python(3(?:\.\d{1,2})?)")


@dataclass(frozen=True, slots=True)
class ImagePython:
    """A Python for which wheels are chosen: "3.12", the machine, and whether libc is musl."""

    version: str
    machine: str = "x86_64"
    is_musl: bool = False


def python_of_archive(path: Path) -> ImagePython | None:
    """Returns the `python3` on the image's PATH, or None if it has none.

    Raises Refused for what is no docker archive.
    """
    info = read_archive(path)
    version = version_of(info.env) or _short(info.label(LABEL_PYTHON) or "")
    folders = _path_folders(info.env)
    seen: dict[str, str] = {}
    is_musl = False
    with opened_layers(path, info) as layers:
        for layer in layers:
            for _, entry in layer.entries():
                name = "/" + entry.name.removeprefix("./").lstrip("/")
                is_musl = is_musl or name.startswith("/lib/ld-musl-")
                if posixpath.dirname(name) in folders and _PROGRAM.fullmatch(
                    posixpath.basename(name)
                ):
                    seen[name] = posixpath.basename(entry.linkname)
    found = version or _version_of_files(seen, folders)
    machine = MACHINES.get(info.architecture, info.architecture)
    return ImagePython(found, machine, is_musl) if found else None


def file_names(path: Path) -> set[str]:
    """Returns the names of all files of an image, without their folders."""
    with opened_layers(path, read_archive(path)) as layers:
        return {posixpath.basename(entry.name) for layer in layers for _, entry in layer.entries()}


def version_of(env: Sequence[str]) -> str:
    """Returns "3.12" from PYTHON_VERSION, which the official images set, or ""."""
    values = [item.partition("=")[2] for item in env if item.startswith("PYTHON_VERSION=")]
    return _short(values[-1]) if values else ""


def _short(text: str) -> str:
    match = _VERSION.fullmatch(text)
    return match[1] if match else ""


def _path_folders(env: Sequence[str]) -> list[str]:
    values = [item.partition("=")[2] for item in env if item.startswith("PATH=")]
    return [folder.rstrip("/") for folder in (values[-1] if values else PATH_DEFAULT).split(":")]


def _version_of_files(seen: dict[str, str], folders: Sequence[str]) -> str:
    """Returns the version of the first `python3` on the path: by its link, or by its neighbour."""
    for folder in folders:
        if f"{folder}/python3" not in seen:
            continue
        target = _PROGRAM.fullmatch(seen[f"{folder}/python3"])
        if target and "." in target[1]:
            return target[1]
        for name in sorted(seen):
            match = _PROGRAM.fullmatch(posixpath.basename(name))
            if posixpath.dirname(name) == folder and match and "." in match[1]:
                return match[1]
    return ""
