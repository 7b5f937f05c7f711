"""Attacks on settlements, each by name: paid twice, replayed, signed otherwise, re-entered."""

from dataclasses import replace

import pytest
from eth_utils.address import to_checksum_address

from contracts.epoch_leaves import post
from contracts.evm import Reverted, refused
from contracts.market import BOSS, COORDINATOR, POSTER, Market, key, peopled, planned
from contracts.settlement_evidence import (
    CLIENT,
    OWNERS,
    PAY,
    credited,
    credits,
    job,
    opened,
    shown,
    voucher,
)
from contracts.test_strange_tokens import code_with, deployed
from contracts.trial import money
from quorate_contracts.bindings.escrow import Escrow
from quorate_contracts.bindings.settlement import JobEvidence, ShownCredit
from quorate_protocol import values
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.crypto.merkle import FullLog, credit_entry
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.rules.epoch_tree import Leaf, build, prove
from quorate_protocol.units import Address, Amount, Signature

C = COORDINATOR.address
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@pytest.fixture
def world() -> Market:
    made = peopled()
    made.evm.travel(100)
    return made


def charged(world: Market) -> int:
    return world.evm.ask(world.contracts.escrow.allocation(CLIENT.address, C)).charged


@pytest.mark.rule("6.26")
def test_a_job_credited_by_an_epoch_is_not_settled_again(world: Market) -> None:
    settlement, evidence = world.contracts.settlement, job(world, CLIENT, 7)
    waiting = opened(world, evidence)
    leaves = credited(world, evidence, PAY, PAY)
    post(world, 1, leaves, voucher(world, 2 * PAY, 8))
    refused(world.evm, "covered", POSTER.address, settlement.settle_job(evidence))
    world.evm.travel(1)
    refused(world.evm, "covered", BOSS.address, settlement.open(evidence))
    world.evm.travel(DEVNET.settle_response)
    refused(world.evm, "covered", BOSS.address, settlement.execute(waiting))
    assert credits(world) == [0, 0, 0] and charged(world) == 2 * PAY


@pytest.mark.rule("6.24")
def test_a_credited_job_above_the_nonce_floor_is_not_settled_if_somebody_answers(
    world: Market,
) -> None:
    settlement, evidence = world.contracts.settlement, job(world, CLIENT, 7)
    leaves = credited(world, evidence, PAY, PAY)
    post(world, 1, leaves, voucher(world, 2 * PAY, 5))
    opening = opened(world, evidence)
    for share in (0, 1):
        answer = settlement.answer(opening, share, shown(leaves, evidence, share, PAY))
        mined = world.evm.send(BOSS.address, answer)
        opening = type(opening).of(mined.events[0].opening)  # type: ignore[union-attr]
    world.evm.travel(DEVNET.settle_response)
    refused(world.evm, "opened", BOSS.address, settlement.execute(opening))
    assert credits(world) == [0, 0, 0]


@pytest.mark.rule("6.24")
def test_a_credited_job_above_the_nonce_floor_is_settled_again_if_nobody_answers(
    world: Market,
) -> None:
    """The limit of the rule: of an absent coordinator nobody else has the proof."""
    settlement, evidence = world.contracts.settlement, job(world, CLIENT, 7)
    post(world, 1, credited(world, evidence, PAY, PAY), voucher(world, 2 * PAY, 7))
    opening = opened(world, evidence)
    world.evm.travel(DEVNET.settle_response)
    world.evm.send(BOSS.address, settlement.execute(opening))
    assert charged(world) == 4 * PAY
    post(world, 2, credited(world, evidence, PAY, PAY), voucher(world, 3 * PAY, 7))
    assert charged(world) == 4 * PAY, "the client's next vouchers make up for it"


@pytest.mark.rule("6.24")
def test_an_answer_shows_no_more_than_its_leaf_credits(world: Market) -> None:
    """A coordinator writes pay into the log of a leaf and leaves the leaf's credit as it was."""
    settlement = world.contracts.settlement
    jobs = [job(world, CLIENT, 7), job(world, CLIENT, 8)]
    ids = [each.executions[0].assignment.message.assignment_id for each in jobs]
    log = FullLog([credit_entry(ids[0], Amount(PAY)), credit_entry(ids[1], Amount(1))])
    index = world.evm.ask(world.contracts.stakes.index_of(OWNERS[0]))
    leaves = [Leaf(index, OWNERS[0], Amount(PAY), Amount(0), log.root())]
    post(world, 1, leaves, voucher(world, 2 * PAY, 5))
    answers = [
        settlement.answer(
            opened(world, each),
            0,
            ShownCredit(1, *prove(leaves, OWNERS[0]), Amount(pay), log.prove(place)),
        )
        for place, (each, pay) in enumerate(zip(jobs, (PAY, 1), strict=True))
    ]
    world.evm.send(POSTER.address, answers[0])
    assert world.evm.ask(settlement.answered_of(C, OWNERS[0])) == PAY
    refused(world.evm, "sums", POSTER.address, answers[1])


