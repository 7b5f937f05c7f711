"""Jobs within a tolerance draw their auditors from every pool that fits (PROTOCOL 2.22, 2.41)."""

from typing import TypeVar, cast

import pytest

from quorate.trust.receipt_chain import _ChainReader
from quorate_attestation.fits import are_pools_fitting
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.encodings import OPEN_BLOCK
from quorate_contracts.generated.contract_calls import Query
from quorate_contracts.generated.stakes import Slot
from quorate_coordinator.core.audit.trust import trust_class_of
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.model.effects import AppendSummary
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.classes import Pool, pools_id
from quorate_protocol.messages.job_spec import Compare, GpuRequest, Resources
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.refusals import Code
from quorate_protocol.units import Address, BlockNumber, Label, Outcome, Seconds, Small
from quorate_protocol.values import replace
from quorate_runtime.chain.client import BlockId, ChainClient
from support.markets.noisy_market import NUMERIC, NoisyMarket
from support.receipts import failures
from support.refusals import refuses

NAMES = ("L40S", "RTX A6000", "A100 SXM 80GB", "L4")
ONE, TWO, LARGE, SMALL = (Pool(name, "", Small(1)) for name in NAMES)
T = TypeVar("T")
GPU = Resources(gpu=GpuRequest(1, "", 40 * 10**9))
DEPLOYMENT = Deployment(
    31337,
    BlockNumber(0),
    "devnet",
    *(Address(bytes([number]) * 20) for number in range(1, 8)),
    bytes(96),
    Seconds(2),
    1,
)


def market_of(*pools: Pool) -> NoisyMarket:
    """An owner of each."""
    return NoisyMarket(*range(0, 50 * len(pools), 50), pools=pools)


@pytest.fixture(scope="module")
def market() -> NoisyMarket:
    """With six jobs that are decided. The smallest GPU fits by its offer alone."""
    made = market_of(ONE, TWO, ONE, TWO, SMALL)
    for nonce in range(1, 7):
        made.decided(nonce, resources=GPU)
    return made


@pytest.fixture(scope="module")
def crossed(market: NoisyMarket) -> Receipt:
    """A receipt whose auditor is of another pool than its primary."""
    bodies = (market.receipt(number) for number in range(6))
    return next(
        body
        for body in bodies
        if len({item.assignment.message.pool for item in body.executions}) == 2
    )


@pytest.mark.rule("2.22", "2.41", "5.38", "3.12")
def test_two_pools_of_too_few_owners_verify_together_what_has_a_tolerance(
    market: NoisyMarket,
) -> None:
    pools = tuple(sorted((ONE, TWO), key=Pool.id))
    for job in market.core.state.jobs.values():
        said = market.verdict(job.id)
        assert said.outcome is Outcome.ACCEPTED and said.label is Label.QUORUM_2
        assert job.pools == pools and job.list_lengths == (2, 2)
        assert job.ack.message.pool == pools_id((pools[0].id(), pools[1].id()))
        for name in job.leases:
            message = market.core.state.leases[name].assignment.message
            assert message.pool == market.parties[message.provider].pool.id()
    assert not any(failures(market.receipt(number)) for number in range(6))


@pytest.mark.rule("2.24")
def test_first_executions_go_to_one_of_the_pools(market: NoisyMarket) -> None:
    leases, jobs = market.core.state.leases, market.core.state.jobs.values()
    first = {leases[job.leases[0]].assignment.message.pool for job in jobs}
    assert first == {job.pool.id() for job in jobs} and len(first) == 1
    classes = {sent.line.message.trust_class for sent in market.sent(AppendSummary)}
    assert classes == {trust_class_of(job) for job in jobs} and len(classes) == 1


@pytest.mark.rule("7.34")
def test_a_pool_that_a_coordinator_leaves_out_is_missed_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = tuple(sorted((ONE.id(), TWO.id())))
    monkeypatch.setattr(offers, "auditing_pools", lambda *arguments: few)
    market = market_of(ONE, TWO, LARGE, ONE, TWO)
    job = market.decided(resources=GPU)
    assert are_pools_fitting(job.submission.spec, tuple(sorted((ONE, TWO, LARGE), key=Pool.id)))
    assert LARGE not in job.pools and not failures(market.receipt())


