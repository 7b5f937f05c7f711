"""Orders with an escrow of their own: the chain pays them, and no tab is charged (PROTOCOL §6)."""

import pytest

from quorate_content.dag.cid import raw_cid
from quorate_coordinator.core import views
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import (
    AppendSummary,
    PayOrder,
    ReleaseOrder,
    Send,
    ShowExecution,
)
from quorate_coordinator.core.model.entities import AwaitingRound, Ended, Matching
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.commitment import assignment_id, check_opens
from quorate_protocol.messages.job_spec import Input
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, Comparator, Hash32, Label, Outcome, Small
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from support.markets.scripted_market import DOMAIN, STATEMENT, Market, Party
from support.refusals import refuses


class Escrowed(Market):
    """A market whose first client funds its orders in `Jobs`, and has no tab."""

    def send(self, event: ev.Event) -> object:
        if isinstance(event, ev.OrderReceived):
            event = replace(event, is_escrowed=True)
        answer = super().send(event)
        if isinstance(answer, Refused):
            raise answer
        return answer

    def order(self, who: int, nonce: int, **changes: object) -> Hash32:
        return super().order(who, nonce, prepays=False, **changes)


def a_market(*parties: Party) -> Escrowed:
    return Escrowed(*(parties or [Party(number) for number in range(4)]))


@pytest.mark.rule("6.74", "6.75", "6.81", "I1")
def test_an_escrowed_order_charges_nobody_and_its_executions_are_shown() -> None:
    market = a_market()
    account = market.clients[0].address
    with market.core.state.transaction():
        del market.core.state.clients[account]
    job_id = market.order(0, 1)
    job = market.job(job_id)
    assert job.ack.message.escrowed and job.ack.message.rule is Label.QUORUM_2
    market.until_decided(job_id)
    job, state = market.job(job_id), market.core.state
    client = state.clients[account]
    assert client.charged == client.reserved == 0 and not client.open_charges
    assert not any(market.earned(owner) for owner in market.parties) and not state.own.fee
    assert job.is_readable and job.is_released, "no voucher is needed"
    view = views.run_view(state, job, True)
    assert view.charged == 0 and [item.pay for item in view.executions] == [1000, 1000]
    assert view.output is not None

    shown = market.sent(ShowExecution)
    order = job.submission.order.message
    for effect in shown:
        run = effect.run
        assert (
            effect.order == order
            and recover(digest(DOMAIN, run.receipt.message), run.receipt.sig) == STATEMENT.address
        )
        assert run.receipt.message.commit_hash == digest(DOMAIN, run.commit.message)
        assert run.assignment.message.assignment_id == assignment_id(job_id, run.index, run.blind)
        check_opens(run.commit.message, run.reveal)
    (pay,) = market.sent(PayOrder)
    assert pay.order == order and pay.not_before == market.at + DEVNET.evidence_window
    assert list(pay.providers) == sorted(item.run.assignment.message.provider for item in shown)
    assert len(pay.providers) == 2

    sent = [effect.frame for effect in market.sent(Send)]
    told = [frame for frame in sent if isinstance(frame, frames.CommitSetSent)]
    assert [frame.escrowed for frame in told] == [
        frames.EscrowedOrder(order, state.leases[frame.assignment_hash].index) for frame in told
    ]
    (line,) = market.sent(AppendSummary)
    pays = [item.pay for item in line.line.message.executions]
    assert pays == [1000, 1000], "the log shows the same bill"
    assert market.receipt(0).ack.message.escrowed


@pytest.mark.rule("6.79")
def test_the_budget_of_an_order_that_nobody_executed_is_released() -> None:
    market = a_market(*[Party(number, is_deaf=True) for number in range(3)])
    job_id = market.order(0, 1)
    while not isinstance(market.job(job_id).phase, Ended):
        market.at += 20
        market.beat()
    (release,) = market.sent(ReleaseOrder)
    assert release.order == market.job(job_id).submission.order.message
    assert not market.sent(PayOrder)


def test_an_order_without_two_that_agree_is_neither_shown_nor_released() -> None:
    liars = [Party(number, lies=True) for number in range(3)]
    market = a_market(*liars)
    job_id = market.order(0, 1, max_executions=Small(3))
    market.until_decided(job_id)
    assert market.verdict(job_id).outcome is Outcome.UNRESOLVED
    assert not any(map(market.sent, (ShowExecution, PayOrder, ReleaseOrder)))


SOURCED = Input(str(raw_cid(b"w")), "/inputs/w", 1, "https://a.example/w")


@pytest.mark.rule("4.86", "6.79", "6.91")
@pytest.mark.parametrize(
    ("count", "changes", "code"),
    [
        (2, {"accept_unverified": True}, Code.TOO_FEW_OWNERS),
        (4, {"comparator": Comparator.NUMERIC}, Code.UNSUPPORTED),
        (4, {"budget": Amount(100)}, Code.BAD_AMOUNT),
        (4, {"inputs": (SOURCED,), "accept_unverified": True}, Code.UNSUPPORTED),
    ],
)
def test_an_order_that_its_escrow_could_not_pay_is_refused(
    count: int, changes: dict[str, object], code: Code
) -> None:
    market = a_market(*[Party(number) for number in range(count)])
    with refuses(code):
        market.order(0, 1, **changes)
    assert not market.core.state.jobs
    (release,) = market.sent(ReleaseOrder)
    with refuses(Code.REPLAYED):
        market.order(0, 1, **changes)
    assert market.sent(ReleaseOrder) == [release]


@pytest.mark.parametrize("is_running", [False, True])
def test_a_stop_counts_only_before_the_run(is_running: bool) -> None:
    """The chain pays only results that agree, so a stopped execution would be unpaid."""
    market = a_market(*[Party(number) for number in range(3)])
    jobs = [market.order(0, number) for number in range(1, 5)]
    job_id = jobs[0] if is_running else jobs[-1]
    if is_running:
        market.deliver()
    assert isinstance(market.job(job_id).phase, AwaitingRound if is_running else Matching)
    if is_running:
        with refuses(Code.UNSUPPORTED):
            market.stop(job_id)
        market.until_decided(job_id)
        return
    market.stop(job_id)
    assert isinstance(market.job(job_id).phase, Ended)
    assert market.sent(ReleaseOrder)