@pytest.mark.rule("6.24")
def test_old_credit_answers_a_settlement_that_it_does_not_pay(world: Market) -> None:
    """The limit of the rule: the next epoch names the job under a leaf that it does not raise."""
    settlement, evidence = world.contracts.settlement, job(world, CLIENT, 7)
    old = credited(world, job(world, CLIENT, 6), PAY, PAY)
    post(world, 1, old, voucher(world, 2 * PAY, 5))
    opening = opened(world, evidence)
    forged = credited(world, evidence, PAY, PAY)
    assert [leaf.final for leaf in forged] == [leaf.final for leaf in old]
    post(world, 2, forged)
    for share in (0, 1):
        proof = values.replace(shown(forged, evidence, share, PAY), epoch=2)
        answer = settlement.answer(opening, share, proof)
        mined = world.evm.send(POSTER.address, answer)
        opening = type(opening).of(mined.events[0].opening)  # type: ignore[union-attr]
    world.evm.travel(DEVNET.settle_response)
    refused(world.evm, "opened", BOSS.address, settlement.execute(opening))
    assert credits(world) == [0, 0, 0]


@pytest.mark.rule("6.24")
@pytest.mark.parametrize("place", [0, 3, 4, 6])
def test_an_answer_shows_an_entry_at_any_place_of_a_log(world: Market, place: int) -> None:
    """Seven entries are three trees, of four, two and one."""
    settlement, evidence = world.contracts.settlement, job(world, CLIENT, 7)
    ids = [keccak256(b"job %d" % other) for other in range(7)]
    ids[place] = evidence.executions[0].assignment.message.assignment_id
    log = FullLog([credit_entry(each, Amount(PAY)) for each in ids])
    index = world.evm.ask(world.contracts.stakes.index_of(OWNERS[0]))
    leaves = [Leaf(index, OWNERS[0], Amount(7 * PAY), Amount(0), log.root())]
    post(world, 1, leaves, voucher(world, 7 * PAY, 5))
    opening, proven = opened(world, evidence), prove(leaves, OWNERS[0])
    wrong = ShownCredit(1, *proven, Amount(PAY), log.prove((place + 1) % 7))
    refused(world.evm, "proof", POSTER.address, settlement.answer(opening, 0, wrong))
    right = ShownCredit(1, *proven, Amount(PAY), log.prove(place))
    world.evm.send(POSTER.address, settlement.answer(opening, 0, right))


@pytest.mark.rule("6.24")
def test_an_answer_counts_once_however_often_its_execution_is_announced(world: Market) -> None:
    settlement, evidence = world.contracts.settlement, job(world, CLIENT, 7)
    leaves = credited(world, evidence, PAY, PAY)
    post(world, 1, leaves, voucher(world, 2 * PAY, 5))
    for _ in range(3):
        world.evm.travel(1)
        answer = settlement.answer(opened(world, evidence), 0, shown(leaves, evidence, 0, PAY))
        world.evm.send(BOSS.address, answer)
    assert world.evm.ask(settlement.answered_of(C, OWNERS[0])) == PAY


@pytest.mark.rule("6.24")
def test_a_coordinator_with_two_providers_of_its_own_stops_a_settlement(world: Market) -> None:
    """They sign another result of the same job. Nobody on chain knows whom a draw chose."""
    settlement = world.contracts.settlement
    opening = opened(world, job(world, CLIENT, 7))
    own = job(world, CLIENT, 7, OWNERS[3:5], b"other", first_index=3)
    world.evm.send(POSTER.address, settlement.outvote(opening, own))
    world.evm.travel(DEVNET.settle_response)
    refused(world.evm, "opened", BOSS.address, settlement.execute(opening))


