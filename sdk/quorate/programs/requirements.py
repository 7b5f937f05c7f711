"""Resolves requirements to pinned wheels on this machine and unpacks them for the image's Python.

Jobs have no network, so the packages travel as an input. pip resolves and downloads, and only
wheels are taken: building a source package would need the image's own compiler. Local folders are
built here, if their wheels run anywhere. A wheel is a zip
file whose root is site-packages (https://packaging.python.org/specifications/binary-distribution-format/).
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Timer
from urllib.parse import unquote

from quorate.base.errors import UnavailableError, UsageError
from quorate.images.elf import read_elf
from quorate.images.image_python import ImagePython
from quorate.images.libraries import WHEEL_LIBRARIES

Told = Callable[[str], None]
PIP_SECONDS = 900.0
PROGRESS, PROGRESS_LENGTH = ("Collecting ", "Downloading ", "Using cached "), 120
ERROR_LINES = 2
# Images have glibc 2.28 (Debian 10, 2018) or newer, musl 1.2 (Alpine 3.13, 2021) or newer.
GLIBC_MINORS, MUSL_MINORS = range(28, 4, -1), range(2, 0, -1)
OLD_PLATFORMS = ("manylinux2014", "manylinux2010", "manylinux1")
FILES_MAX = 100_000
# What pip prints for a folder: "Processing ./pkg (from -r r.txt (line 1))", "Obtaining file:///pkg"
_FOLDER = re.compile(r"\s*(?:Processing|Obtaining) (?:file://)?(.+?)(?: \(from .*\))?")
UNPACKED_BYTES_MAX = 64 << 30


def _say_nothing(_: str) -> None: ...


@dataclass(frozen=True, slots=True)
class PackedRequirements:
    """Wheels unpacked into one folder. `pins` are "name==version", sorted."""

    path: Path
    pins: tuple[str, ...]
    size_bytes: int


def pack_requirements(
    given: Path | Sequence[str], python: ImagePython, target: Path, told: Told = _say_nothing
) -> PackedRequirements:
    """Unpacks the wheels of a requirements file, or of requirement lines, into the new `target`.

    UsageError if there is no such file, no pip here, or nothing that fits the image's Python.
    UnavailableError if pip takes too long. It blocks; call it in a thread. `told` gets pip's lines
    about what it fetches.
    """
    if isinstance(given, Path) and not given.is_file():
        raise UsageError(f"requirements: {given} does not exist")
    words = ["--requirement", str(given.resolve())] if isinstance(given, Path) else ["--", *given]
    with TemporaryDirectory(dir=target.parent, prefix=".wheels-") as folder:
        printed = _download([*_pip(), *_options(python), "--dest", folder, *words], python, told)
        _build_sources(_sources(printed, Path(folder)), Path(folder))
        wheels = sorted(Path(folder).glob("*.whl"))
        if not wheels:
            raise UsageError(
                f"requirements: {_first_line(given)!r} gives no package; name one, or leave "
                "requirements out"
            )
        return _unpack(wheels, target)


def _first_line(given: Path | Sequence[str]) -> str:
    lines = given.read_text(errors="replace").splitlines() if isinstance(given, Path) else given
    found = [line.strip() for line in lines if not line.strip().startswith(("#", "--"))]
    return next((line[:100] for line in found if line), "")


def _sources(printed: str, folder: Path) -> list[str]:
    """Returns what pip downloaded or found that is no wheel: local folders and source archives."""
    matches = [_FOLDER.fullmatch(line) for line in printed.splitlines()]
    named = [unquote(match[1]) for match in matches if match]
    sources = [str(path) for path in sorted(folder.iterdir()) if path.suffix != ".whl"]
    folders = [str(Path(name).resolve()) for name in named if Path(name).is_dir()]
    return [*dict.fromkeys(folders), *sources]


def _build_sources(sources: Sequence[str], folder: Path) -> None:
    """Builds a wheel of each source. UsageError names one that fails or has compiled parts."""
    for source in sources:
        words = ["wheel", "--no-input", "--disable-pip-version-check", "--no-deps"]
        with TemporaryDirectory(dir=folder.parent, prefix=".build-") as made:
            done = _run_either([*_pip(), *words, "--wheel-dir", made, source])
            wheels = sorted(Path(made).glob("*.whl"))
            name = Path(source).name if Path(source).parent == folder else source
            if done.returncode or not wheels:
                said = _cause(done.stderr.decode(errors="replace").splitlines())
                raise UsageError(f"requirements: {name}: pip builds no wheel of it: {said}")
            if not wheels[0].name.endswith("-none-any.whl"):
                raise UsageError(
                    f"requirements: {name} has compiled parts ({wheels[0].name}); name a wheel "
                    "that was built for the image"
                )
            shutil.move(wheels[0], folder / wheels[0].name)


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    program = shutil.which("pip3") or shutil.which("pip")
    if program is None:
        raise UsageError(
            f"requirements: pip is not installed here; run {sys.executable} -m ensurepip"
        )
    return [program]


def _options(python: ImagePython) -> list[str]:
    words = ["download", "--progress-bar=off", "--no-input", "--disable-pip-version-check"]
    words += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python.version]
    for platform in platforms(python):
        words += ["--platform", platform]
    return words


def platforms(python: ImagePython) -> list[str]:
    """Returns the platform tags of wheels that run in the image, best first."""
    if python.is_musl:
        return [f"musllinux_1_{minor}_{python.machine}" for minor in MUSL_MINORS]
    names = [f"manylinux_2_{minor}" for minor in GLIBC_MINORS]
    return [f"{name}_{python.machine}" for name in (*names, *OLD_PLATFORMS)]


def _run(words: list[str], told: Told = _say_nothing) -> "subprocess.CompletedProcess[bytes]":
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    printed = bytearray()
    with (
        TemporaryFile() as errors,
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as process,
    ):
        assert process.stdout is not None, "opened as a pipe"
        timer = Timer(PIP_SECONDS, process.kill)
        timer.start()
        for line in process.stdout:
            printed += line
            text = line.decode(errors="replace").strip()
            if text.startswith(PROGRESS):
                told(f"pip: {text[:PROGRESS_LENGTH]}")
        code, is_late = process.wait(), timer.finished.is_set()
        timer.cancel()
        errors.seek(0)
        done = subprocess.CompletedProcess(words, code, bytes(printed), errors.read())
    if is_late:
        raise UnavailableError(f"requirements: pip took more than {PIP_SECONDS:g} s; try again")
    return done


def _run_either(
    words: list[str], told: Told = _say_nothing
) -> "subprocess.CompletedProcess[bytes]":
    """Runs pip; if a folder's build tools cannot be fetched, with those that are installed."""
    done = _run(words, told)
    printed = done.stdout.decode(errors="replace")
    if done.returncode and any(_FOLDER.fullmatch(line) for line in printed.splitlines()):
        again = _run(
            [
                *words[: words.index("--no-input")],
                "--no-build-isolation",
                *words[words.index("--no-input") :],
            ]
        )
        return again if not again.returncode else done
    return done


