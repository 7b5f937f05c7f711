"""Inputs that come from where they are already: from the source's URL, and not from an upload.

The source of a file is its URL, and its CID is the whole file as one raw block. A source that ends
with `/` is a folder. Its CID names a `SourceFolder`: which files it has, and what is in them.
"""

import re
from urllib.parse import parse_qsl, urlsplit

from quorate_protocol.codec import canonical, cids
from quorate_protocol.limits import TREE_ENTRIES_MAX
from quorate_protocol.messages.document import Document
from quorate_protocol.readable import Readable
from quorate_protocol.refusals import Code, Refused

SOURCE_TEXT_MAX = 1024
FOLDER_BYTES_MAX = 16 << 20  # of the document
FILE_BYTES_MAX = 1 << 44
_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]{1,253}/[!-~]*")
_SECRET = re.compile(
    r"x-(amz|goog)-.*|awsaccesskeyid|(.*[-_])?"
    r"(sig|signature|token|secret|password|credentials?|auth|authorization|(api[-_]?|access)?key)",
    re.IGNORECASE,
)


class FolderFile(Readable, frozen=True):
    """One file of a folder, at `path` below the folder's URL."""

    cid: str
    path: str
    size_bytes: int


class SourceFolder(Document, frozen=True):
    """The files of a folder at its source, sorted by the parts of their paths."""

    files: tuple[FolderFile, ...]
    version: int = 1

    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.files)


def is_folder(source: str) -> bool:
    return source.endswith("/")


def decode(data: bytes) -> SourceFolder:
    folder = canonical.decode(SourceFolder, data, FOLDER_BYTES_MAX)
    validate(folder)
    return folder


def validate(folder: SourceFolder) -> None:
    """Raises `Refused` for a folder that no provider fetches. Names are checked as those of any
    other content.
    """
    _check(folder.version == 1, "version", "it must be 1")
    count = len(folder.files)
    _check(1 <= count <= TREE_ENTRIES_MAX, "files", f"1 to {TREE_ENTRIES_MAX}, not {count}")
    before: list[str] = []
    for item in folder.files:
        parts = item.path.split("/")
        is_beyond = parts > before and parts[: len(before)] != before
        _check(is_beyond or not before, "files", f"{item.path[:80]!r} is not in order")
        _check(0 <= item.size_bytes <= FILE_BYTES_MAX, "files.sizeBytes", "0 to 16 TiB")
        check_file(item.cid, "files.cid")
        before = parts


def check_file(cid: str, field: str) -> None:
    """Raises `Refused` if the CID is none of a whole file."""
    codec, _ = cids.cid_parts(cid, field)
    _check(codec == cids.RAW, field, "the CID of a file at its source is that of one raw block")


def fault_of(source: str) -> str:
    """Returns why a URL cannot be a source, and what to do; "" if it can."""
    try:
        place = urlsplit(source)
        is_url = _URL.fullmatch(source) is not None and place.port != 0 and not place.fragment
    except ValueError:
        is_url, place = False, urlsplit("")
    if "@" in place.netloc:
        return "it holds a login, and providers read the spec; only public sources can be named"
    if not is_url or len(source) > SOURCE_TEXT_MAX or ".." in place.path.split("/"):
        return f"write a plain http or https URL of at most {SOURCE_TEXT_MAX} characters"
    for name, _ in parse_qsl(place.query, keep_blank_values=True):
        if _SECRET.fullmatch(name):
            return (
                f"{name[:40]} in its query is a secret, and providers read the spec; only public "
                "sources can be named"
            )
    return "a folder's URL has no query" if is_folder(source) and place.query else ""


def _check(good: bool, field: str, remedy: str) -> None:
    if not good:
        raise Refused(Code.MALFORMED, f"source folder: {field}: {remedy}")
