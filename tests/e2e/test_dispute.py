"""Disputes about money, on anvil: a provider is paid what was signed to it, by its daemon alone.

The token is a stablecoin that is not ours, and `quorate chain deploy` made the contracts.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate_contracts.money_texts import read_currency
from quorate_contracts.watch import alone
from quorate_contracts.watch.watch_file import (
    Action,
    Watched,
    WatchState,
    locked,
    read_watch,
    write_watch,
)
from quorate_coordinator.chain.demand_answers import DemandAnswers
from quorate_coordinator.core.entities import EpochRecord
from quorate_coordinator.core.state import State
from quorate_node.chain.calls import ask
from quorate_node.daemon import ProviderDaemon
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages import frames
from quorate_protocol.messages.signed import Statement
from quorate_protocol.refusals import Unavailable
from quorate_protocol.rules import epoch_tree
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.units import ZERO_HASH, Address, Amount, Sequence, UnixSeconds
from quorate_runtime.chain import Sender
from quorate_runtime.clock import SystemClock
from support.markets.posted_epochs import CLIENT, post_epoch
from support.markets.scripted_coordinator import (
    COORDINATOR,
    OPERATOR,
    OWNER,
    Stage,
    running,
    stage,
    until,
)

pytestmark = pytest.mark.anvil
BOND, PENALTY, FEE = DEVNET.coordinator_bond, DEVNET.void_penalty, DEVNET.jury_gas_fee
START = 1000 * USD - 100 * USD  # the owner's tokens once its slot is staked


@pytest.fixture
async def market(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path, is_anvil=True) as found:
        made = found.contracts.deployment
        currency = await read_currency(found.client, made.chain_id, made.token)
        assert currency.name.startswith("USDC ")
        await found.send(OWNER, "bond", found.contracts.token.transfer(OPERATOR.address, FEE))
        yield found


async def promise(market: Stage, final: int, epoch: int, seq: int = 1) -> None:
    """The coordinator signs a statement and sends it to the provider."""
    message = statement(final, epoch, seq)
    await market.coordinator.send(frames.StatementSent(market.coordinator.seal(message)))


def statement(final: int, epoch: int, seq: int = 1) -> Statement:
    """A statement for the provider."""
    parts = Amount(final), Amount(0), Sequence(epoch), Sequence(seq)
    return Statement(OWNER.address, *parts, ZERO_HASH)


async def post(
    market: Stage, final: int, held: int, fees: int, is_shown: bool = True
) -> list[Leaf]:
    """The coordinator posts epoch 1 with a leaf of the provider, unless that is 0, and its own."""
    index = await ask(market.client, market.contracts.stakes.index_of(OWNER.address))
    mine = Leaf(index, OWNER.address, Amount(final), Amount(held), ZERO_HASH)
    others = Leaf(index + 1, COORDINATOR.address, Amount(fees), Amount(0), ZERO_HASH)
    leaves = [mine, others] if final else [others]
    if is_shown:
        leaf, proof = epoch_tree.prove(leaves, OWNER.address)
        tree = {"leaf": leaf, "proof": proof, "epoch": 1}
        market.coordinator.proofs[1] = {
            name: canonical.to_json(value) for name, value in tree.items()
        }
    await post_epoch(market, leaves)
    return leaves


def done(daemon: ProviderDaemon) -> list[str]:
    assert daemon.epoch_watcher is not None
    return [
        item.what if item.outcome == "sent" else item.outcome
        for item in daemon.epoch_watcher.acting.state.actions
    ]


async def did(daemon: ProviderDaemon, *names: str) -> None:
    """Waits until the watcher has done these things, and nothing else."""
    await until(lambda: len(done(daemon)) >= len(names) or None)
    assert done(daemon) == list(names)


async def travel(market: Stage, seconds: int) -> None:
    head = await market.client.head()
    await market.client.rpc.request("evm_mine", hex(head.time + seconds))


async def tokens(market: Stage, account: Address) -> int:
    return await ask(market.client, market.contracts.token.balance_of(account))


async def bond_of(market: Stage) -> int:
    return await ask(market.client, market.contracts.stakes.bond_of(COORDINATOR.address))


@contextlib.asynccontextmanager
async def watched(market: Stage) -> AsyncIterator[ProviderDaemon]:
    """The provider's daemon, whose watcher looks more often than in life."""
    async with running(market, market.daemon(market.coordinator.url)) as daemon:
        assert daemon.epoch_watcher is not None
        daemon.epoch_watcher.pause_seconds = 0.3
        yield daemon


@pytest.mark.rule("6.51")
async def test_a_coordinator_that_posts_less_than_its_statement_loses_bond(market: Stage) -> None:
    async with watched(market) as daemon:
        before = await tokens(market, OWNER.address)
        await promise(market, 60, epoch=1)
        await post(market, final=50, held=0, fees=30)
        await did(daemon, "challenge_statement", "withdraw", "withdraw")
        assert await bond_of(market) == BOND - PENALTY
        assert await tokens(market, OWNER.address) == before + 10
        assert await tokens(market, OPERATOR.address) == 2 * FEE
        epochs = market.contracts.epochs
        newest = await ask(market.client, epochs.newest_valid(COORDINATOR.address))
        assert newest.number == 0


