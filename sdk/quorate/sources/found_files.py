"""What a source holds: its files with their hashes, and the inputs that they become."""

from dataclasses import dataclass, replace
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
        is_file = self.files[0].path == path
        files = tuple(replace(item, path=item.path[len(path) + 1 :]) for item in self.files)
        return replace(self, url=self.url + quote(path) + ("" if is_file else "/"), files=files)


def sourced_input(found: FoundSource, name: object, mount: str, staging: Path) -> SourcedInput:
    """Returns the inputs that a source becomes. A folder's document is written below `staging`."""
    is_cached = isinstance(name, HubName) and is_in_cache(mount)
    if isinstance(name, HubName) and not is_cached:
        found = found.below(name.path)
    cid, uploads, field = found.files[0].cid, list[Upload](), f"inputs.{mount}"
    if found.url.endswith("/"):
        uploads.append(_document(found, field, staging))
        cid = uploads[0].cid
    inputs = [Input(cid, mount, found.size, found.url)]
    if is_cached and isinstance(name, HubName):
        place = f"{HUB_CACHE}/{name.folder}"
        inputs = [Input(cid, f"{place}/snapshots/{found.commit}", found.size, found.url)]
        # A program asks for a revision by its name, and the cache says which commit that is.
        path = staging / f"{found.commit}.ref"
        path.write_text(found.commit)
        uploads.append(measured(path, field))
        for revision in sorted({"main", name.revision} - {found.commit}):
            inputs.append(Input(uploads[-1].cid, f"{place}/refs/{revision}", len(found.commit)))
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