@pytest.mark.rule("2.22", "2.25")
def test_equal_bits_and_a_named_pool_need_owners_of_one_pool() -> None:
    market = market_of(ONE, TWO, ONE, TWO)
    for changes in ({"compare": Compare()}, {"compare": NUMERIC, "pool": ONE.id()}):
        with refuses(Code.TOO_FEW_OWNERS, "only 2 staked owners in the pool"):
            market.order(0, 1, resources=GPU, **changes)
    few = replace(DEVNET, class_owners_min_any=4)
    market.core.rules = replace(market.core.rules, limits=few)
    with refuses(Code.TOO_FEW_OWNERS, "an order that names no class needs 4 owners"):
        market.order(0, 1, resources=GPU)
    assert market.verdict(market.decided(resources=GPU).id).outcome is Outcome.ACCEPTED
    market.core.rules = replace(market.core.rules, limits=replace(few, class_owners_min_any=5))
    with refuses(Code.TOO_FEW_OWNERS, "an order that names no class needs 5 owners"):
        market.order(0, 3, resources=GPU, compare=NUMERIC)


@pytest.mark.rule("3.37", "5.16")
def test_a_receipt_names_each_pool_once_in_order_and_each_slot_in_its_own(crossed: Receipt) -> None:
    assert not failures(crossed)
    chain = crossed.taken_from_chain
    for pools in (crossed.pools[::-1], (*crossed.pools, ONE), crossed.pools[:1], (), (ONE, SMALL)):
        lengths = replace(chain, list_lengths=(2,) * len(pools))
        altered = replace(crossed, pools=pools, taken_from_chain=lengths)
        assert "pool" in failures(altered), pools
    shifted = replace(crossed, taken_from_chain=replace(chain, list_lengths=(0, 4)))
    assert "hash:slot[0]" not in failures(shifted), "offline the lengths are the receipt's word"
    primary, auditor = crossed.executions[:2]
    said = replace(auditor.assignment.message, pool=primary.assignment.message.pool)
    moved = replace(auditor, assignment=replace(auditor.assignment, message=said))
    assert "draw[0]" in failures(replace(crossed, executions=(primary, moved)))
    said = replace(said, pool=SMALL.id())
    moved = replace(auditor, assignment=replace(auditor.assignment, message=said))
    assert "terms[1]" in failures(replace(crossed, executions=(primary, moved)))
    for changes in ({"pool": crossed.ack.message.pool}, {"comparator": 1}):
        order = replace(crossed.order.message, **changes)  # type: ignore[arg-type]
        altered = replace(crossed, order=replace(crossed.order, message=order))
        assert "pool" in failures(altered), changes


class Chain(_ChainReader):
    """Answers from the coordinator's copy of the lists."""

    def __init__(self, body: Receipt, market: NoisyMarket) -> None:
        super().__init__(body, Contracts.of(DEPLOYMENT), ChainClient(None))  # type: ignore[arg-type]
        stakes, self.answers = self._contracts.stakes, dict[bytes, object]()
        for pool, listed in market.core.state.pool_slots.items():
            self.answers[stakes.slot_count(pool).data] = len(listed.slots)
            self.answers[stakes.slot_page(pool, 0).data] = [
                Slot(
                    *(it.owner, it.operator_key, it.payout, it.network),
                    it.active_from,
                    BlockNumber(OPEN_BLOCK),
                )
                for it in listed.slots
            ]

    async def _ask(self, query: Query[T], block: BlockId = "latest") -> T:
        assert block == self._body.ack.message.slot_block
        return cast(T, self.answers[query.data])

    async def failed(self) -> list[str]:
        return [check.name async for check in self._slots() if not check.is_good]


@pytest.mark.rule("3.61", "5.16")
async def test_verify_with_the_chain_joins_the_lists_of_all_pools(
    market: NoisyMarket, crossed: Receipt
) -> None:
    assert not await Chain(crossed, market).failed()
    chain = crossed.taken_from_chain
    shifted = replace(crossed, taken_from_chain=replace(chain, list_lengths=(1, 3)))
    assert await Chain(shifted, market).failed() == ["chain:length", "chain:length"]
    fewer = replace(crossed, pools=crossed.pools[:1])
    assert "chain:eligible" in await Chain(fewer, market).failed()
