"""Attacks of a coordinator that signs what it likes about a job (PROTOCOL §5, §7).

Each receipt here has good signatures of the coordinator. `quorate verify` and the client check it
by one function.
"""

from functools import lru_cache

import pytest

from adversary.conftest import Attack
from quorate.base.errors import EvidenceError
from quorate.trust.charge_verification import check_receipt
from quorate_coordinator.core.audit import batches
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import AwaitingRound
from quorate_protocol.codec import canonical
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import BeaconEvidence, Receipt, document
from quorate_protocol.messages.signed import Witness
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.receipts import receipt_checks
from quorate_protocol.units import (
    PPM_ONE,
    ZERO_HASH,
    Address,
    Bps,
    Hash32,
    Outcome,
    Round,
    Seconds,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import DOMAIN, STATEMENT, Market, Party
from support.receipt_readers import own_record
from support.receipts import failures, verdict_again

CLIENT_KEY = 0  # the first client of the scripted market


@lru_cache(maxsize=1)
def honest() -> tuple[Market, Receipt]:
    """Returns a market and the receipt of its only job, under quorum-2."""
    market = Market(*[Party(number) for number in range(4)])
    market.until_decided(market.order(0, 1))
    return market, canonical.decode(Receipt, market.receipts[0])


def signed_again(body: Receipt, **changes: object) -> Receipt:
    """Returns the receipt with the coordinator's signature under what it changed."""
    return verdict_again(replace(body, **changes), DOMAIN, STATEMENT.sign)  # type: ignore[arg-type]


def with_ack(body: Receipt, **changes: object) -> Receipt:
    ack = seal(DOMAIN, replace(body.ack.message, **changes), STATEMENT.sign)  # type: ignore[arg-type]
    return signed_again(body, ack=ack)


@pytest.mark.rule("5.100", "5.101")
def test_a_coordinator_cannot_drop_a_witness(attack: Attack) -> None:
    """Without the witness the client would pay the audit of its job itself."""
    market = LargeMarket()
    job_id = market.order(0, 1)
    while not isinstance(phase := market.job(job_id).phase, AwaitingRound):
        market.beat()
    message = Witness(
        market.job(job_id).commits[0],
        market.job(job_id).ack.digest(DOMAIN),
        phase.round,
        UnixSeconds(market.at),
    )
    key = market.sessions[0]
    other = seal(DOMAIN, replace(message, ack_hash=ZERO_HASH), key.sign)
    with pytest.raises(Refused, match="ackHash"):
        market.send(ev.WitnessReceived(other, key.address))
    market.send(ev.WitnessReceived(seal(DOMAIN, message, key.sign), key.address))
    market.until_decided(job_id)
    body = canonical.decode(Receipt, market.receipts[-1])
    first, *later = (replace(batch.message, audit_ppm=PPM_ONE) for batch in body.batches)
    closed = (replace(first, witness_hash=ZERO_HASH), *later)
    sets = tuple(seal(DOMAIN, each, STATEMENT.sign) for each in closed)
    dropped = signed_again(body, witness=None, batches=sets)
    known = own_record(market, body, lambda assignment, commit: True)
    assert check_receipt(known, document(body), body.verdict).charged < 2 * 1_000
    with pytest.raises(EvidenceError, match="took our witness"):
        check_receipt(known, document(dropped), dropped.verdict)
    assert {"witness:ack", "hash:evidence"} <= failures(
        replace(body, ack=with_ack(body, ack_time=UnixSeconds(0)).ack)
    )
    attack(
        name="coordinator drops a witness that it took",
        before="nothing was refused; a stranger saw an unwitnessed job",
        now="0: the client signs no voucher",
        cost="the pay of the job",
    )


@pytest.mark.rule("5.102", "5.103")
def test_a_coordinator_cannot_pass_over_a_provider_in_silence(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draw gave a provider that is passed over. Its CommitSet once could say nothing of it."""
    seen = 0
    for is_hidden in (False, True):
        if is_hidden:
            monkeypatch.setattr(batches, "in_order", lambda skipped: ())
        deaf = [Party(number, is_deaf=number > 1) for number in range(5)]
        market = Market(*deaf)
        for nonce in range(1, 8):
            market.until_decided(market.order(0, nonce), seconds=400)
        for data in market.receipts:
            body = canonical.decode(Receipt, data)
            found = failures(body)
            assert found == set() or is_hidden
            seen += bool(found)
            is_shown = all(skip.decline is None for skip in body.skips)
            assert is_shown, "they said nothing"
    assert seen > 0
    attack(
        name="coordinator passes over live auditors until its friend is drawn",
        before="64 of 64 tries, with an empty skipsHash",
        now=f"0: {seen} of {seen} such receipts refused",
        cost="a signed Assignment for each, and its acceptBy",
    )


@pytest.mark.rule("7.12", "5.105")
def test_a_coordinator_cannot_sign_another_outcome_than_the_reveals_give(attack: Attack) -> None:
    _, body = honest()
    assert failures(body) == set()
    sign = STATEMENT.sign
    nothing: dict[str, object] = {"group": (), "faulted": ()}
    refused = 0
    for outcome in (Outcome.UNRESOLVED, Outcome.CANNOT_VERIFY):
        forged = verdict_again(body, DOMAIN, sign, outcome=outcome, **nothing)
        assert "verdict:undecided" in failures(forged)
        refused += 1
    assert "stop" in failures(verdict_again(body, DOMAIN, sign, outcome=Outcome.LAPSED))
    one = body.verdict.message.group
    forged = verdict_again(body, DOMAIN, sign, group=one[:1], faulted=one[1:])
    assert {"verdict:group", "verdict:enough"} <= failures(forged)
    attack(
        name="coordinator signs UNRESOLVED over two equal results",
        before="the output withheld, nobody paid, receipt valid",
        now=f"0: {refused + 2} of {refused + 2} outcomes refused",
        cost="the fee of the job",
    )


@pytest.mark.rule("5.104", "7.12")
def test_a_coordinator_cannot_date_what_it_signs_at_will(attack: Attack) -> None:
    _, body = honest()
    first = body.batches[0].message
    appears = body.timing.appears_at(first.beacon_round)
    expiry = body.order.message.expiry
    for ack_time, wrong in ((appears, "time:ackRound"), (expiry, "time:ack")):
        assert wrong in failures(with_ack(body, ack_time=UnixSeconds(ack_time)))
    for closed_at in (appears - 1, body.verdict.message.time + 1):
        closed = seal(DOMAIN, replace(first, closed_at=UnixSeconds(closed_at)), STATEMENT.sign)
        assert "closedAt[0]" in failures(signed_again(body, batches=(closed,)))
    item = body.executions[0]
    later = replace(item.commit_receipt.message, time=UnixSeconds(appears))
    stored = replace(item, commit_receipt=seal(DOMAIN, later, STATEMENT.sign))
    moved = signed_again(body, executions=(stored, *body.executions[1:]))
    assert "round[0]" in failures(moved), "it would be another round's draw"
    attack(
        name="coordinator dates Ack, commit or closing to get another draw",
        before="ackTime and closedAt at will",
        now="0: 5 of 5 dates refused",
        cost="nothing",
    )


@pytest.mark.rule("7.12")
def test_a_coordinator_cannot_use_other_terms_than_the_order(attack: Attack) -> None:
    market, body = honest()
    above = Bps(body.order.message.max_fee_bps + 1)
    assert "order:fee" in failures(with_ack(body, fee_bps=above))
    client = market.clients[CLIENT_KEY]
    for changes, wrong in (
        ({"coordinator": Address(b"\x07" * 20)}, "order:session"),
        ({"expires": body.ack.message.ack_time}, "time:ack"),
    ):
        foreign = replace(body.session.message, **changes)  # type: ignore[arg-type]
        session = seal(DOMAIN, foreign, client.sign)
        assert wrong in failures(signed_again(body, session=session))
    other = Pool("L40S", "", Small(1))
    assert "pool" in failures(signed_again(body, pools=(other,)))
    for part in ("image", "profile"):
        assert "class" in failures(signed_again(body, **{part: Hash32(b"\x01" * 32)}))
    attack(
        name="coordinator charges above maxFeeBps, or uses a session for another one",
        before="fee up to 100 %; any session of the client",
        now="0: 5 of 5 receipts refused",
        cost="nothing",
    )


@pytest.mark.rule("3.40", "7.13")
def test_a_stranger_cannot_alter_a_receipt(attack: Attack) -> None:
    """Parts that no signature covered: hold, payout, network, rounds that decided nothing."""
    _, body = honest()
    chain = body.taken_from_chain
    first, *others = chain.parties
    more = BeaconEvidence(Round(1), body.beacons[0].signature)
    altered = {
        "hold": replace(body, timing=replace(body.timing, max_hold=Seconds(1))),
        "rounds": replace(body, beacons=(*body.beacons, more)),
        "twice the same round": replace(body, beacons=body.beacons * 2),
    }
    for name, party in (
        ("payout", replace(first, payout=Address(b"\x09" * 20))),
        ("network", replace(first, network=Hash32(b"\x09" * 32))),
    ):
        parties = (party, *others)
        altered[name] = replace(body, taken_from_chain=replace(chain, parties=parties))
    for name, forged in altered.items():
        assert "hash:evidence" in failures(forged), name
    assert "beacons" in failures(signed_again(body, beacons=(*body.beacons, more)))
    attack(
        name="stranger alters hold, payout, network or rounds of a receipt",
        before="5 of 5 were valid",
        now=f"0 of {len(altered)} valid",
        cost="nothing",
    )


@pytest.mark.rule("7.14")
def test_a_padded_receipt_costs_no_signature_check(attack: Attack) -> None:
    _, body = honest()
    calls = 0

    def counted(*arguments: object) -> bool:
        nonlocal calls
        calls += 1
        return False

    padded = replace(body, beacons=body.beacons * 10_000)
    report = receipt_checks.verify(document(padded), counted, counted)  # type: ignore[arg-type]
    assert {check.name for check in report.failures} == {"bounds"} and calls == 0
    attack(
        name="receipt padded with 10,000 beacon rounds",
        before="10,000 pairings, about 14 s",
        now=f"{calls} pairings",
        cost="a file of 4 MiB",
    )
