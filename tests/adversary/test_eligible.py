"""Attacks of a coordinator that chooses who may audit, and the rule against that."""

from collections.abc import Callable

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import AwaitingRound, Decided
from quorate_protocol.codec import canonical
from quorate_protocol.limits import SILENT_SKIPS_MAX
from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import WITHDRAWN, OfferEnvelope
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.rules.receipts import receipt_pins
from quorate_protocol.units import Address, BlockNumber, Hash32, Outcome, Sequence
from quorate_protocol.values import replace
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import CPUS, DOMAIN, Market, Party
from support.receipts import report_of

Attack = Callable[..., None]


class ChoosyMarket(Market):
    """A market whose coordinator leaves owners out of the list that the Ack names."""

    left_out: tuple[Address, ...] = ()

    def order(self, who: int, nonce: int, **changes: object) -> Hash32:
        market = self.core.state.market
        honest = market.eligible(CPUS.id())
        slots = [slot for slot in honest if slot.owner not in self.left_out]
        chosen = market._keep_list(EligibleList(slots, honest.length))
        kept = (CPUS.id(),)
        market._kept[kept] = replace(market._kept[kept], eligible=chosen)
        return super().order(who, nonce, **changes)


def shown(market: Market) -> Receipt:
    body: Receipt = canonical.decode(Receipt, market.receipts[-1])
    return body


def on_chain(market: Market) -> tuple[StakeSlot, ...]:
    return market.core.state.pool_slots[CPUS.id()].slots


def failures(market: Market) -> list[str]:
    assert report_of(market.receipts[-1]).valid, report_of(market.receipts[-1]).failures
    checks = receipt_pins.list_checks(shown(market), on_chain(market))
    return [check.name for check in checks if not check.is_good]


def withdraw(market: Market, party: Party) -> None:
    offer = market.core.state.providers[party.owner].offer
    assert offer is not None
    gone = replace(offer, seq=Sequence(offer.seq + 1), expires=WITHDRAWN)
    envelope = OfferEnvelope(gone, seal(DOMAIN, gone.signed(), party.key.sign))
    market.send(ev.OfferReceived(envelope, party.key.address))


@pytest.mark.rule("3.11", "3.61")
def test_an_owner_that_a_coordinator_leaves_out_makes_the_receipt_false(attack: Attack) -> None:
    market = ChoosyMarket(*[Party(number) for number in range(6)])
    market.left_out = tuple(list(market.parties)[4:])
    market.until_decided(market.order(0, 1))
    names = failures(market)
    assert "chain:eligible" in names
    attack(
        name="a coordinator leaves live owners out of the draw",
        before="verify --rpc says valid",
        now="verify --rpc refuses the receipt by name",
        cost="its receipts; each client can show them",
    )


@pytest.mark.rule("3.11", "3.26")
def test_owners_without_heartbeats_stay_on_the_list_and_withdrawn_ones_leave_it() -> None:
    market = Market(*[Party(number) for number in range(6)])
    asleep, left = list(market.parties.values())[4:]
    asleep.is_deaf = True
    for _ in range(60):
        market.beat()
    withdraw(market, left)
    eligible = market.core.state.market.eligible(CPUS.id())
    owners = {slot.owner for slot in eligible}
    assert asleep.owner in owners and left.owner not in owners and eligible.length == 6
    market.until_decided(market.order(0, 1))
    body = shown(market)
    assert not failures(market)
    assert [item.offer.message.provider for item in body.withdrawals] == [left.owner]
    forged = replace(body, withdrawals=())
    assert not all(check.is_good for check in receipt_pins.list_checks(forged, on_chain(market)))


@pytest.mark.rule("3.11")
def test_a_withdrawal_that_the_owner_did_not_sign_counts_for_nothing() -> None:
    market = Market(*[Party(number) for number in range(6)])
    withdraw(market, list(market.parties.values())[5])
    market.until_decided(market.order(0, 1))
    body = shown(market)
    gone, other = body.withdrawals[0], next(iter(market.parties))
    said = replace(gone.offer.message, provider=other)
    for forged in (
        replace(gone, offer=replace(gone.offer, message=said)),
        replace(gone, offer=replace(gone.offer, message=replace(said, expires=9))),
    ):
        names = {
            item.name for item in report_of(replace(body, withdrawals=(forged,)).encode()).failures
        }
        assert "signature:withdrawal[0]" in names


@pytest.mark.rule("5.103", "5.118")
def test_a_coordinator_cannot_claim_silence_until_a_friend_is_drawn(attack: Attack) -> None:
    """All but the primary and one owner are silent. Two passes of two draws meet six of them."""
    market = Market(*[Party(number, is_deaf=number > 1) for number in range(16)])
    job_id = market.order(0, 1)
    market.until_decided(job_id, seconds=900)
    body = shown(market)
    silent = [skip for skip in body.skips if skip.decline is None]
    phase = market.job(job_id).phase
    assert isinstance(phase, Decided) and report_of(market.receipts[-1]).valid
    by_draw = [sum(skip.batch == batch for skip in silent) for batch in (0, 1)]
    assert max(by_draw) <= 2 * (SILENT_SKIPS_MAX + 1)
    said = phase.verdict.message
    assert said.outcome is (Outcome.ACCEPTED if len(said.group) > 1 else Outcome.CANNOT_VERIFY), (
        said
    )
    attack(
        name="a coordinator claims silence of all that it does not like",
        before="up to 64 owners are passed over in a draw",
        now=f"{SILENT_SKIPS_MAX} are; the next one ends the draw",
        cost="the job ends without a verdict of acceptance",
    )


@pytest.mark.rule("5.118")
def test_silence_of_all_auditors_does_not_make_an_audited_job_a_held_one() -> None:
    market = LargeMarket()
    job_id = market.order(0, 1)
    while not isinstance(waiting := market.job(job_id).phase, AwaitingRound):
        market.beat()
    for owner, party in market.parties.items():
        party.is_deaf = owner != waiting.committed[0].slot.owner
    for _ in range(900):
        if market.receipts:
            break
        market.beat()
    assert report_of(market.receipts[-1]).valid
    assert shown(market).verdict.message.outcome is Outcome.CANNOT_VERIFY


def test_a_slot_counts_as_the_chain_has_it_at_the_block_of_the_ack() -> None:
    market = Market(*[Party(number) for number in range(6)])
    market.until_decided(market.order(0, 1))
    slots = on_chain(market)
    later = replace(slots[3], active_until=BlockNumber(shown(market).ack.message.slot_block))
    checks = receipt_pins.list_checks(shown(market), (*slots[:3], later, *slots[4:]))
    assert not all(check.is_good for check in checks)