@pytest.mark.rule("6.23", "6.26")
def test_a_coordinator_with_two_providers_of_its_own_takes_two_thirds_of_a_budget(
    world: Market,
) -> None:
    """It needs an order that the client's voucher does not cover, and no draw."""
    greedy = {"usage_ms": 10**9, "max_duration": 10**6, "price_per_hour": 3_000_000}
    evidence = job(world, CLIENT, 7, budget=Amount(900_000), **greedy)
    world.evm.send(POSTER.address, world.contracts.settlement.settle_job(evidence))
    assert charged(world) == 600_000


@pytest.mark.rule("6.26")
def test_a_settled_job_is_not_charged_again_by_a_voucher_that_covers_it(world: Market) -> None:
    """The client signed the voucher before, and pays its sum once."""
    signed = voucher(world, 3 * PAY, 8)
    evidence = job(world, CLIENT, 7)
    world.evm.send(POSTER.address, world.contracts.settlement.settle_job(evidence))
    refused(
        world.evm,
        "pool",
        POSTER.address,
        world.contracts.epochs.post(C, 1, _root(world, evidence, 2 * PAY), [signed]),
    )
    post(world, 1, credited(world, evidence, PAY, 0), signed)
    assert charged(world) == 3 * PAY
    money(world)


@pytest.mark.rule("6.26")
def test_a_settlement_does_not_make_an_older_voucher_stop_an_epoch(world: Market) -> None:
    evidence = job(world, CLIENT, 7)
    world.evm.send(POSTER.address, world.contracts.settlement.settle_job(evidence))
    post(world, 1, credited(world, evidence, 0, 0), voucher(world, PAY, 3))
    assert charged(world) == 2 * PAY
    money(world)


def _root(world: Market, evidence: JobEvidence, pay: int):  # type: ignore[no-untyped-def]
    return build(credited(world, evidence, pay, pay))


@pytest.mark.rule("6.23")
def test_an_execution_is_settled_once_also_with_other_executions(world: Market) -> None:
    settlement = world.contracts.settlement
    evidence = job(world, CLIENT, 7)
    waiting = opened(world, evidence)
    world.evm.send(POSTER.address, settlement.settle_job(evidence))
    refused(world.evm, "settled", POSTER.address, settlement.settle_job(evidence))
    world.evm.travel(DEVNET.settle_response)
    refused(world.evm, "settled", BOSS.address, settlement.execute(waiting))
    three = job(world, CLIENT, 7, OWNERS[:3])
    world.evm.send(POSTER.address, settlement.settle_job(three))
    assert credits(world) == [PAY, PAY, PAY]


@pytest.mark.rule("5.87", "6.23")
def test_a_second_commit_settles_nothing_more(world: Market) -> None:
    """A provider signs another Commit with more usage. It is one execution still."""
    settlement = world.contracts.settlement
    world.evm.send(POSTER.address, settlement.settle_job(job(world, CLIENT, 7, usage_ms=1_000)))
    longer = job(world, CLIENT, 7, usage_ms=30_000)
    refused(world.evm, "settled", POSTER.address, settlement.settle_job(longer))
    first, second = job(world, CLIENT, 8), job(world, CLIENT, 8, usage_ms=30_000)
    kept = tuple(
        values.replace(b, receipt=a.receipt)
        for a, b in zip(first.executions, second.executions, strict=True)
    )
    swapped = values.replace(second, executions=kept)
    refused(world.evm, "receipt", BOSS.address, settlement.open(swapped))


@pytest.mark.rule("3.1", "6.23")
@pytest.mark.parametrize("where", ["chain", "deployment", "coordinator", "contract"])
def test_evidence_of_another_place_settles_nothing(world: Market, where: str) -> None:
    here = world.domain
    settlement = world.contracts.settlement
    match where:
        case "chain":
            evidence = job(
                world, CLIENT, 7, domain=Domain(here.chain_id + 1, here.verifying_contract)
            )
            reason = "session"
        case "deployment":
            evidence = job(world, CLIENT, 7, domain=Domain(here.chain_id, Address(bytes(20))))
            reason = "session"
        case "contract":
            domain = Domain(here.chain_id, settlement.address)
            evidence, reason = job(world, CLIENT, 7, domain=domain), "session"
        case _:
            evidence, reason = job(world, CLIENT, 7, coordinator=OWNERS[8]), "signer"
    refused(world.evm, reason, POSTER.address, settlement.settle_job(evidence))


