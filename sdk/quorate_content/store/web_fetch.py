"""Fetches files whole, from servers that know nothing of content addressing.

Each file is hashed while it comes, and counts only if its SHA-256 is the one that was asked for.
Memory stays flat. What came of a file stays on the disk: the next request asks for the rest of it.
Calls block.
"""

import http.client
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

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
from quorate_content.store.fetch_order import RETRY_AFTER_MAX, TRIES_WITHOUT_PROGRESS, Source
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
    """How much of a file is on the disk, its hash so far, and who sent how much of it."""

    file: WebFile
    done: int = 0
    hash: "HASH" = field(default_factory=sha256)
    senders: Counter[str] = field(default_factory=Counter)

    def restart(self) -> None:
        self.done, self.hash, self.senders = 0, sha256(), Counter()

    def add(self, data: memoryview) -> None:
        self.hash.update(data)
        self.done += len(data)

    @property
    def is_right(self) -> bool:
        return self.done == self.file.size and self.hash.digest() == self.file.cid.digest


@dataclass(slots=True)
class _Turn:
    """One source's place in the queue."""

    source: Source
    tries_left: int = TRIES_WITHOUT_PROGRESS
    pause_seconds: float = 0.0

    def failed(self, error: Exception, has_progressed: bool) -> None:
        """A busy source is asked until the time is over, any other one thrice."""
        if isinstance(error, Unavailable):
            self.pause_seconds = max(error.retry_after, 2 * self.pause_seconds, PAUSE_SECONDS)
            return
        self.tries_left = TRIES_WITHOUT_PROGRESS if has_progressed else self.tries_left - 1
        self.pause_seconds = 0.0 if has_progressed else PAUSE_SECONDS


class WebFetch:
    """Fetches one content into `tmp/<cid>` and publishes it. `origin` is where its files are: the
    URL of a file, or of a folder, which ends with `/`. `gateways` may have a file by its CID.
    """

    def __init__(
        self,
        files: StoreFiles,
        content: WebContent,
        owner: Owner,
        stop: StopSignal,
        origin: Source,
        gateways: Sequence[Source],
        tally: Tally,
    ) -> None:
        self._files, self._content = files, content
        self._origin, self._sources = origin, (origin, *gateways)
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
            part.add(chunk)
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
                for label, count in part.senders.items():
                    self._tally(label, count)
                return
            except DiskFull:
                raise
            except (Unavailable, TruncatedSource, OSError, http.client.HTTPException) as error:
                self._stop.check()
                reasons[turn.source.label] = str(error) or type(error).__name__
                may_come = True
                turn.failed(error, part.done > before)
                if turn.tries_left and turn.pause_seconds < self._stop.left_seconds():
                    turns.append(turn)
            except Refused as refused:
                # Another source may have the file.
                reasons[turn.source.label] = refused.detail
        kind = Unavailable if may_come else AbsentEverywhere
        said = [f"{label}: {text}" for label, text in reasons.items()][:REASONS_SHOWN]
        raise kind(f"no source had {part.file.cid}: {'; '.join(said)}", retry_after=RETRY_AFTER_MAX)

    def _receive(self, writer: TreeWriter, part: _Part, source: Source) -> None:
        file, is_origin = part.file, source is self._origin
        url = source.url + (quote(b"/".join(file.path)) if is_origin else f"/{file.cid}")
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
        with answer_of(asked, url, headers, follows=is_origin) as response:
            self._begin(part, response, url)
            body, before = Body(response, self._stop), part.done
            while count := body.readinto(self._buffer):
                if part.done + count > file.size:
                    part.restart()
                    raise changed(url, f"it has more than {file.size} bytes")
                writer.write(file.path, part.done, self._buffer[:count])
                part.add(self._buffer[:count])
                part.senders[source.label] += count
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
                target = redirect_target(url, response.headers.get("Location", ""), asked.what)
                if urlsplit(target).netloc != urlsplit(url).netloc:
                    # A token is for its own server.
                    headers = {key: headers[key] for key in headers if key != "Authorization"}
                url = target
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
