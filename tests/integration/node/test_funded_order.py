"""An order with an escrow of its own is paid although its coordinator shows nothing."""

import asyncio

import pytest

from quorate_contracts.calls import ask
from quorate_contracts.court_facts import RunEvidence, job_run
from quorate_devnet.chain.accounts import dev_account
from quorate_node.cli.owner_desk import owner_desk
from quorate_node.cli.settling import settle_one, table
from quorate_node.owner.funded_orders import FOLDER, State, kept
from quorate_node.owner.registration import network_of
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages import frames
from quorate_protocol.messages.commitment import assignment_id, commitment, result_digest
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Assignment, Commit, CommitReceipt, Order, Reveal
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    ZERO_ADDRESS,
    Address,
    Amount,
    ExitStatus,
    Hash32,
    UnixSeconds,
    pay_for,
)
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from support.markets.scripted_coordinator import COORDINATOR, OWNER, SPEC, Stage, running, until
from support.messages import an_order

CLIENT, OTHER, OTHER_KEY = (KeySigner(dev_account(i)) for i in (14, 15, 16))
BLINDS = Hash32(b"\x07" * 32), Hash32(b"\x08" * 32)
BUDGET = Amount(100_000)


async def chain_time(market: Stage) -> UnixSeconds:
    return UnixSeconds((await market.client.head()).time)


async def funded(market: Stage, pool: Hash32) -> Order:
    """A second owner stakes, and a client funds an order."""
    c, stake = market.contracts, Amount(100 * USD)
    now = await chain_time(market)
    parties = CLIENT.address, COORDINATOR.address
    order = an_order(*parties, SPEC, 1, now + 600, budget=BUDGET, pool=pool)
    mint = c.token.mint(CLIENT.address, BUDGET), c.token.mint(OTHER.address, stake)
    await market.send(COORDINATOR, "mint", *mint)
    keys = OTHER_KEY.address, OTHER.address, *BLINDS, network_of("http://127.0.0.1")
    staked = c.stakes.register(*keys), c.token.approve(c.stakes.address, stake)
    await market.send(OTHER, "join", *staked, c.stakes.open_slots(pool, 1))
    await market.send(
        CLIENT,
        "fund",
        c.token.approve(c.escrow.address, BUDGET),
        c.escrow.deposit(BUDGET, ZERO_ADDRESS),
        c.jobs.fund(market.coordinator.hash(order), BUDGET, UnixSeconds(now + 5000)),
    )
    return order


def assignment(market: Stage, order: Order, index: int, provider: Address, at: int) -> Assignment:
    sent = market.coordinator.assignment(SPEC, 1, order.pool).assignment.message
    named = assignment_id(market.coordinator.hash(order), index, BLINDS[index])
    return replace(sent, assignment_id=named, provider=provider, accept_by=UnixSeconds(at))


async def show_other(market: Stage, order: Order, mine: Commit, reveal: Reveal, at: int) -> None:
    """Shows the execution of the second owner, which has the same result."""
    c = market.coordinator
    assigned = assignment(market, order, 1, OTHER.address, at)
    lease, result = c.hash(assigned), result_digest(reveal.exit_status, reveal.output_digest)
    commit = replace(
        mine, assignment_hash=lease, commitment=commitment(lease, OTHER.address, BLINDS[0], result)
    )
    signed = seal(c.deployment.domain(), commit, OTHER_KEY.sign)
    receipt = c.seal(CommitReceipt(c.hash(commit), UnixSeconds(at)))
    opened = replace(reveal, assignment_hash=lease, provider=OTHER.address, salt=BLINDS[0])
    run = job_run(RunEvidence(1, BLINDS[1], c.seal(assigned), signed), receipt, opened)
    await market.send(CLIENT, "show", market.contracts.jobs.show(order, run))


@pytest.mark.rule("6.75", "6.78", "6.81")
@pytest.mark.parametrize("is_by_hand", [False, True], ids=["daemon", "command"])
async def test_owners_are_paid_by_what_they_show(market: Stage, is_by_hand: bool) -> None:
    c, escrow = market.coordinator, market.contracts.escrow
    async with running(market, market.daemon(c.url, 1500)) as daemon:
        assert daemon.core is not None
        core, config = daemon.core, daemon.config
        async with market.fast():
            order = await funded(market, core.terms.slots[0].pool.id())
        at = await chain_time(market)
        mine = assignment(market, order, 0, OWNER.address, at)
        await c.send(frames.AssignmentSent(c.seal(mine), SPEC, (f"{c.url}/v1/content",)))
        commit = (await c.first(frames.CommitSent)).commit.message
        now = max(await chain_time(market), UnixSeconds(at + -(-commit.usage_ms // 1000)))
        await c.send(frames.ReceiptSent(c.seal(CommitReceipt(c.hash(commit), now))))
        closed = c.commit_set(commit).commit_set.message
        closed = replace(closed, job_id=c.hash(order), blinds=(BLINDS[0],))
        told = frames.EscrowedOrder(order, 0)
        await c.send(frames.CommitSetSent(commit.assignment_hash, c.seal(closed), told))
        reveal = (await c.first(frames.RevealSent)).reveal
        assert reveal.exit_status == ExitStatus(0) and len(kept(config.path(FOLDER))) == 1
        async with market.fast():
            while await chain_time(market) <= now:  # nobody shows what lies ahead of the chain
                await asyncio.sleep(0.2)
            await show_other(market, order, commit, reveal, now)
            if not is_by_hand:
                await until(lambda: not kept(config.path(FOLDER)) or None, 60)
                assert core.pays[commit.assignment_hash].is_escrowed
    if is_by_hand:
        async with owner_desk(config, market.keys(), SystemClock()) as desk, market.fast():
            name = c.hash(order).hex()[:8]
            if (await table(desk, name))[0].state is State.SHOWABLE:
                try:
                    assert len(await settle_one(desk, name)) == 1
                except Refused as refusal:
                    assert refusal.detail == "shown", "by the daemon, just before it ended"
            with pytest.raises(Refused, match="it can be paid from") as refused:
                await settle_one(desk, name)
            assert refused.value.code is Code.WRONG_PHASE
            with pytest.raises(Refused, match="no evidence of such a job"):
                await settle_one(desk, "abcdef")
            head = await chain_time(market)
            await market.client.rpc.request("evm_mine", hex(head + DEVNET.evidence_window + 2))
            await settle_one(desk, name)
            assert (await table(desk, ""))[0].state is State.OVER
    paid = await ask(market.client, escrow.balance_of(OWNER.address))
    assert paid == pay_for(commit.usage_ms, mine.price_per_hour, BUDGET) > 0
    assert await ask(market.client, escrow.balance_of(OTHER.address)) == paid
