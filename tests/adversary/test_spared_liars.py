"""Attacks of a coordinator that spares a liar, or dates a CommitSet far ahead."""

from collections.abc import Callable

import pytest

from quorate_coordinator.core.audit import repeats, verdicts
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DAY
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import Receipt, document
from quorate_protocol.rules.receipts import receipt_checks
from quorate_protocol.units import UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.bls import verify_round
from quorate_runtime.keys.crypto import recover
from support.markets.scripted_market import DOMAIN, STATEMENT, Market, Party
from support.receipts import verdict_again

Attack = Callable[..., None]


def failures(market: Market) -> set[str]:
    body: Receipt = canonical.decode(Receipt, market.receipts[-1])
    report = receipt_checks.verify(document(body), recover, verify_round)
    return {check.name for check in report.failures}


@pytest.mark.rule("5.114")
def test_a_coordinator_cannot_spare_a_liar_whose_fault_is_confirmed(
    monkeypatch: pytest.MonkeyPatch, attack: Attack
) -> None:
    market = Market(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    with monkeypatch.context() as patch:
        accept = verdicts._accept
        patch.setattr(verdicts, "_accept", lambda *known: accept(*known[:3], [], []))
        market.until_decided(market.order(0, 1))
    assert failures(market) == {"verdict:confirmed"}
    attack(
        name="a coordinator leaves a liar out of `faulted`",
        before="the receipt verifies",
        now="refused: verdict:confirmed",
        cost="its receipt",
    )


@pytest.mark.rule("5.114")
def test_a_coordinator_cannot_spare_a_liar_by_asking_nobody(
    monkeypatch: pytest.MonkeyPatch, attack: Attack
) -> None:
    """It says that no member answered, and draws no owner in their place."""
    market = Market(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    with monkeypatch.context() as patch:
        patch.setattr(repeats, "begin", lambda context, job, group, wanted: job)
        patch.setattr(verdicts, "EXECUTIONS_MAX", 0)
        market.until_decided(market.order(0, 1))
    assert failures(market) == {"verdict:unconfirmed"}
    attack(
        name="a coordinator says that no member repeats",
        before="the receipt verifies, and the liar is spared",
        now="refused: verdict:unconfirmed",
        cost="its receipt",
    )


@pytest.mark.rule("5.28")
@pytest.mark.parametrize(("late", "found"), [(DAY, False), (3_650 * DAY, True)])
def test_a_commit_set_is_not_closed_ten_years_ahead(late: int, found: bool) -> None:
    market = Market(*[Party(number) for number in range(4)])
    market.until_decided(market.order(0, 1))
    body: Receipt = canonical.decode(Receipt, market.receipts[-1])
    last = max(item.commit_receipt.message.time for item in body.executions)
    said = replace(body.batches[0].message, closed_at=UnixSeconds(last + late))
    forged = replace(body, batches=(seal(DOMAIN, said, STATEMENT.sign),))
    signed = verdict_again(forged, DOMAIN, STATEMENT.sign, time=UnixSeconds(last + late + 60))
    report = receipt_checks.verify(document(signed), recover, verify_round)
    assert {check.name for check in report.failures} == ({"closedAt[0]"} if found else set())
