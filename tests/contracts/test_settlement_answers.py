"""A coordinator answers announced settlements of jobs that its epochs pay."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from contracts.evm import Reverted
from contracts.evm_node import EvmNode
from contracts.market import BOSS, COORDINATOR, POSTER, Market, peopled
from contracts.settlement_evidence import CLIENT, OWNERS, PAY, credits, job, voucher
from quorate_contracts.bindings.settlement import JobEvidence, Opening
from quorate_coordinator.chain import settlement_answers
from quorate_coordinator.chain.settlement_answers import SettlementAnswers, prove
from quorate_coordinator.core.effects import CreditEntry
from quorate_coordinator.core.entities import EpochRecord
from quorate_coordinator.core.state import State
from quorate_coordinator.storage.archive import MemoryArchive
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.crypto.merkle import FullLog, credit_entry, is_included
from quorate_protocol.limits import DEVNET
from quorate_protocol.rules.epoch_tree import Leaf, build
from quorate_protocol.units import ZERO_HASH, Address, Amount, BlockNumber, Hash32, UnixSeconds
from quorate_runtime.chain.types import RawLog
from quorate_runtime.clock import VirtualClock


@dataclass
class LoggedNode(EvmNode):
    """The machine, with the logs of what tests and the sender sent."""

    kept: list[RawLog] = field(default_factory=list)

    def sends(self, sender: Address, call: Any) -> None:
        """A stranger's transaction."""
        self.keep(self.evm.send(sender, call).logs)

    def keep(self, logs: Any) -> None:
        block = BlockNumber(self.evm.number - 1)
        self.kept += [
            RawLog(*item, block, ZERO_HASH, self.evm.now, ZERO_HASH, index)
            for index, item in enumerate(logs)
        ]

    @property
    def number(self) -> int:
        return self.evm.number - 1

    async def send(self, purpose: str, *parts: Any, **named: Any) -> Any:
        receipt = await super().send(purpose, *parts, **named)
        self.kept += [log for log in receipt.logs if log not in self.kept]
        return receipt

    async def logs(
        self, first: int, last: int, where: tuple[Address, ...], topics: tuple[Any, ...]
    ) -> tuple[RawLog, ...]:
        return tuple(
            log
            for log in self.kept
            if first <= log.block <= last and log.address in where and log.topics[1] == topics[1]
        )


@dataclass
class Paid:
    """A coordinator whose first epoch pays a job, and the task that answers."""

    world: Market
    evidence: JobEvidence
    node: LoggedNode
    archive: MemoryArchive
    state: State
    answers: SettlementAnswers

    def announce(self) -> None:
        """A stranger announces to settle the job."""
        call = self.world.contracts.settlement.open(self.evidence)
        self.node.sends(BOSS.address, call)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.answers.look()

    def executed(self) -> list[int]:
        """What the announcement has credited, once its time is over."""
        self.world.evm.travel(DEVNET.settle_response)
        newest = next(reversed(self.answers._open.values()))
        try:
            self.node.sends(BOSS.address, self.world.contracts.settlement.execute(newest))
        except Reverted as error:
            assert str(error) == "opened", error
        return credits(self.world, 2)


def paid(world: Market, is_posted: bool = True) -> Paid:
    """Posts an epoch whose logs have an older entry too; a later one came after it."""
    evidence, archive, state = job(world, CLIENT, 7), MemoryArchive(), State()
    leaves = []
    for each in evidence.executions:
        message = each.assignment.message
        names = [keccak256(b"old"), message.assignment_id, keccak256(b"new")]
        entries = [
            CreditEntry(message.provider, place, name, Amount(PAY))
            for place, name in enumerate(names)
        ]
        archive.append([], [(place, entry) for place, entry in enumerate(entries)])
        hashes = [credit_entry(it.assignment_id, it.pay) for it in entries[:2]]
        index = world.evm.ask(world.contracts.stakes.index_of(message.provider))
        root = FullLog(hashes).root()
        leaves.append(Leaf(index, message.provider, Amount(2 * PAY), Amount(0), root))
    leaves.sort(key=lambda leaf: leaf.index)
    post = world.contracts.epochs.post(
        COORDINATOR.address, 1, build(leaves), [voucher(world, 4 * PAY, 5)]
    )
    world.evm.send(POSTER.address, post)
    with state.transaction():
        state.epochs[1] = EpochRecord(
            1, tuple(leaves), build(leaves).hash, (), UnixSeconds(1), is_posted=is_posted
        )
    node = LoggedNode(world.evm, POSTER.address)
    clock = VirtualClock(float(world.evm.now))
    parts = node, world.contracts, COORDINATOR.address, state, node, DEVNET, clock, archive
    return Paid(world, evidence, node, archive, state, SettlementAnswers(*parts))  # type: ignore[arg-type]


