"""Fetches files whole, from servers that know nothing of content addressing.

Each file is hashed while it comes, and counts only if its SHA-256 is the one that was asked for.
Memory stays flat. What came of a file stays on the disk: the next request asks for the rest of it.
Calls block.
"""

import http.client
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from quorate_content.dag.cid import Cid
from quorate_content.dag.content_limits import (
    MIB,
    AbsentEverywhere,
    BadSource,
    Bounds,
    DiskFull,
    TruncatedSource,
    malformed,
)
from quorate_content.dag.disk_tree import Nodes, TreeWriter, entry_bytes, keep_nodes
from quorate_content.dag.unixfs import V1_2025, Built, build_directory
from quorate_content.dag.walk import TreePath, check_path
from quorate_content.store.checked_http import (
    REDIRECTS,
    REDIRECTS_MAX,
    CheckedHttp,
    redirect_target,
)
from quorate_content.store.fetch import REASONS_SHOWN, STALL_SECONDS, Tally
from quorate_content.store.fetch_order import (
    RETRY_AFTER_MAX,
    TRIES_WITHOUT_PROGRESS,
    Source,
    host_name,
)
from quorate_content.store.http_answer import BUSY, Body
from quorate_content.store.index import Owner
from quorate_content.store.store_files import StoreFiles
from quorate_content.store.threads import StopSignal
from quorate_protocol.refusals import Refused, Unavailable

if TYPE_CHECKING:
    from _hashlib import HASH

