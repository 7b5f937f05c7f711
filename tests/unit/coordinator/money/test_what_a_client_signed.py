"""Tests that a client pays at most what it signed, and that nobody else can sign for it.

The rules are I4 and PROTOCOL §4, §5 Draw, §6 Voucher.
"""

import pytest

from quorate.base.errors import EvidenceError
from quorate.trust.charge_verification import check_ordered, check_receipt
from quorate_coordinator.core.jobs import orders
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import AwaitingRound, Ended, Matching, Running
from quorate_coordinator.core.model.lease import Accepted, Committed
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import document
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Amount, Bps, Hash32, Label, Outcome, Small
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import COORDINATOR, DOMAIN, Market, Party, StoppingMarket
from support.receipt_readers import own_record
from support.refusals import refuses

WATCHER, STRANGER = KeySigner(b"\x61" * 32), KeySigner(b"\x62" * 32)


@pytest.mark.rule("I4")
def test_a_fee_above_the_one_that_it_signed_is_refused() -> None:
    market = Market(*[Party(number) for number in range(3)])
    market.order(0, 1)
    for fee, is_taken in ((500, True), (501, False)):
        market.core.rules = replace(market.core.rules, fee_bps=Bps(fee))
        if is_taken:
            market.order(0, fee)
            continue
        with refuses(Code.PRICE_TOO_HIGH, "maxFeeBps 500"):
            market.order(0, fee)


def vouch(
    market: Market,
    amount: int,
    signer: KeySigner | None = None,
    coordinator: Address = COORDINATOR.address,
) -> None:
    voucher = Voucher(market.clients[0].address, coordinator, Amount(amount))
    key = signer or market.sessions[0]
    market.send(ev.VoucherReceived(seal(DOMAIN, voucher, key.sign), key.address))


@pytest.mark.rule("3.22", "4.32")
def test_a_voucher_only_grows_covers_what_was_charged_and_needs_its_session() -> None:
    market = Market(*[Party(number) for number in range(3)])
    # so that the market's clients sign no voucher by themselves
    everybody, market.clients = market.clients, []
    job_id = _order(market, everybody)
    market.until_decided(job_id)
    market.clients = everybody
    charged = market.core.state.clients[everybody[0].address].charged
    assert charged == 2040
    refusals = [
        (50_000_001, None, COORDINATOR.address, Code.INSUFFICIENT_FUNDS),
        (charged, STRANGER, COORDINATOR.address, Code.WRONG_SIGNER),
        (charged, None, STRANGER.address, Code.WRONG_SIGNER),
    ]
    for amount, signer, coordinator, code in refusals:
        with refuses(code):
            vouch(market, amount, signer, coordinator)
    vouch(market, charged - 1)
    assert market.core.state.clients[everybody[0].address].vouched == charged - 1
    assert not any(payee.final for payee in market.core.state.payees.values()), (
        "one unit is missing: it stays held"
    )
    with refuses(Code.STALE):
        vouch(market, charged - 2)
    vouch(market, charged)
    assert sum(payee.final for payee in market.core.state.payees.values()) == 2000


def _order(market: Market, everybody: list[KeySigner]) -> Hash32:
    market.clients = everybody
    job_id = market.order_on_credit(0, 1)
    market.clients = []
    return job_id


@pytest.mark.rule("3.10", "3.17", "5.11")
@pytest.mark.parametrize("watcher", [None, WATCHER])
def test_only_its_session_or_the_watcher_that_it_named_witnesses(watcher: KeySigner | None) -> None:
    market = LargeMarket()
    job_id = market.order(0, 1, **({"witness": watcher.address} if watcher else {}))
    phase = market.until(job_id, AwaitingRound)
    right = watcher or market.sessions[0]
    wrong = [
        STRANGER,
        market.clients[0],
        market.sessions[1],
        market.sessions[0] if watcher else WATCHER,
    ]
    for key in wrong:
        with refuses(Code.WRONG_SIGNER):
            market.witness(job_id, key)
        assert market.job(job_id).witness is None
    with pytest.raises(Refused):
        market.witness(job_id, right, beacon_round=phase.round + 1)
    market.witness(job_id, right)
    assert market.job(job_id).witness is not None


@pytest.mark.rule("3.16", "4.12")
def test_a_commit_without_a_stored_ciphertext_is_refused() -> None:
    """Without the ciphertext the provider could never reveal, or could choose its result at the
    reveal.
    """
    market = Market(*[Party(number) for number in range(3)])
    send, seen = market.send, []

    def without_store(event: ev.Event) -> object:
        if isinstance(event, ev.CommitReceived):
            with pytest.raises(Refused) as refused:
                send(replace(event, is_stored=False))
            seen.append(refused.value.code)
            lease = market.core.state.leases[event.commit.message.assignment_hash]
            assert isinstance(lease.phase, Accepted)
        return send(event)

    market.send = without_store  # type: ignore[method-assign]
    market.order(0, 1)
    market.deliver()
    assert seen == [Code.NOT_STORED]
    assert all(isinstance(lease.phase, Committed) for lease in market.core.state.leases.values())