@pytest.fixture
def world() -> Market:
    made = peopled()
    made.evm.travel(100)
    return made


@pytest.fixture(autouse=True)
def small_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement_answers, "LEAST", Amount(PAY))


@pytest.mark.rule("6.24", "6.56")
async def test_a_paid_job_is_not_paid_again(world: Market) -> None:
    market = paid(world)
    market.announce()
    await market.look(times=3)
    assert market.executed() == [0, 0]


@pytest.mark.rule("6.56")
async def test_two_announcements_of_one_job_are_both_answered(world: Market) -> None:
    market = paid(world)
    market.announce()
    world.evm.travel(1)
    market.announce()
    await market.look(times=3)
    assert len(market.answers._open) == 2
    for opening in market.answers._open.values():
        assert [share.assignment_id for share in opening.shares] == [ZERO_HASH] * 2


@pytest.mark.rule("6.56")
async def test_what_no_epoch_pays_yet_waits_for_one(world: Market) -> None:
    market = paid(world, is_posted=False)
    market.announce()
    await market.look()
    assert not market.node.ended
    record = market.state.epochs[1]
    with market.state.transaction():
        market.state.epochs[1] = EpochRecord(
            1, record.leaves, record.root, (), UnixSeconds(1), is_posted=True
        )
    await market.look(times=2)
    assert market.executed() == [0, 0]


@pytest.mark.rule("6.56")
async def test_a_job_that_nobody_was_paid_for_is_settled(world: Market) -> None:
    market = paid(world)
    market.archive.credits.clear()
    market.announce()
    await market.look(times=2)
    assert market.executed() == [PAY, PAY] and not market.node.ended


@pytest.mark.rule("6.56")
async def test_pay_that_is_not_worth_the_gas_is_not_answered(
    world: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement_answers, "LEAST", Amount(PAY + 1))
    market = paid(world)
    market.announce()
    await market.look()
    assert not market.node.ended


@pytest.mark.rule("6.56")
async def test_an_archive_that_lacks_entries_is_told_once(
    world: Market, caplog: pytest.LogCaptureFixture
) -> None:
    market = paid(world)
    for owner in OWNERS[:2]:
        del market.archive.credits[owner, 0]
    market.announce()
    await market.look(times=3)
    assert not market.node.ended
    told = [record for record in caplog.records if "lacks entries" in record.getMessage()]
    assert len(told) == 2, "once for each execution"


@pytest.mark.rule("6.56")
async def test_a_refused_answer_does_not_hold_up_the_others(world: Market) -> None:
    """Somebody else has answered the first share already."""
    market = paid(world)
    market.announce()
    await market.look()
    first = next(iter(market.answers._open.values()))
    assert isinstance(first, Opening)
    market.answers._open.clear()
    market.answers._open[settlement_answers.key_of(first)] = first
    kept, market.node.kept = market.node.kept, []
    await market.look()
    assert len(market.answers._refused) == 2, "the chain knows this announcement no more"
    market.node.kept = kept
    market.answers._refused.clear()
    market.answers._logs._read_to = 0
    await market.look(times=2)
    assert market.executed() == [0, 0]


def test_an_entry_is_proven_in_the_log_of_its_epoch() -> None:
    owner = Address(b"\x01" * 20)
    entries = [
        CreditEntry(owner, place, keccak256(bytes([place])), Amount(place)) for place in range(9)
    ]
    hashes = [credit_entry(it.assignment_id, it.pay) for it in entries]
    for count in range(1, 10):
        root = FullLog(hashes[:count]).root()
        for place in range(9):
            found = prove(entries, place, root)
            assert (found is None) == (place >= count)
            assert found is None or is_included(root, hashes[place], found)
    assert prove(entries, 0, Hash32(bytes(32))) is None
