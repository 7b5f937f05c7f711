"""Tests small bounds in isolation: token buckets, address limits, log sizes, upload pace."""

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from quorate_content.transfer.upload_limits import (
    ACCOUNT_UPLOADS_MAX,
    UPLOADS_MAX,
    UploadPace,
    UploadSlots,
)
from quorate_coordinator.api.middleware import tokens_of
from quorate_coordinator.base.rate_limits import TokenBuckets
from quorate_coordinator.base.request_limits import BODY_BYTES_MAX, KIB, MAINNET_BOUNDS
from quorate_coordinator.market.frame_limits import FrameLimits
from quorate_coordinator.storage import run_logs
from quorate_coordinator.storage.run_logs import Piece, RunLogs
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_runtime.http.client_networks import FORWARDED, Proxies, network_of
from support.refusals import refuses


def test_buckets_fill_again_and_their_table_is_bounded() -> None:
    """The limiter remembers a limited number of keys."""
    now = 0.0
    buckets: TokenBuckets[int] = TokenBuckets(1.0, 5.0, 100, lambda: now)
    for key in range(1_000):
        assert buckets.take(key) == 0.0
    assert len(buckets) == 100
    assert [buckets.take(999) for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 1.0]
    now = 2.5
    assert [buckets.take(999) for _ in range(3)] == [0.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("method", "size", "tokens"),
    [
        ("GET", None, 1),
        ("POST", "700", 1),
        ("POST", "3072", 3),
        ("POST", str(1 << 40), BODY_BYTES_MAX // KIB),
        ("POST", None, BODY_BYTES_MAX // KIB),  # chunked
        ("PUT", "3072", 1),
    ],
)
def test_request_costs_a_token_for_each_kib_of_its_body(
    method: str, size: str | None, tokens: int
) -> None:
    headers = {} if size is None else {"Content-Length": size}
    body = StreamReader(BaseProtocol(Mock()), 1, loop=Mock())
    if method == "GET":
        body.feed_eof()
    assert tokens_of(make_mocked_request(method, "/v1/orders", headers, payload=body)) == tokens


def test_one_subscriber_is_one_address() -> None:
    assert (
        network_of("2001:db8::1") == network_of("2001:db8:0:ffff::2") != network_of("2001:db8:1::1")
    )
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("fe80::1%eth0") == "fe80::/48"
    assert network_of(None) == network_of("nonsense") == "?"


@pytest.mark.parametrize(
    ("remote", "headers", "origin"),
    [
        (
            "198.51.100.9",
            ["203.0.113.1"],
            "198.51.100.9",
        ),  # the peer is not a trusted proxy, so its header counts for nothing
        ("10.0.0.2", ["203.0.113.1"], "203.0.113.1"),
        (
            "10.0.0.2",
            ["1.1.1.1, 203.0.113.1"],
            "203.0.113.1",
        ),  # the requester wrote the entries further left
        (
            "10.0.0.2",
            ["1.1.1.1", "203.0.113.1, 10.0.0.7"],
            "203.0.113.1",
        ),  # two proxies sent two header lines
        ("::ffff:10.0.0.2", ["[2001:db8::1]:443"], "2001:db8::1"),
        ("10.0.0.2", ["203.0.113.1:51000"], "203.0.113.1"),
        ("10.0.0.2", [], "10.0.0.2"),
        ("10.0.0.2", ["unknown, _hidden"], "10.0.0.2"),
        ("10.0.0.2", ["203.0.113.1, rubbish"], "10.0.0.2"),
        ("10.0.0.2", ["10.0.0.3, 10.0.0.4"], "10.0.0.3"),
        ("10.0.0.2", ["9.9.9.9, " * 100_000 + "203.0.113.1"], "203.0.113.1"),
    ],
)
def test_behind_a_proxy_the_rightmost_untrusted_address_counts(
    remote: str, headers: list[str], origin: str
) -> None:
    assert Proxies.of(("10.0.0.0/8",)).origin(remote, headers) == origin


def test_the_header_that_a_proxy_does_not_set_is_not_read() -> None:
    proxies = Proxies.of(("10.0.0.0/8",), FORWARDED)
    assert (
        proxies.origin("10.0.0.2", ['for=1.1.1.1, For="[2001:db8::7]:99";proto=https;by=10.0.0.2'])
        == "2001:db8::7"
    )
    assert proxies.origin("10.0.0.2", ["for=unknown"]) == "10.0.0.2"
    with pytest.raises(ValueError, match="X-Real-IP"):
        Proxies.of((), "X-Real-IP")
    with pytest.raises(ValueError, match="10.0.0.1/8"):
        Proxies.of(("10.0.0.1/8",))


def test_a_provider_whose_frames_are_refused_has_to_slow_down() -> None:
    now = 0.0
    tolerance = FrameLimits(MAINNET_BOUNDS, lambda: now)
    for _ in range(int(MAINNET_BOUNDS.offences_burst)):
        tolerance.check("0xbad")
        tolerance.offended("0xbad")
    with pytest.raises(Unavailable):
        tolerance.check("0xbad")
    tolerance.check("0xgood")
    now = 1.0
    tolerance.check("0xbad")


LEASE = Hash32(b"\x07" * 32)


CLIENT, OTHER = Address(b"\x01" * 20), Address(b"\x02" * 20)
JOB = Hash32(b"\x01" * 32)


def numbered(number: int) -> Hash32:
    return Hash32(number.to_bytes(32, "big"))


def add(book: RunLogs, client: Address, job: Hash32, at: int, text: bytes) -> None:
    book.add(Piece(client, job, LEASE, at, text))


def shown(book: RunLogs, job: Hash32) -> list[tuple[int, bytes]]:
    """Returns (bytes missing, text behind them) of all executions."""
    found: list[tuple[int, bytes]] = []
    for text in book.texts(job):
        at = 0
        while (step := text.after(at))[1]:
            found.append(step)
            at += step[0] + len(step[1])
    return found


def test_each_text_of_a_log_belongs_to_the_execution_that_wrote_it() -> None:
    book, second = RunLogs(), Hash32(b"\x08" * 32)
    assert book.texts(JOB) == ()
    for writer, at, text in ((LEASE, 0, b"one "), (second, 0, b"three "), (LEASE, 4, b"two")):
        book.add(Piece(CLIENT, JOB, writer, at, text))
    assert [item.assignment_hash for item in book.texts(JOB)] == [LEASE, second]
    assert shown(book, JOB) == [(0, b"one two"), (0, b"three ")]
    for number in range(9):
        book.add(Piece(CLIENT, JOB, numbered(number), 0, b"again"))
    assert len(book.texts(JOB)) == run_logs.WRITERS_MAX
    assert book.bytes_of[CLIENT] == run_logs.WRITERS_MAX * len("again") + run_logs.TEXT_BYTES


def test_a_flood_of_log_lines_pushes_out_only_lines_of_the_same_client() -> None:
    book = RunLogs()
    add(book, CLIENT, JOB, 0, b"mine")
    for number in range(40):
        for piece in range(40):
            add(book, OTHER, numbered(number), piece * 65_536, b"x" * 65_536)
    assert shown(book, JOB) == [(0, b"mine")]
    assert book.bytes_of[OTHER] <= run_logs.CLIENT_BYTES_MAX
    runs = [texts for those in book.texts_of.values() for texts in those.values()]
    size = sum(sum(map(len, texts)) + run_logs.TEXT_BYTES for texts in runs)
    assert book.bytes_in_all == sum(book.bytes_of.values()) == size


@pytest.mark.parametrize("size", [1, 4_095, 30_011, 65_536])
def test_a_log_that_was_cut_says_how_much_is_missing_and_keeps_its_end(size: int) -> None:
    said = ("é" * 700_000 + "y" * 100_001 + "é" * 100_000).encode()
    said = said[: 200 * size + run_logs.HEAD_BYTES_MAX] + b"\nlarger than disk allows\n"
    book = RunLogs()
    start = 0 if size > 1 else run_logs.HEAD_BYTES_MAX - 50  # a byte at a time is slow
    if start:
        add(book, CLIENT, JOB, 0, said[:start])
    for at in range(start, len(said), size):
        add(book, CLIENT, JOB, at, said[at : at + size])
        add(book, CLIENT, JOB, max(0, at - 7), said[max(0, at - 7) : at + 3])  # sent again
    head, tail = said[: run_logs.HEAD_BYTES_MAX], said[run_logs.HEAD_BYTES_MAX :]
    (none, first), *rest = shown(book, JOB)
    assert (none, first) == (0, head)
    if len(tail) <= run_logs.TAIL_BYTES:
        assert rest == [(0, tail)]
        return
    ((missing, last),) = rest
    assert run_logs.TAIL_BYTES - 3 <= len(last) <= run_logs.TAIL_BYTES
    last.decode()  # begins with a whole letter
    assert said.endswith(last) and missing == len(said) - len(head) - len(last)


def test_a_gap_in_a_log_is_counted_and_filled_when_the_text_comes_again() -> None:
    book = RunLogs()
    add(book, CLIENT, JOB, 0, b"abc")
    add(book, CLIENT, JOB, 9, b"jkl")
    assert shown(book, JOB) == [(0, b"abc"), (6, b"jkl")]
    add(book, CLIENT, JOB, 20, b"uvw")
    assert shown(book, JOB) == [(0, b"abc"), (17, b"uvw")]
    add(book, CLIENT, JOB, 0, b"abcdefghijkl")
    add(book, CLIENT, JOB, 12, b"mnopqrstuvw")
    assert shown(book, JOB) == [(0, b"abcdefghijklmnopqrstuvw")]
    add(book, CLIENT, JOB, 1 << 60, b"far")  # a provider may claim any position
    assert shown(book, JOB)[-1][1] == b"far"


def test_all_logs_together_are_bounded() -> None:
    book = RunLogs()
    for number in range(200):
        add(book, Address(number.to_bytes(20, "big")), numbered(number), 0, b"x" * (1 << 20))
    assert book.bytes_in_all <= run_logs.ALL_BYTES_MAX
    assert len(book.bytes_of) == len(book.client_of) == len(book.texts_of)


def test_the_number_of_runs_with_short_logs_is_bounded() -> None:
    book = RunLogs()
    per_client = run_logs.CLIENT_BYTES_MAX // run_logs.TEXT_BYTES
    for number in range(2 * per_client):
        add(book, OTHER, numbered(number), 0, b"x" if number % 2 else b"")
    assert len(book.client_of) == len(book.texts_of[OTHER]) <= per_client
    assert book.bytes_of[OTHER] <= run_logs.CLIENT_BYTES_MAX
    assert shown(book, numbered(2 * per_client - 1)) == [(0, b"x")], "the newest is there"


def test_uploads_at_once_are_bounded() -> None:
    places = UploadSlots()
    held = [places.taken("one") for _ in range(ACCOUNT_UPLOADS_MAX)]
    for place in held:
        place.__enter__()
    with refuses(Code.BUSY), places.taken("one"):
        pass
    others = [places.taken(str(number)) for number in range(UPLOADS_MAX - ACCOUNT_UPLOADS_MAX)]
    for place in others:
        place.__enter__()
    with pytest.raises(Refused), places.taken("last"):
        pass
    others[0].__exit__(None, None, None)
    with places.taken("last"):
        pass


async def test_an_upload_that_trickles_is_ended() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0)
            yield b"x"

    async def stand_still() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    for pieces in (trickle(), stand_still()):
        with refuses(Code.TOO_LATE):
            async for _ in UploadPace(0.05, 0.02, 1e9).held(pieces):
                pass

    async def good() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    assert [piece async for piece in UploadPace().held(good())] == [b"a", b"b"]
