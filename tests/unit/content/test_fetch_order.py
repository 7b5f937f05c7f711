"""Which source is asked next, for what and for how long."""

import os
from hashlib import sha256

from quorate_content.dag.cid import Cid, inline_cid
from quorate_content.dag.content_limits import MIB, Bounds
from quorate_content.dag.dagpb import Link, encode_node, file_data
from quorate_content.dag.unixfs import V1_2025, Built, FileBuilder, build_directory
from quorate_content.dag.walk import DagWalk, NullSink
from quorate_content.store import fetch_order
from quorate_content.store.content_store import OTHERS, SOURCES_MAX, ByteCounts
from quorate_content.store.fetch_order import (
    Answer,
    CarRequest,
    Source,
    after,
    answer_seconds,
    first_turns,
    in_order,
    next_request,
)

JOB, GATEWAY, STORE = (
    Source("http://job/ipfs"),
    Source("http://gateway/ipfs", name="gateway", searches=True),
    Source("http://store/v1/content", name="coordinator"),
)


def urls(turns: fetch_order.Turns) -> list[str]:
    return [turn.source.url for turn in turns]


def test_a_url_that_comes_twice_counts_where_it_comes_last() -> None:
    named = Source(STORE.url + "/", may_be_private=False)
    assert in_order([named, JOB], [GATEWAY], [STORE]) == (JOB, GATEWAY, STORE)


def test_only_a_source_that_searches_is_probed() -> None:
    assert [turn.needs_probe for turn in first_turns((JOB, GATEWAY, STORE))] == [False, True, False]


def test_a_gateway_without_the_content_at_hand_searches_after_all_others_and_once() -> None:
    turns = after(first_turns((GATEWAY, STORE)), Answer.NOT_AT_HAND)
    assert urls(turns) == [STORE.url, GATEWAY.url]
    turns = after(turns, Answer.USELESS)
    assert not turns[0].needs_probe
    assert after(turns, Answer.FAILED) == ()


def test_a_gateway_with_the_content_is_read_in_its_place() -> None:
    turns = after(first_turns((GATEWAY, STORE)), Answer.HAS)
    assert urls(turns) == [GATEWAY.url, STORE.url] and not turns[0].needs_probe


def test_a_failed_source_is_asked_three_times_and_again_after_progress() -> None:
    turns = first_turns((JOB,))
    for left in (2, 1):
        turns = after(turns, Answer.FAILED)
        assert turns[0].tries_left == left
    assert after(turns, Answer.FAILED) == ()
    assert after(turns, Answer.FAILED, has_progressed=True)[0].tries_left == 3


def test_a_failed_source_waits_behind_the_others_for_a_bounded_time() -> None:
    turns = after(first_turns((JOB, STORE)), Answer.FAILED, pause_seconds=1e9)
    assert urls(turns) == [STORE.url, JOB.url]
    assert turns[1].pause_seconds == fetch_order.RETRY_AFTER_MAX


def test_nobody_may_take_more_than_its_share_of_the_time_to_find_content() -> None:
    turns = first_turns((JOB, GATEWAY, STORE))
    assert answer_seconds(turns, 12.0) == 4.0
    assert answer_seconds(turns[1:], 12.0) == fetch_order.PROBE_SECONDS
    assert answer_seconds(turns, -1.0) == fetch_order.ANSWER_SECONDS_MIN


Blocks = dict[bytes, bytes]


def file_of(size: int, blocks: Blocks) -> Built:
    builder = FileBuilder(V1_2025, lambda cid, block: blocks.__setitem__(cid.digest, block))
    for start in range(0, size, MIB):
        data = os.urandom(min(MIB, size - start))
        blocks[sha256(data).digest()] = data
        builder.add(data)
    return builder.finish()


def walk_of(root: Cid, blocks: Blocks, count: int) -> DagWalk:
    walk = DagWalk(root, NullSink(), Bounds())
    for _ in range(count):
        assert walk.expected is not None
        walk.feed(blocks[walk.expected.cid.digest])
    return walk


def test_a_file_continues_at_its_offset_in_the_form_that_kubo_honours() -> None:
    blocks: Blocks = {}
    file = file_of(3 * MIB, blocks)
    assert next_request(file.cid, walk_of(file.cid, blocks, 0)) == CarRequest(file.cid)
    wanted = next_request(file.cid, walk_of(file.cid, blocks, 3))
    assert wanted == CarRequest(
        file.cid, (), f"format=car&dag-scope=entity&entity-bytes={2 * MIB}:*"
    )


def test_a_directory_of_large_files_continues_file_by_file() -> None:
    blocks: Blocks = {}
    one, two = file_of(2 * MIB, blocks), file_of(3 * MIB, blocks)
    root = build_directory(
        {b"one": one, b"two": two}, V1_2025, lambda c, b: blocks.__setitem__(c.digest, b)
    ).cid
    assert next_request(root, walk_of(root, blocks, 1)) == CarRequest(root)
    query = f"format=car&dag-scope=entity&entity-bytes={MIB}:*"
    assert next_request(root, walk_of(root, blocks, 3)) == CarRequest(one.cid, (b"one",), query)
    assert next_request(root, walk_of(root, blocks, 4)) == CarRequest(two.cid, (b"two",))
    wanted = next_request(root, walk_of(root, blocks, 3), roots_only=True)
    assert wanted == CarRequest(root, query="format=car&from-entry=one")


def test_a_directory_of_small_files_continues_at_a_file_and_by_files_where_that_is_unknown() -> (
    None
):
    blocks: Blocks = {}
    files = {b"%d &" % index: file_of(1000, blocks) for index in range(3)}
    root = build_directory(files, V1_2025, lambda c, b: blocks.__setitem__(c.digest, b)).cid
    assert next_request(root, walk_of(root, blocks, 1)) == CarRequest(root)
    wanted = next_request(root, walk_of(root, blocks, 2))
    assert wanted == CarRequest(root, query="format=car&from-entry=1%20%26")
    turns = after(first_turns((JOB,)), Answer.CUT, has_progressed=True)
    assert not turns[0].sends_again
    turns = after(turns, Answer.CUT)
    assert turns[0].sends_again and after(turns, Answer.HAS)[0].pause_seconds == 0
    wanted = next_request(root, walk_of(root, blocks, 2), sends_again=True)
    assert wanted == CarRequest(files[b"1 &"].cid, (b"1 &",))


def test_a_walk_reads_identity_blocks_by_itself() -> None:
    tail = inline_cid(b"tail")
    blocks: Blocks = {}
    head = file_of(MIB, blocks)
    links = [Link(head.cid, b"", MIB), Link(tail, b"", 4)]
    node = encode_node(links, file_data([MIB, 4]))
    root = Cid(1, head.cid.codec.DAG_PB, sha256(node).digest())  # type: ignore[arg-type]
    blocks[sha256(node).digest()] = node
    walk = walk_of(root, blocks, 2)
    assert walk.expected is None and walk.bytes_done == MIB + 4
    assert DagWalk(tail, NullSink(), Bounds()).expected is None


def test_bytes_are_counted_by_source_and_the_names_are_bounded() -> None:
    counts = ByteCounts()
    for index in range(SOURCES_MAX + 10):
        counts.add(str(index), 1)
    counts.add("0", 5)
    assert counts.by_source()["0"] == 6
    assert counts.by_source()[OTHERS] == 10
