"""One HTTP request to an untrusted source, with the answer's body unread. Calls block.

Redirects are not followed, and a source that must not be private is checked by the address to which
the connection leads.
"""

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, quote, urlsplit

from quorate_content.dag.cid import Cid
from quorate_content.dag.content_limits import BadSource, TruncatedSource
from quorate_content.store.deadline_socket import DeadlineSocket
from quorate_content.store.fetch_order import Answer, Source
from quorate_content.store.threads import StopSignal
from quorate_protocol.refusals import Unavailable
from quorate_runtime.http.client_networks import address_of, is_public

CAR_TYPE = "application/vnd.ipld.car"
CAR_ACCEPTED = f"{CAR_TYPE};version=1;order=dfs;dups=y"
RAW_TYPE = "application/vnd.ipld.raw"
PATH_SAFE = "/%:@!$&'()*+,;=~"
BUSY = {408, 425, 429, 500, 502, 503, 504}


class AbsentHere(BadSource):
    """The source says that it does not have the content."""


@contextmanager
def car_answer(
    source: Source,
    target: str,
    stop: StopSignal,
    answer_seconds: float,
    stall_seconds: float,
    may_drip: bool,
) -> Iterator[http.client.HTTPResponse]:
    with _request(
        source,
        "GET",
        target,
        {"Accept": CAR_ACCEPTED},
        stop,
        answer_seconds,
        stall_seconds,
        may_drip,
    ) as response:
        yield response


def probe(
    source: Source, root: Cid, stop: StopSignal, answer_seconds: float, may_search: bool = False
) -> Answer:
    """Asks whether the source has the content at hand, or with `may_search` whether it finds it.
    Raises `AbsentHere` if it does not, and what a failed connection raises.
    """
    headers = {"Accept": RAW_TYPE} | ({} if may_search else {"Cache-Control": "only-if-cached"})
    with _request(
        source, "HEAD", f"{root}?format=raw", headers, stop, answer_seconds, answer_seconds, False
    ) as response:
        if response.status == 200:
            return Answer.HAS
        if response.status == 412:
            return Answer.NOT_AT_HAND
        if response.status in (404, 410):
            raise AbsentHere(f"status {response.status}: it does not have {root}")
        return Answer.UNCLEAR


@contextmanager
def raw_answer(
    source: Source, root: Cid, stop: StopSignal, answer_seconds: float
) -> Iterator[http.client.HTTPResponse]:
    with _request(
        source,
        "GET",
        f"{root}?format=raw",
        {"Accept": RAW_TYPE},
        stop,
        answer_seconds,
        answer_seconds,
        False,
    ) as response:
        yield response


def check_car(response: http.client.HTTPResponse) -> None:
    """Checks status and type before the body, because error pages can come with status 200."""
    status = response.status
    if status in BUSY:
        after = response.headers.get("Retry-After", "")
        raise Unavailable(
            f"status {status}", retry_after=float(after) if after.isdecimal() else 1.0
        )
    if status in (404, 410):
        raise AbsentHere(f"status {status}: it does not have the content")
    if 300 <= status < 400:
        raise BadSource(f"status {status}: it redirects, and redirects are not followed")
    if status not in (200, 206):
        raise BadSource(f"status {status}")
    kind = response.headers.get_content_type()
    if kind != CAR_TYPE:
        raise BadSource(f"it answered with type {kind}, not {CAR_TYPE}")


class Body:
    """Reads the response's body. A broken connection raises `TruncatedSource`."""

    def __init__(self, response: http.client.HTTPResponse, stop: StopSignal) -> None:
        self._response, self._stop = response, stop

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            count = self._response.readinto(buffer)
        except (OSError, http.client.HTTPException) as error:
            self._stop.check()
            raise TruncatedSource(f"the connection broke: {error}") from error
        return count or 0


@contextmanager
def _request(
    source: Source,
    method: str,
    target: str,
    headers: dict[str, str],
    stop: StopSignal,
    answer_seconds: float,
    stall_seconds: float,
    may_drip: bool,
) -> Iterator[http.client.HTTPResponse]:
    parts, port = _url_parts(source.url)
    connection = _connection(
        parts.scheme, parts.hostname or "", port, min(answer_seconds, max(0.1, stop.left_seconds()))
    )
    try:
        try:
            connection.connect()
        except UnicodeError as error:
            raise BadSource("its host name is invalid") from error
        stop.attach(connection.sock)
        _check_peer(source, connection.sock)
        guarded = DeadlineSocket(connection.sock, stop, stall_seconds, may_drip, answer_seconds)
        connection.sock = guarded
        path = quote(parts.path, PATH_SAFE, errors="replace").rstrip("/")
        connection.request(method, f"{path}/{target}", headers={**headers, **dict(source.headers)})
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


def _connection(
    scheme: str, host: str, port: int | None, timeout: float
) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(
            host, port, timeout=timeout, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(host, port, timeout=timeout)
