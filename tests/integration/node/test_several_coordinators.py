"""A provider of two coordinators: one is not registered yet, and both want the same run slot."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.limits import USD
from quorate_protocol.messages import frames
from quorate_protocol.units import Amount, DeclineReason
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.scripted_coordinator import (
    SPEC,
    STATEMENT,
    ScriptedCoordinator,
    Stage,
    running,
    until,
)

OTHER = KeySigner(dev_account(14))


@contextlib.asynccontextmanager
async def second_of(market: Stage) -> AsyncIterator[ScriptedCoordinator]:
    """Serves another coordinator, which the chain does not know."""
    first = market.coordinator
    second = ScriptedCoordinator(
        first.deployment, first.chain_url, first.store, account=OTHER.address
    )
    async with second.serving():
        yield second


async def register(market: Stage) -> None:
    contracts = market.contracts
    await market.send(
        OTHER,
        "second",
        contracts.token.mint(OTHER.address, Amount(2_000 * USD)),
        contracts.token.approve(contracts.stakes.address, Amount(1000 * USD)),
        contracts.stakes.register_coordinator(STATEMENT.address, OTHER.address),
    )


def newest_free(coordinator: ScriptedCoordinator) -> int | None:
    """Free run slots in the newest heartbeat."""
    beats = coordinator.got(frames.HeartbeatSent)
    return sum(item.free for item in beats[-1].heartbeat.message.free_slots) if beats else None


@pytest.mark.rule("3.48", "3.52")
async def test_two_coordinators_share_a_run_slot_and_one_may_come_later(market: Stage) -> None:
    async with second_of(market) as second:
        daemon = market.daemon(market.coordinator.url, duration_ms=60_000)
        urls = (second.url, market.coordinator.url)
        daemon.config = replace(daemon.config, coordinators=urls)
        async with running(market, daemon):
            await market.coordinator.first(frames.OfferSent)
            await market.coordinator.first(frames.HeartbeatSent)
            assert not second.frames, "the chain does not know it"
            await register(market)
            await second.first(frames.OfferSent, 30)
            await until(lambda: True if newest_free(second) == 1 else None)
            await market.assign(daemon)
            await market.coordinator.first(frames.AcceptSent)
            await until(lambda: True if newest_free(second) == 0 else None)
            assert daemon.core is not None
            pool = daemon.core.terms.slots[0].pool.id()
            await second.send(second.assignment(SPEC, 1, pool))
            decline = (await second.first(frames.DeclineSent)).decline.message
            assert decline.reason is DeclineReason.BUSY and decline.start_by > decline.time
            assert not second.got(frames.AcceptSent)
