"""Tests what `node status` shows of the owner's cases, on the real contracts."""

from typing import cast

import pytest

from contracts.evm_node import EvmNode
from contracts.market import COORDINATOR, Market, key, peopled
from contracts.test_appeals import OWNER, Appeal
from contracts.trial import Trial
from quorate_contracts.bindings.court import CaseId
from quorate_contracts.watch import open_cases
from quorate_contracts.watch.open_cases import OpenCases, due_at
from quorate_node.appeals.own_cases import case_line, own_cases
from quorate_node.chain.account_state import AccountState
from quorate_node.cli_status import account_lines
from quorate_protocol.codec import canonical
from quorate_protocol.units import Address, UnixSeconds
from quorate_runtime.chain.client import ChainClient


def cases_of(world: Market, account: Address) -> OpenCases:
    return OpenCases.of(cast(ChainClient, EvmNode(world.evm)), world.contracts, account)


async def lines(world: Market, cases: OpenCases) -> list[str]:
    """Returns what `node status` says of the cases, from the daemon's answer."""
    shown = own_cases(await cases.look(), cases.account, world.contracts.deployment)
    state = AccountState(cases.account, cases=shown, read_at=UnixSeconds(world.evm.now))
    told = account_lines(canonical.to_json(state))
    return [line.strip() for line in told if "case" in line]


@pytest.mark.rule("5.135")
async def test_an_owner_sees_its_appeal_with_what_happens_next_and_until_when() -> None:
    world = peopled()
    cases = cases_of(world, OWNER.address)
    assert await lines(world, cases) == []
    appeal = Appeal.of(world).opened_at_court()
    start = f"your appeal, case {appeal.case} with 3.85 USD of bond: "
    end = "; then type `quorate node appeal JOB` again"
    [line] = await lines(world, cases)
    assert line.startswith(f"{start}the beacon draws the jury: waits until ") and line.endswith(end)
    appeal.draw()
    [line] = await lines(world, cases)
    assert line.startswith(f"{start}the jury repeats the execution: waits until 20"), line
    world.evm.now = appeal.now.deadline
    [line] = await lines(world, cases)
    assert line == f"{start}the jury repeats the execution: due now{end}"
    own = appeal.own()
    appeal.vote([own] * 7)
    assert "the jury reveals its votes: waits" in (await lines(world, cases))[0]
    appeal.reveal([own] * 7)
    assert "anybody opens the results: due now" in (await lines(world, cases))[0]
    assert due_at(world.contracts.deployment, appeal.now) == 0
    appeal.decide()
    assert await lines(world, cases) == []


async def test_an_owner_sees_the_case_against_it_and_others_do_not() -> None:
    world = peopled()
    trial = Trial.opened(world, OWNER.address)
    [line] = await lines(world, cases_of(world, OWNER.address))
    assert line.startswith(f"case {trial.case} against this provider: the beacon draws the jury")
    assert await lines(world, cases_of(world, key("owner5").address)) == []
    [number] = await cases_of(world, trial.now.accuser).look()
    shown = own_cases({number: trial.now}, trial.now.accuser, world.contracts.deployment)
    assert case_line(shown[0], world.evm.now).startswith(f"your case {number} with ")


async def test_cases_are_found_behind_many_others_and_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_cases, "CASES_MAX", 2)
    monkeypatch.setattr(open_cases, "AGAIN", 1)
    world = peopled()
    watch = cases_of(world, COORDINATOR.address)
    assert await watch.look() == {}
    opened = [Appeal.of(world).opened_at_court().case for _ in range(4)]
    for shown in (opened[2:], opened):  # the first look takes the newest, the next one older ones
        assert sorted(await watch.look()) == shown
    opened += [Appeal.of(world).opened_at_court().case for _ in range(3)]
    for count in (5, 6, 7):
        assert sorted(await watch.look()) == opened[:count]


async def test_cases_of_long_ago_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_cases, "CASES_MAX", 1)
    monkeypatch.setattr(open_cases, "AGAIN", 1)
    monkeypatch.setattr(open_cases, "OLDEST_SECONDS", 100)
    world = peopled()
    opened = []
    for _ in range(3):
        opened.append(Appeal.of(world).opened_at_court().case)
        world.evm.travel(101)
    watch = cases_of(world, COORDINATOR.address)
    for shown in (opened[2:], opened[1:], opened[1:], opened[1:]):
        assert sorted(await watch.look()) == shown


def test_the_next_step_of_a_drawing_is_due_when_its_round_appears() -> None:
    world = peopled()
    appeal = Appeal.of(world).opened_at_court()
    case = world.evm.ask(world.contracts.court.case(CaseId(appeal.case)))
    at = due_at(world.contracts.deployment, case)
    assert world.evm.ask(world.contracts.beacon.round_at(UnixSeconds(at))) == case.round
    assert world.evm.ask(world.contracts.beacon.round_at(UnixSeconds(at - 1))) == case.round - 1
