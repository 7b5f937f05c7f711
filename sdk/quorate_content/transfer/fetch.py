"""Fetches a DAG as a CAR over HTTP from several sources and verifies it block by block. It can be
resumed.

Calls block: run them in a thread. One `http.client` response read into one buffer is as fast as the
loopback device and uses constant memory. A source that sends wrong data is dropped. A source that
is cut off, stalls or is busy is asked again from the walk's position. A file resumes with
`entity-bytes`. A directory is sent again, and known blocks are skipped. Source:
https://specs.ipfs.tech/http-gateways/trustless-gateway/.
"""

import http.client
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

from quorate_content.content_limits import BadSource, Bounds, DiskFull, TruncatedSource
from quorate_content.dag.car import Progress, read_car
from quorate_content.dag.cid import Cid
from quorate_content.dag.disk_tree import TreeWriter
from quorate_content.dag.walk import DagWalk
from quorate_content.threads import StopSignal
from quorate_content.transfer.deadline_socket import DeadlineSocket
from quorate_protocol.refusals import Unavailable
from quorate_runtime.http.client_networks import address_of, is_public

CAR_TYPE = "application/vnd.ipld.car"
STALL_SECONDS = 30.0
TRIES_WITHOUT_PROGRESS = 3
RETRY_AFTER_MAX = 30.0
PATH_SAFE = "/%:@!$&'()*+,;=~"
BUSY = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Source:
    """A trustless gateway, for example `http://host:port/ipfs`, used as `GET
    <url>/<cid>?format=car`.

    `headers` are for private content. Without `may_be_private`, addresses in private networks are
    refused, so that strangers cannot direct requests into our own network.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    may_be_private: bool = True


@dataclass(slots=True)
class _SourceState:
    """The state of one source within one fetch."""

    source: Source
    tries_left: int = TRIES_WITHOUT_PROGRESS
    pause_seconds: float = 0.0


def fetch(
    root: Cid,
    sources: tuple[Source, ...],
    walk: DagWalk,
    writer: TreeWriter,
    bounds: Bounds,
    stop: StopSignal,
    progress: Progress | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> None:
    """Feeds the walk until it is complete. `Unavailable` says what each source did; `Refused` if
    the content breaks a rule.
    """
    states = deque(_SourceState(source) for source in sources)
    reasons: list[str] = []

    def step(bytes_done: int) -> None:
        stop.check()
        if progress is not None:
            progress(bytes_done)

    while walk.expected is not None:
        if not states:
            raise Unavailable(
                f"no source had {root}: {'; '.join(reasons[-8:]) or 'none was given'}",
                retry_after=30.0,
            )
        state, before = states[0], walk.blocks_done
        stop.wait(state.pause_seconds)
        try:
            with _open_response(
                state.source, root, walk, stop, stall_seconds, may_drip=len(states) == 1
            ) as response:
                receive(response, walk, bounds, stop, writer, step)
        except DiskFull:
            raise
        except (TruncatedSource, Unavailable, OSError, http.client.HTTPException) as error:
            # Not re-raised: the source failed and gets another turn after the others.
            stop.check()
            states.rotate(-1)
            state.tries_left = (
                TRIES_WITHOUT_PROGRESS if walk.blocks_done > before else state.tries_left - 1
            )
            state.pause_seconds = min(
                error.retry_after if isinstance(error, Unavailable) else 0.2, RETRY_AFTER_MAX
            )
            reasons.append(f"{state.source.url[:200]}: {error}")
            if state.tries_left == 0:
                states.remove(state)
        except BadSource as error:
            # Not re-raised: this source sent wrong data. Verified blocks stay, and the other
            # sources may be right.
            states.remove(state)
            reasons.append(f"{state.source.url[:200]}: {error.detail}")


@contextmanager
def _open_response(
    source: Source, root: Cid, walk: DagWalk, stop: StopSignal, stall_seconds: float, may_drip: bool
) -> Iterator[http.client.HTTPResponse]:
    """Opens a source's answer with its body unread. Redirects are not followed."""
    parts, port = _url_parts(source.url)
    connection = _connection(
        parts.scheme, parts.hostname or "", port, min(stall_seconds, max(0.1, stop.left_seconds()))
    )
    try:
        try:
            connection.connect()
        except UnicodeError as error:
            raise BadSource("its host name is invalid") from error
        stop.attach(connection.sock)
        _check_peer(source, connection.sock)
        guarded = DeadlineSocket(connection.sock, stop, stall_seconds, may_drip)
        connection.sock = guarded
        connection.request(
            "GET",
            _target(quote(parts.path, PATH_SAFE, errors="replace"), root, walk),
            headers=_headers(source),
        )
        with connection.getresponse() as response:
            guarded.is_head = False
            yield response
    finally:
        connection.close()


def _url_parts(url: str) -> tuple[SplitResult, int | None]:
    """Returns the URL's parts and its port. Raises `BadSource` if it is not a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadSource(f"it is not a valid URL: {error}") from error
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        raise BadSource("a source must be an http or https URL")
    return parts, port


def _check_peer(source: Source, connection: socket.socket) -> None:
    """Checks the connected address. A check of the name before could have seen another address."""
    address = address_of(f"[{connection.getpeername()[0]}]")
    if not source.may_be_private and (address is None or not is_public(address)):
        raise BadSource("it leads into a private network")


def receive(
    response: http.client.HTTPResponse,
    walk: DagWalk,
    bounds: Bounds,
    stop: StopSignal,
    writer: TreeWriter | None = None,
    progress: Progress | None = None,
) -> None:
    """Feeds the walk from one answer. `writer` supplies blocks that came before."""
    _check(response)
    known, seen = (writer.known, writer.seen) if writer is not None else (None, None)
    read_car(_Body(response, stop), walk, bounds, known, seen, progress)


def _connection(
    scheme: str, host: str, port: int | None, timeout: float
) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(
            host, port, timeout=timeout, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(host, port, timeout=timeout)


def _headers(source: Source) -> dict[str, str]:
    return {"Accept": f"{CAR_TYPE};version=1;order=dfs;dups=y", **dict(source.headers)}


def _target(path: str, root: Cid, walk: DagWalk) -> str:
    expected = walk.expected
    resume = (
        f"&entity-bytes={expected.offset}:*"
        if expected is not None and not expected.path and expected.offset
        else ""
    )
    return f"{path.rstrip('/')}/{root}?format=car{resume}"


def _check(response: http.client.HTTPResponse) -> None:
    """Checks status and type before the body, because error pages can come with status 200."""
    if response.status in BUSY:
        after = response.headers.get("Retry-After", "")
        raise Unavailable(
            f"status {response.status}", retry_after=float(after) if after.isdecimal() else 1.0
        )
    if response.status not in (200, 206):
        raise BadSource(f"status {response.status}")
    kind = response.headers.get_content_type()
    if kind != CAR_TYPE:
        raise BadSource(f"it answered with type {kind}, not {CAR_TYPE}")


class _Body:
    """Reads the response's body. A broken connection raises `TruncatedSource`."""

    def __init__(self, response: http.client.HTTPResponse, stop: StopSignal) -> None:
        self._response, self._stop = response, stop

    def readinto(self, buffer: memoryview, /) -> int:
        """Fills some of `buffer` and returns how many bytes; 0 means the end."""
        try:
            count = self._response.readinto(buffer)
        except (OSError, http.client.HTTPException) as error:
            self._stop.check()
            raise TruncatedSource(f"the connection broke: {error}") from error
        return count or 0
