"""Reads from sources, and remembers the hashes of what it has read. Calls block."""

import http.client
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock

from quorate_content.dag.content_limits import MIB, BadSource, TruncatedSource
from quorate_content.store.checked_http import CheckedHttp
from quorate_content.store.http_answer import Body
from quorate_content.store.threads import StopSignal
from quorate_content.store.web_fetch import answer_of
from quorate_protocol.codec import canonical
from quorate_protocol.quantity_input import size_text
from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.files import write_atomic

TRIES = 4
PAUSE_SECONDS_MAX = 60.0
STALL_SECONDS = 30.0
HASHES_MAX = 4096
HASHES_BYTES_MAX = 4 << 20
TOLD_FROM_BYTES = 64 * MIB
DEADLINE_SECONDS = 86_400.0


class HashFile:
    """Hashes of files that were read before, by URL and version. Safe from any thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._guard = path, Lock()

    def get(self, key: str) -> bytes | None:
        with self._guard:
            found = self._read().get(key)
        return bytes.fromhex(found) if found else None

    def add(self, key: str, digest: bytes) -> None:
        """Keeps the newest `HASHES_MAX`."""
        with self._guard:
            known = self._read()
            known[key] = digest.hex()
            kept = dict([*known.items()][-HASHES_MAX:])
            write_atomic(self._path, canonical.canonical(kept))

    def _read(self) -> dict[str, str]:
        try:
            tree = canonical.parse(self._path.read_bytes(), HASHES_BYTES_MAX)
        except (FileNotFoundError, Refused):
            return {}  # not re-raised: the hash is computed again
        return {str(key): str(value) for key, value in tree.items()}


@dataclass(frozen=True, slots=True)
class Found:
    """What a server says of a file. `tag` names its version; "" if it names none."""

    size: int | None
    tag: str
    headers: Mapping[str, str]


HeadersFor = Callable[[str], tuple[tuple[str, str], ...]]


class SourceReader:
    """Requests of one resolution, until `stop`. `hashes` remembers what was read. `headers_for`:
    what a request for a URL needs beside, such as a token.
    """

    def __init__(
        self,
        hashes: HashFile,
        notice: Callable[[str], None],
        may_be_private: bool,
        headers_for: HeadersFor = lambda _: (),
    ) -> None:
        self.headers_for = headers_for
        self._hashes, self._notice, self._may_be_private = hashes, notice, may_be_private
        self.stop = StopSignal(DEADLINE_SECONDS)

    def read(self, url: str, bytes_max: int) -> bytes:
        """Returns a whole answer. Raises `BadSource` for a longer one, `Unavailable` if it breaks
        off.
        """
        room, done = memoryview(bytearray(MIB)), bytearray()
        with self._opened(url, {}) as response:
            body, length = Body(response, self.stop), response.headers.get("Content-Length", "")
            while count := body.readinto(room):
                done += room[:count]
                if len(done) > bytes_max:
                    raise BadSource(f"{url} sends more than {bytes_max} bytes")
        if length.isdecimal() and len(done) != int(length):
            raise Unavailable(f"{url} broke off", 5.0)
        return bytes(done)

    def look(
        self, url: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> Found:
        """Reads only the head of the answer."""
        with self._opened(url, headers or {}, method) as response:
            length = response.headers.get("Content-Length", "")
            tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            return Found(int(length) if length.isdecimal() else None, tag, dict(response.headers))

    def hashed(self, url: str, found: Found, field: str) -> tuple[bytes, int]:
        """Returns SHA-256 and size of a file. It is read once, unless it was read before."""
        key = f"{url} {found.tag} {found.size}"
        known = self._hashes.get(key) if found.tag else None
        if known is not None and found.size is not None:
            return known, found.size
        if found.size is None or found.size >= TOLD_FROM_BYTES:
            size = "it" if found.size is None else f"{size_text(found.size)}"
            self._notice(
                f"{field}: the hash of {url} is not known; {size} is read once here, and not kept"
            )
        digest, size_bytes = self._read_hash(url, found.size)
        if found.tag:
            self._hashes.add(key, digest)
        return digest, size_bytes

    def _read_hash(self, url: str, size: int | None) -> tuple[bytes, int]:
        room, hashed, done, tries = memoryview(bytearray(MIB)), sha256(), 0, TRIES
        while True:
            before = done
            try:
                headers = {"Range": f"bytes={done}-"} if done else {}
                with self._opened(url, headers) as response:
                    if response.status != 206:
                        hashed, done = sha256(), 0
                    body = Body(response, self.stop)
                    while count := body.readinto(room):
                        hashed.update(room[:count])
                        done += count
                if size is None or done == size:
                    return hashed.digest(), done
                if done > size:
                    raise BadSource(f"{url} has more than the {size} bytes that it said")
                raise TruncatedSource(f"{url} ends after {done} of {size} bytes")
            except (TruncatedSource, OSError, http.client.HTTPException) as error:
                self.stop.check()
                tries = TRIES if done > before else tries - 1
                if not tries:
                    raise Unavailable(f"{url}: {error}", 5.0) from error

    @contextmanager
    def _opened(
        self, url: str, headers: Mapping[str, str], method: str = "GET"
    ) -> Iterator[http.client.HTTPResponse]:
        """Asks again if the server is busy, when it says."""
        remedy = "providers reach public addresses only; give a local path"
        asked = CheckedHttp(url, remedy, self._may_be_private, self.stop, STALL_SECONDS)
        sent = {"Accept": "*/*", "Accept-Encoding": "identity", **headers}
        sent |= dict(self.headers_for(url))
        for tries_left in reversed(range(TRIES)):
            with ExitStack() as stack:
                try:
                    response = stack.enter_context(answer_of(asked, url, sent, method))
                except Unavailable as error:
                    if not tries_left:
                        raise
                    self.stop.wait(min(error.retry_after, PAUSE_SECONDS_MAX))
                    continue
                yield response
                return
