"""Tests that the coordinator advances its cases to their end on the real contracts (I7).

Neither jurors nor a silent beacon can stop a case.
"""

import asyncio
from typing import cast

import pytest

from contracts.evm_node import EvmNode
from contracts.market import key, peopled
from contracts.trial import TRUTH, Trial, evidence_of
from quorate_contracts.bindings.court import CaseId, CaseOutcome, Phase
from quorate_coordinator.chain import court_driver
from quorate_coordinator.chain.court_driver import CourtDriver
from quorate_coordinator.core.accusations import Case
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_protocol.limits import DEVNET
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Nonce
from quorate_protocol.values import replace
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender
from support.markets.scripted_market import Market as ScriptedMarket

ACCUSED = key("owner0").address


def _kept(trial: Trial) -> tuple[CourtDriver, EvmNode]:
    """Returns a driver with one case, and its node."""
    node, core = EvmNode(trial.market.evm), CoordinatorCore(ScriptedMarket().core.rules)
    shown = [evidence_of(each) for each in trial.evidence]
    with core.state.transaction():
        core.state.cases["case"] = Case("case", ACCUSED, (), tuple(shown), Nonce(trial.case))
    world, clock = trial.market.contracts, cast(Clock, None)
    return CourtDriver(cast(ChainClient, node), world, core, cast(Sender, node), node, clock), node  # type: ignore[arg-type]


async def _look(keeper: CourtDriver, times: int = 3) -> None:
    for _ in range(times):
        await keeper.look()


@pytest.mark.rule("I7")
@pytest.mark.parametrize("silent", [0, 1, 4, 5])
async def test_jurors_that_withhold_their_reveals_do_not_stop_a_case(silent: int) -> None:
    """Otherwise one accomplice on a jury could keep a case open for ever, and nobody in it would
    be paid.
    """
    trial = Trial.opened(peopled(providers=9), ACCUSED)
    keeper, node = _kept(trial)
    trial.draw()
    trial.vote([TRUTH[:2]] * 7)
    if silent < 7:
        trial.reveal([TRUTH[:2]] * (7 - silent), trial.jurors[silent:])
    await _look(keeper)
    assert silent == 0 or trial.now.phase is Phase.REVEALING, "they may until the end of the window"
    trial.market.evm.travel(DEVNET.jury_window + 1)
    await _look(keeper)
    assert trial.now.phase is Phase.DECIDED
    assert trial.now.outcome is (CaseOutcome.CONVICTED if silent < 5 else CaseOutcome.VOID)
    assert trial.market.evm.ask(trial.market.contracts.stakes.frozen(ACCUSED)) == 0
    assert not any(isinstance(ended, Refused) for ended in node.ended.values()), node.ended


@pytest.mark.rule("5.134")
async def test_a_case_whose_step_takes_long_blocks_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dear case's transaction does not end; the cheap case, behind it, goes to its end."""
    trial = Trial.opened(peopled(providers=9), ACCUSED)
    keeper, _ = _kept(trial)
    cheap, slow = keeper.core.state.cases["case"], CaseId(trial.case + 1)
    with keeper.core.state.transaction():
        del keeper.core.state.cases["case"]
        keeper.core.state.cases["dear"] = replace(cheap, key="dear", case_id=Nonce(slow))
        keeper.core.state.cases["cheap"] = cheap
    step = CourtDriver._move

    async def move(self: CourtDriver, case: Case, number: CaseId) -> None:
        if number == slow:
            await asyncio.Event().wait()
        await step(self, case, number)

    monkeypatch.setattr(CourtDriver, "_move", move)
    monkeypatch.setattr(court_driver, "POLL_SECONDS", 0.01)
    await _look(keeper)
    trial.jurors = trial.now.jurors
    trial.vote([TRUTH[:2]] * 7)
    trial.reveal([TRUTH[:2]] * 7)
    await _look(keeper)
    assert trial.now.outcome is CaseOutcome.CONVICTED and set(keeper.steps) == {slow}
    keeper.steps[slow].cancel()


async def test_if_the_beacon_stops_before_a_redraw_the_jurors_that_voted_decide() -> None:
    trial = Trial.opened(peopled(providers=9), ACCUSED)
    keeper, node = _kept(trial)
    trial.draw()
    trial.vote([TRUTH[:2]] * 6, trial.jurors[:6])
    node.is_silent = True
    trial.market.evm.travel(DEVNET.jury_window + 61)
    await _look(keeper)
    assert trial.now.phase is Phase.DRAWING and trial.now.is_redrawn
    trial.market.evm.travel(DEVNET.jury_beacon_missing + 20)
    await _look(keeper)
    assert trial.now.phase is Phase.REVEALING
    trial.reveal([TRUTH[:2]] * 6, trial.jurors[:6])
    await _look(keeper)
    assert trial.now.outcome is CaseOutcome.CONVICTED
