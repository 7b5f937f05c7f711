"""Tests what a watcher does about one epoch, and what it keeps."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quorate_contracts.artifact import CONTRACTS
from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.epochs import Epoch
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.watch.acting import Acting
from quorate_contracts.watch.bonds import BondedSender
from quorate_contracts.watch.decisions import Kind, is_of, judge
from quorate_contracts.watch.epoch_watcher import STATEMENT_SECONDS, EpochWatcher
from quorate_contracts.watch.evidence import Evidence
from quorate_contracts.watch.watch_file import (
    ACTIONS_MAX,
    STATEMENTS_MAX,
    Action,
    ShownLeaf,
    Watched,
    WatchState,
    read_watch,
    write_watch,
)
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.epoch_tree import Leaf, build, prove
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Seconds,
    Sequence,
    Signature,
    UnixSeconds,
)
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.clock import SystemClock
from quorate_runtime.http.client_sessions import plain_session

ME, OTHER, COORDINATOR = (Address(bytes([i]) * 20) for i in (1, 2, 3))


def signed(final: int, epoch: int, seq: int) -> Envelope[Statement]:
    parts = Amount(final), Amount(0), Sequence(epoch), Sequence(seq), ZERO_HASH
    return Envelope(Statement(ME, *parts), Signature(bytes(65)))


def epoch_of(number: int, final: int, held: int = 0) -> tuple[Epoch, ShownLeaf]:
    leaves = [
        Leaf(1, ME, Amount(final), Amount(held), ZERO_HASH),
        Leaf(2, OTHER, Amount(5), Amount(0), ZERO_HASH),
    ]
    root = build(leaves)
    return (
        Epoch(root.hash, number, UnixSeconds(0), root.final, root.held),
        ShownLeaf(number, *prove(leaves, ME)),
    )


KEPT = Watched(COORDINATOR).with_statement(signed(60, 2, 1)).with_statement(signed(90, 3, 2))


@pytest.mark.rule("6.51")
@pytest.mark.parametrize(
    ("number", "final", "held", "is_exhausted", "old", "kind", "missing"),
    [
        (1, 0, 0, False, 0, Kind.NOTHING, 0),  # the Statement is due in the next epoch
        (2, 60, 0, False, 60, Kind.NOTHING, 0),
        (2, 59, 1, False, 0, Kind.STATEMENT, 1),
        (2, 59, 1, True, 0, Kind.NOTHING, 0),
        (2, 59, 0, True, 0, Kind.STATEMENT, 1),
        (2, 60, 0, False, 61, Kind.LEAF, 1),
        (3, 60, 0, False, 0, Kind.STATEMENT, 30),
        (1, 3, 0, False, 4, Kind.LEAF, 1),
    ],
)
def test_an_epoch_is_challenged_by_what_was_signed_or_shown_before(
    number: int, final: int, held: int, is_exhausted: bool, old: int, kind: Kind, missing: int
) -> None:
    epoch, shown = epoch_of(number, final, held)
    epoch = Epoch(epoch.root, number, UnixSeconds(0), epoch.sum_final, epoch.sum_held, is_exhausted)
    before = epoch_of(number - 1, old)[1] if old else None
    decision = judge(epoch, shown, KEPT, before)
    assert (decision.kind, decision.missing) == (kind, missing)


@pytest.mark.rule("6.51")
def test_a_leaf_is_demanded_by_the_evidence_that_promises_more() -> None:
    epoch, _ = epoch_of(2, 0)
    by_statement = judge(epoch, None, KEPT, epoch_of(1, 60)[1])
    assert (by_statement.kind, by_statement.missing) == (Kind.DEMAND, 60)
    by_leaf = judge(epoch, None, KEPT, epoch_of(1, 61)[1])
    assert (by_leaf.kind, by_leaf.missing) == (Kind.DEMAND_OLD, 61)
    assert judge(epoch, None, Watched(COORDINATOR), None).kind is Kind.NOTHING


def test_a_proof_counts_only_for_its_account_epoch_and_root() -> None:
    epoch, shown = epoch_of(2, 10)
    assert is_of(shown, epoch, ME)
    assert not is_of(shown, epoch, OTHER)
    assert not is_of(shown, epoch_of(2, 11)[0], ME)
    assert not is_of(shown, epoch_of(3, 10)[0], ME)


def test_the_newest_statement_of_each_epoch_is_kept() -> None:
    kept = KEPT.with_statement(signed(70, 2, 5)).with_statement(signed(65, 2, 4))
    assert [item.message.final for item in kept.statements] == [70, 90]
    for epoch in range(4, 40):
        kept = kept.with_statement(signed(100, epoch, epoch))
    assert len(kept.statements) == STATEMENTS_MAX


@pytest.mark.rule("6.54")
def test_the_evidence_survives_in_a_file_of_one_account(tmp_path: Path) -> None:
    state = WatchState(ME).with_watched(KEPT.with_leaf(epoch_of(1, 4)[1]))
    for at in range(ACTIONS_MAX + 1):
        state = state.with_action(Action(UnixSeconds(at), COORDINATOR, "halt", 2, Amount(7)))
    write_watch(tmp_path, state)
    assert read_watch(tmp_path, ME) == read_watch(tmp_path, None) == state
    assert state.actions[0].at == 1 and "halt of epoch 2" in state.actions[0].line()
    with pytest.raises(Refused) as refused:
        read_watch(tmp_path, OTHER)
    assert refused.value.code is Code.NOT_YOURS
    (tmp_path / "watch.json").write_text("{")
    with pytest.raises(Refused) as refused:
        read_watch(tmp_path, ME)
    assert "move it away" in refused.value.detail


async def test_a_full_disk_ends_no_watch(tmp_path: Path) -> None:
    """It keeps the evidence in memory and goes on."""
    home = tmp_path / "no folder"
    async with watching(home, Source(signed(60, 2, 1))) as watcher:
        watcher.note_statements()
        assert watcher.acting.state.of(COORDINATOR).statements == (signed(60, 2, 1),)
    assert not home.exists()


@pytest.mark.rule("6.51")
async def test_a_statement_that_another_replaces_before_a_look_is_not_kept(tmp_path: Path) -> None:
    """So the epoch for which the older one was due is not challenged by it."""
    assert STATEMENT_SECONDS == 0.5
    source = Source(signed(60, 2, 1))
    async with watching(tmp_path, source) as watcher:
        watcher.note_statements()
        source.newest = signed(80, 2, 2)
        source.newest = signed(80, 3, 3)
        watcher.note_statements()
        kept = watcher.acting.state.of(COORDINATOR).statements
    assert kept == (signed(60, 2, 1), signed(80, 3, 3))


@contextlib.asynccontextmanager
async def watching(home: Path, source: "Source") -> AsyncIterator[EpochWatcher]:
    """A watcher without a chain."""
    places = (Address(bytes([number]) * 20) for number in range(len(CONTRACTS)))
    made = Deployment(1, BlockNumber(0), DEVNET.name, *places, bytes(96), Seconds(2), 1)
    contracts = Contracts.of(made)
    async with plain_session() as session:
        client = ChainClient(Rpc("http://127.0.0.1:1", session))
        sender = BondedSender(client, contracts, lambda: ME, not_sent)
        acting = Acting(ME, client, contracts, sender, SystemClock(), home)
        yield EpochWatcher(acting, Evidence(acting, source), lambda: (COORDINATOR,))


async def not_sent(purpose: str, call: Call) -> None:
    raise AssertionError("nothing is sent without a chain")


@dataclass
class Source:
    """A newest Statement, and no leaf."""

    newest: Envelope[Statement]

    def statement(self, coordinator: Address) -> Envelope[Statement]:
        return self.newest

    async def leaf(self, coordinator: Address, epoch: int) -> ShownLeaf:
        raise Unavailable("no coordinator")