@pytest.mark.rule("6.51")
async def test_a_coordinator_that_withholds_data_has_its_epoch_voided(market: Stage) -> None:
    async with watched(market) as daemon:
        await promise(market, 60, epoch=1)
        await post(market, final=0, held=0, fees=80, is_shown=False)
        await did(daemon, "demand_leaf")
        await travel(market, DEVNET.challenge_response + 1)
        await did(daemon, "demand_leaf", "close_demand", "withdraw", "withdraw")
        assert await bond_of(market) == BOND - PENALTY
        assert await tokens(market, OPERATOR.address) == 2 * FEE


@pytest.mark.rule("6.51", "6.52")
async def test_a_coordinator_that_disappears_is_halted_and_all_get_theirs(market: Stage) -> None:
    async with watched(market) as daemon:
        before = await tokens(market, OWNER.address)
        await promise(market, 50, epoch=1)
        await post(market, final=50, held=10, fees=20)
        await promise(market, 75, epoch=2, seq=2)
        assert daemon.epoch_watcher is not None
        daemon.epoch_watcher.late_seconds = 0
        await did(daemon, "demand_epoch")
        await travel(market, DEVNET.halt_after + 1)
        await did(daemon, "demand_epoch", "halt", "withdraw", "file", "credit_filing")
        await travel(market, DEVNET.halt_settle + DEVNET.challenge_response + 1)
        await until(lambda: ("take_share" in done(daemon) and "claim" in done(daemon)) or None)
        await until(lambda: done(daemon)[-1] == "withdraw" or None)
        # 50 final and 10 held of the last epoch, and the other 15 and 10 of its bond
        assert await tokens(market, OWNER.address) == before + 50 + 10 + 25
        assert await tokens(market, OPERATOR.address) == 2 * FEE
        escrow = market.contracts.escrow
        await market.send(CLIENT, "rest", escrow.release_halted(COORDINATOR.address))
        free = await ask(market.client, escrow.free_of(CLIENT.address))
        assert free == 1000 - 80


@pytest.mark.rule("6.53")
async def test_a_coordinator_answers_a_demand_by_itself(market: Stage, tmp_path: Path) -> None:
    """Its API does not answer the provider, which therefore asks on chain."""
    async with watched(market) as daemon, answering(market, tmp_path) as state:
        await promise(market, 60, epoch=1)
        leaves = await post(market, final=60, held=0, fees=20, is_shown=False)
        root = epoch_tree.build(leaves).hash
        record = EpochRecord(1, tuple(leaves), root, (), UnixSeconds(0), is_posted=True)
        state.epochs[1] = record
        await did(daemon, "demand_leaf")
        epochs, challenges = market.contracts.epochs, market.contracts.challenges
        while (await ask(market.client, epochs.head(COORDINATOR.address))).demands:
            await asyncio.sleep(0.2)
        await travel(market, DEVNET.challenge_window)
        assert (await ask(market.client, epochs.newest_final(COORDINATOR.address))).number == 1
        assert await ask(market.client, challenges.credits(COORDINATOR.address)) == FEE
        assert await bond_of(market) == BOND and done(daemon) == ["demand_leaf"]


@contextlib.asynccontextmanager
async def answering(market: Stage, folder: Path) -> AsyncIterator[State]:
    """The coordinator's task that answers demands, with a state of its own."""
    state, clock = State(), SystemClock()
    chain_id = market.contracts.deployment.chain_id
    sender = Sender(market.client, COORDINATOR, folder / "answers", clock, chain_id=chain_id)
    parts = market.client, market.contracts, COORDINATOR.address, state, sender
    task = asyncio.create_task(DemandAnswers(*parts, DEVNET, clock).run())
    try:
        yield state
    finally:
        task.cancel()
        sender.close()


@pytest.mark.rule("6.54")
async def test_another_machine_watches_with_a_copy_of_the_evidence(
    market: Stage, tmp_path: Path
) -> None:
    """The provider's own machine is off."""
    signed = market.coordinator.seal(statement(60, epoch=1))
    evidence = Watched(COORDINATOR.address).with_statement(signed)
    write_watch(tmp_path, WatchState(OWNER.address, (evidence,)))
    made, actions = market.contracts.deployment, list[Action]()
    urls = (market.coordinator.url,)
    wanted = alone.Wanted(
        tmp_path, OWNER.address, made, market.chain_url, urls, OPERATOR, actions.append
    )
    async with alone.watcher_of(wanted, SystemClock()) as (watcher, leaves):
        await watcher.look_at_all()
        assert not actions
        await post(market, final=50, held=0, fees=30)
        await leaves.meet()
        await watcher.look_at_all()
        assert [item.what for item in actions] == ["challenge_statement", "withdraw", "withdraw"]
        with pytest.raises(Unavailable), locked(tmp_path):
            raise AssertionError("two watchers in one folder")
    assert await bond_of(market) == BOND - PENALTY
    assert read_watch(tmp_path, None).actions == tuple(actions)
