"""Copies local code into a folder that becomes an input. Equal files give an equal CID.

Only names and bytes count: times, modes and owners are not part of a CID. Files are linked rather
than copied where the file system allows it.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate.base.errors import UsageError
from quorate.programs.ignore_rules import IgnoreRule, default_rules, is_ignored, read_rules

ENTRIES_MAX = 100_000
DEPTH_MAX = 60


@dataclass(frozen=True, slots=True)
class StagedFolder:
    """A folder for one input. `left_out` counts files and folders that ignore rules name."""

    path: Path
    files: int
    size_bytes: int
    left_out: int = 0


def stage_files(sources: Sequence[Path], target: Path) -> StagedFolder:
    """Puts the files and folders beside each other in the new folder `target`.

    UsageError for one that does not exist, and for two of the same name.
    """
    target.mkdir(parents=True)
    total = StagedFolder(target, 0, 0)
    for source in sources:
        name = source.resolve().name
        if not source.exists():
            raise UsageError(f"file: {source} does not exist")
        if (target / name).exists():
            raise UsageError(f"file: two of the given files are named {name}; rename one")
        if source.is_dir():
            total = _sum(total, stage_folder(source, target / name, "file"))
        else:
            _place(source.resolve(), target / name, "file")
            total = _sum(total, StagedFolder(target, 1, source.stat().st_size))
    return total


def stage_folder(
    source: Path, target: Path, field: str, without: Sequence[Path] = ()
) -> StagedFolder:
    """Copies a folder without what its ignore rules name, and without the paths of `without`.

    UsageError names what cannot be sent: a link that leads out of the folder, a device, too many
    files.
    """
    if not source.is_dir():
        raise UsageError(f"{field}: {source} is not a folder")
    scan = _FolderScan(source.resolve(), field, frozenset(path.resolve() for path in without))
    target.mkdir(parents=True)
    files = size = 0
    for path, relative, is_folder in scan.walk(scan.root, "", default_rules()):
        if is_folder:
            (target / relative).mkdir()
            continue
        _place(path, target / relative, field)
        files, size = files + 1, size + path.stat().st_size
    return StagedFolder(target, files, size, scan.left_out)


@dataclass(slots=True)
class _FolderScan:
    """One walk over a source folder, with its counters."""

    root: Path
    field: str
    without: frozenset[Path]
    left_out: int = 0
    entries: int = 0

    def walk(
        self, folder: Path, base: str, rules: tuple[IgnoreRule, ...]
    ) -> Iterator[tuple[Path, str, bool]]:
        """Yields (path, relative path, is folder), each folder before what it holds."""
        rules += read_rules(folder, base)
        if base.count("/") > DEPTH_MAX:
            raise UsageError(f"{self.field}: {folder} lies more than {DEPTH_MAX} folders deep")
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path = Path(entry.path)
            relative = f"{base}/{entry.name}" if base else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if path in self.without or is_ignored(rules, relative, is_folder):
                self.left_out += 1
                continue
            self.entries += 1
            if self.entries > ENTRIES_MAX:
                raise UsageError(
                    f"{self.field}: {self.root} has more than {ENTRIES_MAX} files; name what "
                    "stays behind in .quorateignore"
                )
            yield self._checked(path), relative, is_folder
            if is_folder:
                yield from self.walk(path, relative, rules)

    def _checked(self, path: Path) -> Path:
        """Returns the file itself, also behind a link inside the folder."""
        real = path.resolve()
        if path.is_symlink() and not (real.is_file() and real.is_relative_to(self.root)):
            raise UsageError(
                f"{self.field}: {path} is a link that leads to a folder, out of {self.root}, or "
                "to nothing; name it in .quorateignore, or copy what it means"
            )
        if not (real.is_file() or real.is_dir()):
            raise UsageError(
                f"{self.field}: {path} is neither a file nor a folder; name it in .quorateignore"
            )
        return real


def _sum(first: StagedFolder, second: StagedFolder) -> StagedFolder:
    return StagedFolder(
        first.path,
        first.files + second.files,
        first.size_bytes + second.size_bytes,
        first.left_out + second.left_out,
    )


def _place(source: Path, target: Path, field: str) -> None:
    try:
        try:
            os.link(source, target)
        except OSError:  # another file system, or one without links; a copy has the same CID
            shutil.copyfile(source, target)
    except PermissionError as error:
        raise UsageError(f"{field}: {source} cannot be read ({error.strerror})") from error
