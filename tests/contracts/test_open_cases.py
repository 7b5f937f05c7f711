"""Tests what `node status` shows of the owner's cases, on the real contracts."""

from typing import cast

import pytest

from contracts.evm_node import EvmNode
from contracts.market import Market, key, peopled
from contracts.trial import Trial
from quorate_contracts import open_cases
from quorate_contracts.open_cases import OpenCases, due_at
from quorate_node.chain.account_state import AccountState
from quorate_node.chain.own_cases import case_line, own_cases
from quorate_node.cli_status import account_lines
from quorate_protocol.codec import canonical
from quorate_protocol.units import Address, UnixSeconds
from quorate_runtime.chain.client import ChainClient

OWNER = key("owner0")


def cases_of(world: Market, account: Address) -> OpenCases:
    return OpenCases.of(cast(ChainClient, EvmNode(world.evm)), world.contracts, account)


async def lines(world: Market, cases: OpenCases) -> list[str]:
    """Returns what `node status` says of the cases, from the daemon's answer."""
    shown = own_cases(await cases.look(), cases.account, world.contracts.deployment)
    state = AccountState(cases.account, cases=shown, read_at=UnixSeconds(world.evm.now))
    told = account_lines(canonical.to_json(state))
    return [line.strip() for line in told if "case" in line]


async def test_an_owner_sees_the_case_against_it_and_others_do_not() -> None:
    world = peopled()
    trial = Trial.opened(world, OWNER.address)
    cases, start = cases_of(world, OWNER.address), f"case {trial.case} against this provider: "
    [line] = await lines(world, cases)
    assert line.startswith(f"{start}the beacon draws the jury: waits until ")
    trial.draw()
    [line] = await lines(world, cases)
    assert line.startswith(f"{start}the jury repeats the execution: waits until 20"), line
    world.evm.now = trial.now.deadline
    [line] = await lines(world, cases)
    assert line == f"{start}the jury repeats the execution: due now"
    trial.vote([trial.own()] * 7)
    assert "the jury reveals its votes: waits" in (await lines(world, cases))[0]
    trial.reveal([trial.own()] * 7)
    assert "anybody opens the results: due now" in (await lines(world, cases))[0]
    assert due_at(world.contracts.deployment, trial.now) == 0
    assert await lines(world, cases_of(world, key("owner5").address)) == []
    [number] = await cases_of(world, trial.now.accuser).look()
    shown = own_cases({number: trial.now}, trial.now.accuser, world.contracts.deployment)
    assert case_line(shown[0], world.evm.now).startswith(f"your case {number} with ")
    trial.decide()
    assert await lines(world, cases) == []


async def test_cases_are_found_behind_many_others_and_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_cases, "CASES_MAX", 2)
    monkeypatch.setattr(open_cases, "AGAIN", 1)
    world = peopled()
    watch = cases_of(world, OWNER.address)
    assert await watch.look() == {}
    opened = [Trial.opened(world, OWNER.address).case for _ in range(4)]
    for shown in (opened[2:], opened):  # the first look takes the newest, the next one older ones
        assert sorted(await watch.look()) == shown
    opened += [Trial.opened(world, OWNER.address).case for _ in range(3)]
    for count in (5, 6, 7):
        assert sorted(await watch.look()) == opened[:count]


async def test_cases_of_long_ago_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_cases, "CASES_MAX", 1)
    monkeypatch.setattr(open_cases, "AGAIN", 1)
    monkeypatch.setattr(open_cases, "OLDEST_SECONDS", 100)
    world = peopled()
    opened = []
    for _ in range(3):
        opened.append(Trial.opened(world, OWNER.address).case)
        world.evm.travel(101)
    watch = cases_of(world, OWNER.address)
    for shown in (opened[2:], opened[1:], opened[1:], opened[1:]):
        assert sorted(await watch.look()) == shown


def test_the_next_step_of_a_drawing_is_due_when_its_round_appears() -> None:
    world = peopled()
    case = Trial.opened(world, OWNER.address).now
    at = due_at(world.contracts.deployment, case)
    assert world.evm.ask(world.contracts.beacon.round_at(UnixSeconds(at))) == case.round
    assert world.evm.ask(world.contracts.beacon.round_at(UnixSeconds(at - 1))) == case.round - 1
