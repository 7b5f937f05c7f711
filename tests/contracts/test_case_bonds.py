"""Tests that a case waits for its bond for as long as a court may hear it.

If the coordinator gave up the case, the provider that was caught could continue.
"""

import asyncio
from typing import cast

import pytest

from contracts.evm_node import EvmNode
from contracts.market import COORDINATOR, POSTER, Evidence, Market, key, peopled
from contracts.trial import evidence_of
from quorate_contracts.bindings.cases import case_bond
from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import OpenCase
from quorate_coordinator.core.state import State
from quorate_coordinator.effect_performer import EffectPerformer
from quorate_coordinator.storage.documents import JobDocuments
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.ports import Clock, Peers
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Amount, Price, usd
from quorate_protocol.values import replace
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender

ACCUSED = key("owner0").address
DEAR = Price(20 * USD)


def due_case(world: Market, **changes: object) -> tuple[OpenCase, Amount]:
    """Returns a case that is due, and its bond."""
    found: list[Evidence] = [
        world.execution(ACCUSED, key(name), b"lie", **changes) for name in ("client0", "client1")
    ]
    executions = tuple(evidence_of(item) for item in found)
    host_class = found[0].shown.run.assignment.message.host_class
    case = OpenCase("case-1", ACCUSED, host_class, executions)
    return case, case_bond([item.shown for item in found], DEVNET)


def performer_of(world: Market) -> EffectPerformer:
    async def submit(event: ev.Event) -> object:
        return None

    node, nothing = EvmNode(world.evm, POSTER.address), None
    return EffectPerformer(
        COORDINATOR.address,
        world.contracts,
        cast(ChainClient, node),
        DEVNET,
        cast(Peers, nothing),
        cast(JobDocuments, nothing),
        cast(Sender, node),
        cast(Clock, nothing),
        submit,
        submit,
        State(),  # type: ignore[arg-type]
    )


async def test_a_case_waits_for_its_bond() -> None:
    world = peopled()
    case, bond = due_case(world)
    performer, court, token = performer_of(world), world.contracts.court, world.contracts.token
    world.evm.send(key("minter").address, token.mint(POSTER.address, Amount(bond - 1)))
    with pytest.raises(
        Unavailable,
        match=(
            f"posting key 0x{POSTER.address.hex()} needs {usd(bond)} USD .* has "
            f"{usd(Amount(bond - 1))}: send 0.000001 .*token 0x.* on "
        ),
    ):
        await performer(case)
    assert world.evm.ask(court.case_count()) == 0
    world.evm.send(key("minter").address, token.mint(POSTER.address, Amount(1)))
    await performer(case)
    assert (
        world.evm.ask(court.case_count()) == 1
        and world.evm.ask(token.balance_of(POSTER.address)) == 0
    )
    await performer(case)  # again, as after a crash: the case is open, so no second bond is needed
    assert world.evm.ask(court.case_count()) == 1


@pytest.mark.rule("5.134")
async def test_a_dear_case_ahead_of_cheap_ones_blocks_none() -> None:
    """The bond of a client's dear executions is out of reach; the others' case opens meanwhile."""
    world = peopled()
    dear, bond = due_case(world, price_per_hour=DEAR, max_price_per_hour=DEAR)
    cheap, least = due_case(world)
    cheap = replace(cheap, key="case-2")
    performer, court, token = performer_of(world), world.contracts.court, world.contracts.token
    world.evm.send(key("minter").address, token.mint(POSTER.address, Amount(bond - 1)))
    results = await asyncio.gather(performer(dear), performer(cheap), return_exceptions=True)
    assert isinstance(results[0], Unavailable) and results[1] is None
    assert world.evm.ask(court.case_count()) == 1 and dear.lane != cheap.lane
    assert world.evm.ask(token.balance_of(POSTER.address)) == bond - 1 - least


async def test_a_case_whose_evidence_is_too_old_does_not_wait_for_its_bond() -> None:
    world = peopled()
    case, _ = due_case(world)
    world.evm.travel(60 + DEVNET.case_evidence_age)
    with pytest.raises(Refused, match="late"):
        await performer_of(world)(case)
