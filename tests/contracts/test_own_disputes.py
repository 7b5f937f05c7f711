"""Tests `coordinator revoke` and `concede` on the real contracts, and the list of open appeals."""

import dataclasses
from typing import cast

import pytest

from contracts.challenged import FEE, PENALTY, WINDOW, bond_of, posted
from contracts.epoch_leaves import C, post
from contracts.evm_node import EvmNode
from contracts.market import COORDINATOR, Market, key, peopled
from contracts.test_appeals import OWNER, PAY, Appeal
from contracts.trial import Trial, money
from quorate_contracts.watch.open_cases import OpenCases
from quorate_coordinator.chain.own_disputes import (
    OwnDisputes,
    can_be_granted,
    granted_cost,
    lost_cost,
)
from quorate_coordinator.chain.own_money import OwnMoney
from quorate_coordinator.commands.status_command import _appeal
from quorate_coordinator.core.accusations import Case
from quorate_coordinator.monitoring.open_appeals import OpenAppeals, appeal_text
from quorate_coordinator.monitoring.operator_view import AppealView
from quorate_protocol.codec import canonical
from quorate_protocol.limits import JURORS
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Nonce
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender
from support.markets.scripted_market import Market as ScriptedMarket


def disputes(world: Market) -> tuple[OwnDisputes, EvmNode]:
    node = EvmNode(world.evm, COORDINATOR.address)
    client, sender = cast(ChainClient, node), cast(Sender, node)
    return OwnDisputes(OwnMoney(client, world.contracts, sender, str)), node


def appeals_of(world: Market, coordinator: bytes = C) -> OpenAppeals:
    state = ScriptedMarket().core.state
    client = cast(ChainClient, EvmNode(world.evm))
    return OpenAppeals(OpenCases.of(client, world.contracts, Address(coordinator)), state)


@pytest.mark.rule("6.46")
async def test_an_operator_takes_back_what_a_thief_posted() -> None:
    world, credits = posted(400)
    world.evm.travel(WINDOW)
    post(world, 2, credits)
    post(world, 3, credits)
    own, node = disputes(world)
    assert [epoch.number for epoch in await own.open_epochs()] == [2, 3]
    assert [epoch.number for epoch in await own.revocable(2)] == [2, 3]
    assert [epoch.number for epoch in await own.revocable(3)] == [3]
    for number, code in ((1, Code.TOO_LATE), (4, Code.UNKNOWN), (0, Code.UNKNOWN)):
        with pytest.raises(Refused) as found:
            await own.revocable(number)
        assert found.value.code is code, number
    before = bond_of(world)
    assert await own.revoke_cost() == PENALTY
    assert await own.revoke(2) == PENALTY == before - bond_of(world)
    assert await own.revocable(2) == await own.revocable(3) == [] == await own.open_epochs()
    assert await own.revoke(2) == 0 and len(node.ended) == 1, "a repeat sends nothing"
    post(world, 4, credits)
    assert [epoch.number for epoch in await own.open_epochs()] == [4]
    money(world)


@pytest.mark.rule("5.126")
async def test_an_operator_grants_an_appeal_before_its_jury_is_drawn() -> None:
    world = peopled()
    appeal = Appeal.of(world).opened_at_court()
    own, node = disputes(world)
    case = await own.appeal(appeal.case)
    assert not can_be_granted(dataclasses.replace(case, is_redrawn=True))
    assert await own.concede(appeal.case) == FEE + PAY <= granted_cost(case)
    assert await own.concede(appeal.case) == 0 and len(node.ended) == 1
    with pytest.raises(Refused, match=f"case {appeal.case} has ended"):
        await own.appeal(appeal.case)
    money(world)


async def test_an_appeal_with_a_jury_and_a_case_of_others_cannot_be_granted() -> None:
    world = peopled()
    appeal = Appeal.of(world).opened_at_court()
    own, _ = disputes(world)
    stranger = OwnDisputes(
        OwnMoney(own.money.client, world.contracts, cast(Sender, EvmNode(world.evm)), str)
    )
    with pytest.raises(Refused, match="no appeal against this coordinator"):
        await stranger.appeal(appeal.case)
    with pytest.raises(Refused, match="no appeal against this coordinator"):
        await own.appeal(appeal.case + 1)
    appeal.draw()
    with pytest.raises(Refused, match="has its jury"):
        await own.appeal(appeal.case)


@pytest.mark.rule("5.126")
async def test_status_lists_open_appeals_with_what_they_may_cost() -> None:
    world = peopled()
    watch, others = appeals_of(world), appeals_of(world, key("second").address)
    await watch.look()
    assert watch.views == ()
    appeal = Appeal.of(world).opened_at_court()
    job = Hash32(b"j" * 32)
    state = watch.state
    with state.transaction():
        state.cases["foreign"] = Case("foreign", C, (job,), (), Nonce(appeal.case))
    await watch.look()
    await others.look()
    assert others.views == ()
    [found] = watch.views
    on_chain = world.evm.ask(world.contracts.court.case(appeal.case))
    info = world.contracts.deployment.beacon_info()
    assert found.until == info.genesis_time + (on_chain.round - 1) * info.period > world.evm.now
    assert (found.provider, found.jobs, found.phase) == (OWNER.address, (job,), "drawing")
    assert found.granted_cost == on_chain.bond // JURORS
    assert found.lost_cost == lost_cost(on_chain)
    assert canonical.decode(AppealView, canonical.encode(found)) == found
    assert _appeal(found).endswith(" UTC") and _appeal(found).startswith(appeal_text(found))
    told = appeal_text(found)
    assert f"`quorate coordinator concede {appeal.case}` grants it for at most 0.55 USD" in told
    assert f"0x{job.hex()}" in told and "at most 4.40 USD" in told
    saved = world.fork()
    decided = dataclasses.replace(appeal, market=saved).judged([appeal.own()] * 7)
    assert decided.slashed <= found.lost_cost
    watch.cases.client = cast(ChainClient, EvmNode(saved.evm))
    await watch.look()
    assert watch.views == ()
    watch.cases.client = cast(ChainClient, EvmNode(world.evm))
    appeal.draw()
    await watch.look()
    [found] = watch.views
    assert (found.phase, found.can_be_granted) == ("voting", False)
    assert found.until == world.evm.ask(world.contracts.court.case(appeal.case)).deadline
    assert "concede" not in appeal_text(found)


async def test_a_case_that_a_coordinators_account_opened_is_no_appeal_against_it() -> None:
    world = peopled()
    trial = Trial.opened(world, OWNER.address)
    watch = appeals_of(world, trial.now.accuser)
    await watch.look()
    assert watch.views == () and list(watch.cases.found) == [trial.case]
