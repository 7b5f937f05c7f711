"""Tests that the coordinator advances its cases to their end on the real contracts (I7).

Neither jurors nor a silent beacon can stop a case.
"""

from typing import cast

import pytest

from contracts.evm_node import EvmNode
from contracts.market import key, peopled
from contracts.trial import TRUTH, Trial
from quorate_contracts.bindings.court import CaseOutcome, Phase
from quorate_coordinator.chain.court_driver import CourtDriver
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.effects import Evidence
from quorate_coordinator.core.entities import Case
from quorate_protocol.limits import DEVNET
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Nonce
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender
from support.markets.scripted_market import Market as ScriptedMarket

ACCUSED = key("owner0").address


def _kept(trial: Trial) -> tuple[CourtDriver, EvmNode]:
    """Returns a driver with one case, and its node."""
    node, core = EvmNode(trial.market.evm), CoordinatorCore(ScriptedMarket().core.rules)
    shown = [
        Evidence(s.order, s.session, s.index, s.blind, s.assignment, s.commit, each.reveal)
        for each in trial.evidence
        for s in [each.shown]
    ]
    with core.state.transaction():
        core.state.cases["case"] = Case("case", ACCUSED, (), tuple(shown), Nonce(trial.case))
    world, clock = trial.market.contracts, cast(Clock, None)
    return CourtDriver(cast(ChainClient, node), world, core, cast(Sender, node), node, clock), node  # type: ignore[arg-type]


async def _look(keeper: CourtDriver, times: int = 3) -> None:
    for _ in range(times):
        await keeper.look()


@pytest.mark.rule("I7")
@pytest.mark.parametrize("silent", [0, 1, 4])
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
    assert trial.now.outcome is (CaseOutcome.CONVICTED if silent < 3 else CaseOutcome.ACQUITTED)
    assert trial.market.evm.ask(trial.market.contracts.stakes.frozen(ACCUSED)) == 0
    assert not any(isinstance(ended, Refused) for ended in node.ended.values()), node.ended


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