@pytest.mark.rule("4.11", "5.36", "5.37")
def test_two_different_results_that_nobody_settles_cost_the_client_nothing() -> None:
    """With fewer than three answers one of them may come from a liar. The client pays nothing; the
    fund pays as far as it can.
    """
    market = Market(Party(0, lies=True), Party(1), Party(2, is_deaf=True))
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    verdict, client = market.verdict(job_id), market.client()
    assert verdict.outcome is Outcome.UNRESOLVED and not verdict.faulted
    assert client.charged == client.reserved == 0 and not market.core.state.faults


@pytest.mark.rule("5.35")
def test_silent_provider_is_not_paid_for_an_unstable_program() -> None:
    mute = Party(3, lies=True, is_mute=True)
    market = Market(*[Party(number, lies=True) for number in range(3)], mute)
    job_id = market.order(0, 2, max_executions=Small(4))
    market.until_decided(job_id, seconds=200)
    assert market.verdict(job_id).outcome is Outcome.UNRESOLVED
    paid = {owner: market.earned(owner) for owner in market.parties}
    assert (
        mute.commits and paid[mute.owner] == 0 and sum(amount > 0 for amount in paid.values()) == 3
    )


@pytest.mark.rule("I4", "3.23")
@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_stop_before_any_run_needs_the_clients_session_and_costs_nothing(
    is_assigned: bool,
) -> None:
    market = Market(*[Party(number) for number in range(3)])
    # there are three slots, so the last job waits
    jobs = [market.order(0, number) for number in range(1, 5)]
    job_id = jobs[0] if is_assigned else jobs[-1]
    assert isinstance(market.job(job_id).phase, Running if is_assigned else Matching)
    before, reserved = market.client().reserved, market.job(job_id).reserved
    for key in (STRANGER, market.sessions[1], market.clients[0]):
        with refuses(Code.UNKNOWN):
            market.stop(job_id, key)
    market.stop(job_id)
    assert isinstance(market.job(job_id).phase, Ended) and reserved > 0
    assert market.client().reserved == before - reserved and not market.client().charged


@pytest.mark.rule("5.42")
@pytest.mark.parametrize(
    ("changes", "is_taken"),
    [
        ({}, True),
        ({"rule": Label.UNVERIFIED}, False),
        ({"rule": Label.NONE}, False),
        ({"pool": Hash32(b"\x07" * 32)}, True),
    ],
)
def test_an_ack_with_a_weaker_rule_than_ordered_is_refused(
    changes: dict[str, object], is_taken: bool
) -> None:
    market = Market(*[Party(number) for number in range(3)])
    job = market.job(market.order(0, 1))
    ack, order = replace(job.ack.message, **changes), job.submission.order.message  # type: ignore[arg-type]
    if is_taken:
        check_ordered(ack, order)
    else:
        with pytest.raises(EvidenceError, match="was not ordered"):
            check_ordered(ack, order)
    if changes.get("rule") is Label.UNVERIFIED:
        check_ordered(ack, replace(order, accept_unverified=True))
    if "pool" in changes:
        with pytest.raises(EvidenceError, match="pool is not"):
            check_ordered(ack, replace(order, pool=job.ack.message.pool))


@pytest.mark.rule("I4")
@pytest.mark.parametrize(("fee", "is_taken"), [(500, True), (501, False)])
def test_a_receipt_with_a_fee_above_the_signed_one_is_no_evidence(
    fee: int, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client signs no voucher for it, whatever made the coordinator take the order."""
    monkeypatch.setattr(orders, "rate_fee", lambda context: 0)
    market = Market(*[Party(number) for number in range(3)])
    market.core.rules = replace(market.core.rules, fee_bps=Bps(fee))
    market.until_decided(market.order(0, 1))
    found = market.receipt(0)
    known = own_record(market, found)
    if is_taken:
        assert check_receipt(known, document(found), found.verdict).charged == 2_100
        return
    with pytest.raises(EvidenceError, match="maxFeeBps"):
        check_receipt(known, document(found), found.verdict)


@pytest.mark.rule("I4")
def test_a_stopped_run_is_marked_as_stopped_and_its_time_is_paid() -> None:
    """Its receipt differs from that of an abandoned run."""
    market = StoppingMarket(*[Party(number) for number in range(4)])
    market.until_decided(market.order(0, 1))
    found = market.receipt()
    stopped = check_receipt(own_record(market, found), document(found), found.verdict)
    assert stopped.is_stopped and stopped.verdict.outcome is Outcome.LAPSED and stopped.charged > 0
