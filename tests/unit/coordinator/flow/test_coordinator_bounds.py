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


def test_each_line_of_a_log_belongs_to_the_execution_that_wrote_it() -> None:
    book, client, job = run_logs.RunLogs(), Address(b"\x01" * 20), Hash32(b"\x01" * 32)
    first, second = LEASE, Hash32(b"\x08" * 32)
    assert book.pieces(job, 0) == [] and book.last_writer(job) is None
    for writer, text in ((first, "one "), (first, "two "), (second, "three "), (first, "four")):
        book.add(client, job, writer, text)
    assert book.pieces(job, 0) == [(first, b"one two "), (second, b"three "), (first, b"four")]
    assert book.pieces(job, 5) == [(first, b"wo "), (second, b"three "), (first, b"four")]
    assert book.pieces(job, 9) == [(second, b"hree "), (first, b"four")]
    assert book.pieces(job, 18) == [] and book.last_writer(job) == first


def test_a_flood_of_log_lines_pushes_out_only_lines_of_the_same_client() -> None:
    book = run_logs.RunLogs()
    victim, flooder = Address(b"\x01" * 20), Address(b"\x02" * 20)
    book.add(victim, Hash32(b"\x01" * 32), LEASE, "mine")
    for number in range(40):
        for _ in range(40):
            book.add(flooder, Hash32(number.to_bytes(32, "big")), LEASE, "x" * 65_536)
    assert (
        book.read(Hash32(b"\x01" * 32), 0) == b"mine"
        and book.read(Hash32(b"\x01" * 32), 2) == b"ne"
    )
    assert book.bytes_of[flooder] <= run_logs.CLIENT_BYTES_MAX
    texts = [text for those in book.texts_of.values() for text in those.values()]
    assert (
        book.bytes_in_all
        == sum(book.bytes_of.values())
        == sum(len(text) + run_logs.TEXT_BYTES for text in texts)
    )


def test_a_log_that_was_cut_says_where_and_how_much_and_keeps_its_last_lines() -> None:
    book, job = run_logs.RunLogs(), Hash32(b"\x01" * 32)
    said = (
        "é" * 500_000
        + "x" * 200_001
        + "y" * 100_000
        + "\nwhat was written is larger than disk allows\n"
    )
    for start in range(0, len(said), 30_011):
        book.add(Address(b"\x01" * 20), job, LEASE, said[start : start + 30_011])
    whole, head, rest = said.encode(), book.read(job, 0), book.ending(job)
    mark, _, tail = rest.removeprefix(b"\n[").partition(b" bytes were left out here]\n")
    assert (
        whole.startswith(head)
        and whole.endswith(tail)
        and tail.endswith(b"larger than disk allows\n")
    )
    assert len(head) == run_logs.RUN_BYTES_MAX and len(tail) == run_logs.TAIL_BYTES
    assert int(mark) == len(whole) - len(head) - len(tail)
    assert len(book.read(job, 7)) == len(head) - 7, (
        "where a reader goes on is not moved by the ending"
    )


def test_a_log_is_cut_between_letters_and_one_that_is_whole_has_no_mark() -> None:
    book, job = run_logs.RunLogs(), Hash32(b"\x01" * 32)
    book.add(Address(b"\x01" * 20), job, LEASE, "x" * (run_logs.RUN_BYTES_MAX - 1))
    assert book.ending(job) == b""
    book.add(Address(b"\x01" * 20), job, LEASE, "é")
    assert book.read(job, 0)[-1:] == b"x" and book.ending(job).decode() == "é", "all of it is here"
    for _ in range(run_logs.TAIL_BYTES):
        book.add(Address(b"\x01" * 20), job, LEASE, "é")
    mark, _, tail = book.ending(job).partition(b"]\n")
    assert (
        mark.decode() == f"\n[{run_logs.TAIL_BYTES + 2} bytes were left out here"
        and tail.decode() == "é" * (run_logs.TAIL_BYTES // 2)
    )


def test_a_text_of_a_few_lines_is_one_object_and_grows_into_a_long_one_unchanged() -> None:
    book, client, job = run_logs.RunLogs(), Address(b"\x01" * 20), Hash32(b"\x01" * 32)
    said = ""
    for number in range(600):
        line = f"line {number} é\n"
        book.add(client, job, LEASE, line)
        said += line
        assert book.read(job, 0) == said.encode() and book.ending(job) == b""
        assert isinstance(book.texts_of[client][job], bytes) == (
            len(said.encode()) <= run_logs.LINES_BYTES_MAX
        )
    assert book.bytes_of[client] == len(said.encode()) + run_logs.TEXT_BYTES


def test_all_logs_together_are_bounded() -> None:
    book = run_logs.RunLogs()
    for number in range(200):
        book.add(
            Address(number.to_bytes(20, "big")),
            Hash32(number.to_bytes(32, "big")),
            LEASE,
            "x" * (1 << 20) + "too much",
        )
    assert book.bytes_in_all <= run_logs.ALL_BYTES_MAX and len(book.bytes_of) == len(
        book.client_of
    ) == len(book.texts_of)


def test_the_number_of_runs_with_short_logs_is_bounded() -> None:
    book, flooder = run_logs.RunLogs(), Address(b"\x02" * 20)
    per_client = run_logs.CLIENT_BYTES_MAX // run_logs.TEXT_BYTES
    for number in range(2 * per_client):
        book.add(flooder, Hash32(number.to_bytes(32, "big")), LEASE, "x" if number % 2 else "")
    assert (
        len(book.client_of) == len(book.texts_of[flooder]) <= per_client
        and book.bytes_of[flooder] <= run_logs.CLIENT_BYTES_MAX
    )
    assert book.read(Hash32((2 * per_client - 1).to_bytes(32, "big")), 0) == b"x", (
        "the newest is there"
    )


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