PAUSE_SECONDS = 0.5
NEEDS_TOKEN = (
    "it is private, gated or absent there: that needs a token, and jobs cannot carry one yet"
)


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file: its place below the root, the CID of its bytes as one raw block, and its size."""

    path: TreePath
    cid: Cid
    size: int


@dataclass(frozen=True, slots=True)
class WebContent:
    """A file, or a folder of files, and the CID under which the store keeps it."""

    root: Cid
    files: tuple[WebFile, ...]
    nodes: Nodes

    @property
    def size(self) -> int:
        return sum(item.size for item in self.files)


@dataclass(frozen=True, slots=True)
class WebSource:
    """Where files are. `url` ends with `/` for a folder's files. With `by_cid` it is a gateway that
    serves a file at its CID, and `headers` go there only.
    """

    url: str
    may_be_private: bool
    name: str
    by_cid: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    def url_of(self, file: WebFile) -> str:
        if self.by_cid:
            return f"{self.url}/{file.cid}"
        return self.url + quote(b"/".join(file.path))


def web_sources(source: str, may_be_private: bool, others: Iterable[Source]) -> list[WebSource]:
    """Returns the source itself, then the gateways, which may have a file by its CID."""
    first = WebSource(source, may_be_private, host_name("source", source))
    return [
        first,
        *(
            WebSource(item.url, item.may_be_private, item.label, True, item.headers)
            for item in others
        ),
    ]


def one_file(cid: Cid, size: int) -> WebContent:
    return WebContent(cid, (WebFile((), cid, size),), {})


def folder_of(files: Sequence[WebFile]) -> WebContent:
    """Returns the folder that holds these files, which are sorted by path. Raises `Refused` for a
    name that content must not have.
    """
    nodes: Nodes = {}
    bounds = Bounds()
    entries: dict[TreePath, dict[bytes, Built]] = {(): {}}
    for item in files:
        for depth in range(1, len(item.path) + 1):
            check_path(item.path[:depth], bounds)
        if len(item.path) > bounds.directory_depth_max:
            raise malformed(f"depth of directories: at most {bounds.directory_depth_max}")
        for depth in range(len(item.path)):
            entries.setdefault(item.path[:depth], {})
        entries[item.path[:-1]][item.path[-1]] = Built(item.cid, item.size, item.size)
    root = Built(files[0].cid, 0, 0)
    for path in sorted(entries, key=len, reverse=True):
        root = build_directory(entries[path], V1_2025, keep_nodes(nodes))
        if path:
            entries[path[:-1]][path[-1]] = root
    return WebContent(root.cid, tuple(files), nodes)


@dataclass(slots=True)
class _Part:
    """How much of a file is on the disk, and its hash so far."""

    file: WebFile
    done: int = 0
    hash: "HASH" = field(default_factory=sha256)

    def restart(self) -> None:
        self.done, self.hash = 0, sha256()

    @property
    def is_right(self) -> bool:
        return self.done == self.file.size and self.hash.digest() == self.file.cid.digest


@dataclass(slots=True)
class _Turn:
    source: WebSource
    tries_left: int = TRIES_WITHOUT_PROGRESS
    pause_seconds: float = 0.0
    busy: int = 0


class WebFetch:
    """Fetches one content into `tmp/<cid>` and publishes it."""

    def __init__(
        self,
        files: StoreFiles,
        content: WebContent,
        sources: tuple[WebSource, ...],
        owner: Owner,
        stop: StopSignal,
        tally: Tally,
    ) -> None:
        self._files, self._content, self._sources = files, content, sources
        self._owner, self._stop, self._tally = owner, stop, tally
        self._buffer = memoryview(bytearray(MIB))

    def run(self) -> None:
        content, work = self._content, str(self._content.root)
        target = Path(self._files.work(work), "tree")
        wanted = sum(entry_bytes(item.path != (), item.size) for item in content.files)
        self._files.reserve(work, self._owner, wanted, _bytes_at(target))
        writer = TreeWriter(target, Bounds(bytes_max=content.size), resume=True)
        try:
            self._write(writer)
        finally:
            writer.abandon()
        self._files.publish(content.root, work, content.nodes, content.size, writer.disk_bytes)

    def _write(self, writer: TreeWriter) -> None:
        inside: TreePath | None = None
        for item in self._content.files:
            if not item.path:
                self._file(writer, item)
                return
            if inside is None:
                writer.enter(inside := ())
            while item.path[: len(inside)] != inside:
                writer.leave(inside)
                inside = inside[:-1]
            while inside != item.path[:-1]:
                writer.enter(inside := item.path[: len(inside) + 1])
            self._file(writer, item)
        while inside:
            writer.leave(inside)
            inside = inside[:-1]

    def _file(self, writer: TreeWriter, file: WebFile) -> None:
        writer.open(file.path, file.size)
        part = _Part(file)
        for chunk in writer.left_over(file.size, self._buffer):
            self._stop.check()
            part.hash.update(chunk)
            part.done += len(chunk)
        if not part.is_right:
            if part.done == file.size:
                part.restart()
            self._download(writer, part)
        writer.close(file.path, file.size)

    def _download(self, writer: TreeWriter, part: _Part) -> None:
        """Asks one source after the other, each again while it may still send the rest."""
        turns = [_Turn(source) for source in self._sources]
        reasons: dict[str, str] = {}
        may_come = False
        while turns:
            turn, before = turns.pop(0), part.done
            self._stop.wait(turn.pause_seconds)
            try:
                self._receive(writer, part, turn.source)
                return
            except DiskFull:
                raise
            except Unavailable as error:
                self._stop.check()
                reasons[turn.source.name], may_come = str(error), True
                turn.busy += 1
                turn.pause_seconds = max(error.retry_after, PAUSE_SECONDS * turn.busy)
                if turn.pause_seconds < self._stop.left_seconds():
                    turns.append(turn)
            except (TruncatedSource, OSError, http.client.HTTPException) as error:
                self._stop.check()
                reasons[turn.source.name] = str(error) or type(error).__name__
                may_come = True
                has_more = part.done > before
                turn.tries_left = TRIES_WITHOUT_PROGRESS if has_more else turn.tries_left - 1
                turn.pause_seconds = 0.0 if has_more else PAUSE_SECONDS
                if turn.tries_left:
                    turns.append(turn)
            except Refused as refused:
                # Another source may have the file.
                reasons[turn.source.name] = refused.detail
        kind = Unavailable if may_come else AbsentEverywhere
        said = [f"{name}: {text}" for name, text in reasons.items()][:REASONS_SHOWN]
        raise kind(
            f"no source had {part.file.cid}: {'; '.join(said) or 'none was given'}",
            retry_after=RETRY_AFTER_MAX,
        )

    def _receive(self, writer: TreeWriter, part: _Part, source: WebSource) -> None:
        file, url = part.file, source.url_of(part.file)
        headers = {"Accept": "*/*", "Accept-Encoding": "identity", **dict(source.headers)}
        if part.done:
            headers["Range"] = f"bytes={part.done}-"
        asked = CheckedHttp(
            f"the source {url}",
            "name a source that everybody reaches",
            source.may_be_private,
            self._stop,
            STALL_SECONDS,
        )
        with answer_of(asked, url, headers, follows=not source.by_cid) as response:
            self._begin(part, response, url)
            body, before = Body(response, self._stop), part.done
            try:
                while count := body.readinto(self._buffer):
                    if part.done + count > file.size:
                        part.restart()
                        raise changed(url, f"it has more than {file.size} bytes")
                    writer.write(file.path, part.done, self._buffer[:count])
                    part.hash.update(self._buffer[:count])
                    part.done += count
            finally:
                if part.done > before:
                    self._tally(source.name, part.done - before)
        self._stop.check()  # a connection that `stop` closed looks like one that ended
        if part.done < file.size:
            raise TruncatedSource(f"it ends after {part.done} of {file.size} bytes")
        if not part.is_right:
            found = part.hash.hexdigest()
            part.restart()
            if before:
                raise TruncatedSource("what came before did not belong to it; it is asked again")
            raise changed(url, f"its SHA-256 is {found}, not {file.cid.digest.hex()}")

    def _begin(self, part: _Part, response: http.client.HTTPResponse, url: str) -> None:
        """Finds where the body begins, and refuses a file of another size at once."""
        size, length = part.file.size, response.headers.get("Content-Length", "")
        if response.status == 206:
            span = response.headers.get("Content-Range", "")
            if not span.startswith(f"bytes {part.done}-"):
                raise BadSource(f"{url}: it sends the range {span[:60]!r}, not from {part.done}")
        else:
            part.restart()
        if length.isdecimal() and part.done + int(length) != size:
            had = part.done + int(length)
            raise changed(url, f"it has {had} bytes, not {size}")


def changed(url: str, how: str) -> BadSource:
    return BadSource(
        f"{url}: {how}: the file changed since it was ordered; order again, or name a revision "
        "that stays"
    )


@contextmanager
def answer_of(
    asked: CheckedHttp, url: str, headers: dict[str, str], method: str = "GET", follows: bool = True
) -> Iterator[http.client.HTTPResponse]:
    """Yields the good response after at most `REDIRECTS_MAX` redirects. Raises `Unavailable` if the
    server is busy, `BadSource` for any other status.
    """
    for _ in range(REDIRECTS_MAX + 1):
        with asked.request(url, headers, method) as response:
            if response.status in REDIRECTS and follows:
                url = redirect_target(url, response.headers.get("Location", ""), asked.what)
                continue
            _check_status(response)
            yield response
            return
    raise BadSource(f"{asked.what} redirects more than {REDIRECTS_MAX} times")


def _check_status(response: http.client.HTTPResponse) -> None:
    status = response.status
    if status in BUSY:
        after = response.headers.get("Retry-After", "")
        raise Unavailable(
            f"status {status}", retry_after=float(after[:9]) if after.isdecimal() else PAUSE_SECONDS
        )
    if status in (401, 403):
        raise BadSource(f"status {status}: {NEEDS_TOKEN}")
    if status not in (200, 206):
        raise BadSource(f"status {status}")


def _bytes_at(target: Path) -> int:
    """Returns what an earlier attempt wrote."""
    if not target.is_dir():
        return target.stat().st_blocks * 512 if target.exists() else 0
    return sum(
        os.lstat(os.path.join(folder, name)).st_blocks * 512
        for folder, _, names in os.walk(target)
        for name in names
    )