@pytest.mark.rule("3.3")
@pytest.mark.parametrize("part", ["order", "session", "commit"])
def test_a_malleable_signature_is_refused(world: Market, part: str) -> None:
    evidence = job(world, CLIENT, 7)
    settlement = world.contracts.settlement
    if part == "commit":
        first = evidence.executions[0]
        other = values.replace(first, commit=_other_form(first.commit))
        changed = values.replace(evidence, executions=(other, evidence.executions[1]))
    else:
        changed = values.replace(evidence, **{part: _other_form(getattr(evidence, part))})
    refused(world.evm, "signature", POSTER.address, settlement.settle_job(changed))


def _other_form(envelope: Envelope[object]) -> Envelope[object]:
    """The signature's other form, with s above half of the group's order."""
    r, s, v = envelope.sig[:32], int.from_bytes(envelope.sig[32:64], "big"), envelope.sig[64]
    sig = Signature(r + (ORDER - s).to_bytes(32, "big") + bytes([55 - v]))
    return values.replace(envelope, sig=sig)


@pytest.mark.rule("3.3")
def test_a_signature_of_64_bytes_is_refused(world: Market) -> None:
    """Its last word carries v in the highest bit of s."""
    evidence = job(world, CLIENT, 7)
    sig = evidence.order.sig
    short = Signature(sig[:32] + bytes([sig[32] | (sig[64] - 27) << 7]) + sig[33:64])
    changed = values.replace(evidence, order=values.replace(evidence.order, sig=short))
    with pytest.raises(AssertionError, match="65 bytes"):
        world.contracts.settlement.settle_job(changed)
    for v in (0, 1, 27, 28):
        padded = values.replace(evidence.order, sig=Signature(short + bytes([v])))
        if short[32] < 128 and v == sig[64]:
            continue  # with v in its own byte it is the signature itself
        call = world.contracts.settlement.settle_job(values.replace(evidence, order=padded))
        with pytest.raises(Reverted, match="signature|order"):
            world.evm.send(POSTER.address, call)
    assert credits(world) == [0, 0, 0]


@pytest.mark.rule("6.26")
def test_a_withdrawal_does_not_outrun_a_settlement(world: Market) -> None:
    """A release takes longer than an answer, so who sees it announced settles in time."""
    escrow = world.contracts.escrow
    assert DEVNET.settle_response < DEVNET.allocation_release
    world.evm.send(
        CLIENT.address,
        escrow.request_release(C, world.evm.ask(escrow.settleable(CLIENT.address, C))[0]),
    )
    opening = opened(world, job(world, CLIENT, 7))
    world.evm.travel(DEVNET.settle_response)
    refused(world.evm, "early", CLIENT.address, escrow.finish_release(C))
    world.evm.send(BOSS.address, world.contracts.settlement.execute(opening))
    assert credits(world) == [PAY, PAY, 0]


@pytest.mark.rule("0.4", "6.33")
def test_a_token_that_calls_back_pays_no_second_credit() -> None:
    """Whenever it moves money, the token asks Escrow to pay the second provider's credit."""
    inside = planned(DEVNET).deployment.escrow
    pay = Escrow(inside).pay_credit(OWNERS[1])
    call = f'raw_call({to_checksum_address(inside)}, x"{pay.data.hex()}", revert_on_failure=False)'
    moved = f"    self.balanceOf[receiver] += amount\n    passed: bool = {call}"
    world = deployed(code_with(moved))
    world.coordinator()
    for number in range(2):
        world.provider(number, slots=0)
    world.client(0)
    world.evm.travel(100)
    evidence = job(world, CLIENT, 7)
    world.evm.send(POSTER.address, world.contracts.settlement.settle_job(evidence))
    first = world.contracts.escrow.pay_credit(OWNERS[0])
    world.evm.send(BOSS.address, replace(first, gas=1_000_000))
    assert (world.balance(key("payout0").address), credits(world, 2)) == (PAY, [0, PAY])
    outside = world.contracts.token.transfer(BOSS.address, Amount(1))
    world.evm.send(CLIENT.address, replace(outside, gas=1_000_000))
    assert credits(world, 2) == [0, 0], "outside of Escrow the token's call passes"
    assert world.balance(key("payout1").address) == PAY


@pytest.mark.rule("0.4")
def test_a_token_that_keeps_a_fee_brings_no_client_to_settle_for() -> None:
    """It is refused at the deposit, so no credit is ever more than what Escrow holds."""
    world = deployed(code_with("    self.balanceOf[receiver] += amount - 1"))
    client = world.fund(CLIENT)
    refused(world.evm, "amount", client.address, world.contracts.escrow.deposit(Amount(100)))