def _download(words: list[str], python: ImagePython, told: Told) -> str:
    done = _run_either(words, told)
    if done.returncode:
        said = _cause(done.stderr.decode(errors="replace").splitlines())
        raise UsageError(
            f"requirements: pip finds no wheels for Python {python.version} on "
            f"{python.machine}: {said}. Packages without wheels need an image that has them"
        )
    return done.stdout.decode(errors="replace")


def _cause(lines: list[str]) -> str:
    """Returns pip's last error lines; if pip itself failed, its last line."""
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if not errors or "ERROR: Exception:" in lines:
        errors = [line.strip() for line in lines if line.strip()]
        return errors[-1][:300] if errors else "it says nothing"
    return "; ".join(errors[-ERROR_LINES:])[:600]


def _unpack(wheels: Sequence[Path], target: Path) -> PackedRequirements:
    target.mkdir(parents=True)
    files = size = 0
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                place = _place(member.filename)
                if member.is_dir() or place is None:
                    continue
                files, size = files + 1, size + member.file_size
                if files > FILES_MAX or size > UNPACKED_BYTES_MAX:
                    raise UsageError(
                        f"requirements: more than {FILES_MAX} files or "
                        f"{UNPACKED_BYTES_MAX // 10**9} GB; use an image that has the packages"
                    )
                path = target / place
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, path.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    pins = tuple(sorted("==".join(wheel.name.split("-")[:2]).lower() for wheel in wheels))
    return PackedRequirements(target, pins, size)


def check_libraries(packages: Path, image_files: Collection[str], image: str) -> None:
    """Raises UsageError if compiled parts of packages need libraries that every Linux has, and the
    image lacks them. `image_files` are the names of the image's files, without folders.
    """
    parts = [path for path in packages.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    bundled = {path.name for path in parts}
    missing: dict[str, str] = {}
    for path in parts:
        try:
            elf = read_elf(path)
        except ValueError:
            continue  # its program will say so
        for name in elf.needed if elf else ():
            if name in WHEEL_LIBRARIES and name not in bundled and name not in image_files:
                missing.setdefault(name, path.relative_to(packages).parts[0])
    if missing:
        said = ", ".join(f"{name} (for {user})" for name, user in sorted(missing.items()))
        raise UsageError(
            f"requirements: {image} lacks {said}; make it again: quorate image build --python -o "
            "python.tar, or use an image such as python:3.12"
        )


def _place(name: str) -> PurePosixPath | None:
    """Returns a member's path in site-packages, or None for scripts, headers and other data."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UsageError(f"requirements: a wheel holds the unusable name {name[:100]!r}")
    if path.parts[0].endswith(".data"):
        if len(path.parts) < 3 or path.parts[1] not in ("purelib", "platlib"):
            return None
        return PurePosixPath(*path.parts[2:])
    return path
