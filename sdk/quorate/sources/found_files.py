"""What a source holds: its files with their hashes, and the inputs that they become."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from quorate.base.errors import UsageError
from quorate.job.packing import SourcedInput, Upload, measured
from quorate.job.source_names import HUB_CACHE, HubName, is_in_cache
from quorate_content.dag.cid import from_digest
from quorate_content.store.web_fetch import WebFile, folder_of
from quorate_protocol.messages.input_sources import FOLDER_BYTES_MAX, FolderFile, SourceFolder
from quorate_protocol.messages.job_spec import Input
from quorate_protocol.refusals import Refused


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file at its path below the source's URL; "" if the source is the file itself."""

    path: str
    size: int
    sha256: bytes

    @property
    def cid(self) -> str:
        return str(from_digest(self.sha256))


@dataclass(frozen=True, slots=True)
class FoundSource:
    """`url` is a file's, or a folder's, which ends with `/`. `pinned` says for people what an order
    fixes. `commit` is that of a hub.
    """

    label: str
    url: str
    files: tuple[FoundFile, ...]
    pinned: str
    commit: str = ""

    @property
    def size(self) -> int:
        return sum(item.size for item in self.files)

    def below(self, path: str) -> "FoundSource":
        """Returns what lies below a path of the folder, or the one file at this path."""
        if not path:
            return self
        if self.files[0].path == path:
            one = self.files[0]
            return FoundSource(
                self.label,
                self.url + quote(path),
                (FoundFile("", one.size, one.sha256),),
                self.pinned,
                self.commit,
            )
        files = tuple(
            FoundFile(item.path[len(path) + 1 :], item.size, item.sha256) for item in self.files
        )
        url = f"{self.url}{quote(path)}/"
        return FoundSource(self.label, url, files, self.pinned, self.commit)


def sourced_input(found: FoundSource, name: object, mount: str, staging: Path) -> SourcedInput:
    """Returns the inputs that a source becomes. A folder's document is written below `staging`."""
    is_cached = isinstance(name, HubName) and is_in_cache(mount)
    if isinstance(name, HubName) and not is_cached:
        found = found.below(name.path)
    if found.files[0].path == "":
        file = found.files[0]
        made = Input(file.cid, mount, file.size, found.url)
        return SourcedInput((made,), (), found.label, found.pinned, found.size)
    field = f"inputs.{mount}"
    document = _document(found, field, staging)
    if not is_cached:
        made = Input(document.cid, mount, found.size, found.url)
        return SourcedInput((made,), (document,), found.label, found.pinned, found.size)
    assert isinstance(name, HubName)
    inputs, uploads = [], [document]
    place = f"{HUB_CACHE}/{name.folder}"
    inputs.append(Input(document.cid, f"{place}/snapshots/{found.commit}", found.size, found.url))
    for revision in sorted({"main", name.revision} - {found.commit}):
        # A program asks for a revision by its name, and the cache says which commit that is.
        path = staging / f"{found.commit}.ref"
        path.write_text(found.commit)
        ref = measured(path, field)
        uploads.append(ref)
        inputs.append(Input(ref.cid, f"{place}/refs/{revision}", ref.size_bytes))
    return SourcedInput(tuple(inputs), tuple(uploads), found.label, found.pinned, found.size)


def _document(found: FoundSource, field: str, staging: Path) -> Upload:
    files = sorted(found.files, key=lambda item: item.path.split("/"))
    folder = SourceFolder(tuple(FolderFile(item.cid, item.path, item.size) for item in files))
    data = folder.encode()
    try:
        folder_of(
            [
                WebFile(tuple(item.path.encode().split(b"/")), from_digest(item.sha256), item.size)
                for item in files
            ]
        )
    except Refused as refused:
        raise UsageError(f"{field}: {found.label}: {refused.detail}") from refused
    if len(data) > FOLDER_BYTES_MAX:
        raise UsageError(f"{field}: {found.label} has too many files: {len(files)}; name a part")
    path = staging / f"{folder.digest().hex()}.json"
    path.write_bytes(data)
    return measured(path, field)
