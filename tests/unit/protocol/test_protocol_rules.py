"""Tests the pure rules at their boundaries: verdict, settlement, audit rate, draw, trust, bearer
tokens.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate_protocol.messages.bearer import Bearer, make_token, read_token
from quorate_protocol.messages.signed import Assignment, Order
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.refusals import MEANINGS, Code, Refused
from quorate_protocol.rules import audit_draw, settlement, verdict
from quorate_protocol.rules.audit_draw import CheatingIncentive
from quorate_protocol.rules.settlement import Credit
from quorate_protocol.rules.trust_record import Trust, after_audit
from quorate_protocol.rules.verdict import Accepted, CannotVerify, Limit, More, Unresolved
from quorate_protocol.units import (
    Address,
    Amount,
    BlockNumber,
    Bps,
    Hash32,
    Label,
    Milliseconds,
    Price,
    Seconds,
    Small,
    UnixSeconds,
    VerifyTier,
    pay_for,
    share_bps,
    usd,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner, recover
from vectors.generate import message_of


def runs(*results: str, suspicion: int = 200_000) -> list[verdict.Execution]:
    """Returns executions by the letters of their results. "-" stands for an execution that was
    not revealed.
    """
    return [
        verdict.Execution(
            Hash32(bytes([i]) * 32),
            Address(bytes([i]) * 20),
            None if result == "-" else Hash32(result.encode() * 32),
            suspicion,
        )
        for i, result in enumerate(results)
    ]


def decide(
    results: str,
    rule: Label = Label.QUORUM_2,
    cap: int = 7,
    exhausted: bool = False,
    affordable: int = 7,
) -> verdict.Decision:
    return verdict.decide(rule, VerifyTier.STANDARD, runs(*results), cap, exhausted, affordable)


@pytest.mark.rule("5.35", "5.38", "5.39", "5.40")
@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ("A", More(1)),
        ("AA", Accepted((0, 1), ())),
        ("AB", More(1)),
        ("A-", More(1)),
        ("--", More(1)),
        ("ABA", Accepted((0, 2), (1,))),
        ("BAA", Accepted((1, 2), (0,))),
        ("A-A", Accepted((0, 2), (1,))),
        ("AB-", More(1)),
        ("ABC", Unresolved(Limit.PROGRAM)),
        ("AB-C", Unresolved(Limit.PROGRAM)),
        ("AB-B", Accepted((1, 3), (0, 2))),
        ("ABCDEFG", Unresolved(Limit.PROGRAM)),
        ("A------", CannotVerify()),
        ("-------", Unresolved(Limit.MARKET)),
        ("AB-----", Unresolved(Limit.MARKET)),
        ("ABC----", Unresolved(Limit.PROGRAM)),
    ],
)
def test_two_equal_results_are_accepted(results: str, expected: verdict.Decision) -> None:
    assert decide(results) == expected


@pytest.mark.rule("4.11", "5.34", "5.42")
def test_a_job_ends_unresolved_at_its_cap_or_without_further_auditors() -> None:
    assert decide("AB", cap=2) == Unresolved(Limit.CLIENT)
    assert decide("AB-", cap=3) == More(1), "one that was not revealed does not count"
    assert decide("AB", affordable=0) == Unresolved(Limit.CLIENT)
    assert decide("A", exhausted=True) == CannotVerify() == decide("A-", exhausted=True)
    assert decide("AB-", cap=2) == Unresolved(Limit.CLIENT)
    assert decide("AB", exhausted=True) == Unresolved(Limit.MARKET)
    assert decide("A", Label.UNVERIFIED) == Accepted((0,), ())
    assert decide("AB-----", cap=100) == Unresolved(Limit.MARKET), (
        "at most seven whatever the order says"
    )


@pytest.mark.rule("5.164")
def test_three_results_end_a_job_at_once_only_where_two_liars_decide_it_anyway() -> None:
    assert decide("ABC") == Unresolved(Limit.PROGRAM)
    assert isinstance(decide("ABC", Label.ADAPTIVE), More)
    assert decide("ABC", Label.ADAPTIVE, exhausted=True) == Unresolved(Limit.PROGRAM)
    lies = decide("ABB")  # what the two would do instead
    assert lies == Accepted((1, 2), (0,))


@pytest.mark.rule("5.26", "5.27", "5.32")
def test_the_adaptive_rule_sums_suspicion() -> None:
    rule, tier = Label.ADAPTIVE, VerifyTier.STANDARD
    assert verdict.decide(rule, tier, runs("A"), 7, False) == Accepted((0,), ()), (
        "not audited: provisional"
    )
    assert isinstance(verdict.decide(rule, tier, runs("A", "A"), 7, False), More), (
        "two newcomers: .1 × .2 × .2 > 1e-3"
    )
    assert verdict.decide(rule, tier, runs("A", "A", suspicion=100_000), 7, False) == Accepted(
        (0, 1), ()
    )
    known = runs("A", "A", "B", suspicion=1_000)
    assert verdict.decide(rule, tier, known, 7, False) == Accepted((0, 1), (2,))
    close = [
        *runs("A", "A", suspicion=50_000),
        replace(runs("A", "A", "B")[2], suspicion_ppm=1_000),
    ]
    assert isinstance(verdict.decide(rule, tier, close, 7, False), More), "the rival is as credible"


@pytest.mark.rule("5.31", "5.32")
@pytest.mark.parametrize("newcomers", [2, 3, 4])
@pytest.mark.parametrize("is_first", [True, False])
def test_newcomers_do_not_outvote_trusted_providers(newcomers: int, is_first: bool) -> None:
    """The rule once looked only at the largest group. As many new registrations as trusted
    providers then kept the trusted ones from being believed.
    """
    trusted, fresh = runs("A", "A", suspicion=1_000), runs(*"B" * newcomers)
    every = [*trusted, *fresh] if is_first else [*fresh, *trusted]
    places = [every.index(item) for item in trusted], [every.index(item) for item in fresh]
    found = verdict.decide(Label.ADAPTIVE, VerifyTier.STANDARD, every, 7, False)
    assert found == Accepted(tuple(places[0]), tuple(places[1]))
    small = verdict.decide(Label.QUORUM_2, VerifyTier.STANDARD, every, 7, False)
    assert isinstance(small, Accepted) and len(small.group) == newcomers, "there numbers count"


@pytest.mark.rule("5.54")
def test_a_missing_reveal_is_no_fault_in_a_batch_of_one() -> None:
    every = runs("A", "B", "-", "A")
    assert verdict.decide(Label.QUORUM_2, VerifyTier.STANDARD, every, 7, False) == Accepted(
        (0, 3), (1, 2)
    )
    every[2] = replace(every[2], is_alone=True)
    assert verdict.decide(Label.QUORUM_2, VerifyTier.STANDARD, every, 7, False) == Accepted(
        (0, 3), (1,)
    )


@given(st.lists(st.sampled_from("ABC-"), min_size=1, max_size=7), st.integers(1, 7), st.booleans())
def test_an_accepted_group_agrees_and_nobody_who_agrees_is_faulted(
    results: list[str], cap: int, exhausted: bool
) -> None:
    decision = verdict.decide(Label.QUORUM_2, VerifyTier.STANDARD, runs(*results), cap, exhausted)
    if isinstance(decision, Accepted):
        assert len({results[i] for i in decision.group}) == 1 and len(decision.group) >= 2
        assert sorted(decision.group + decision.faulted) == list(range(len(results)))
        assert all(results[i] != results[decision.group[0]] for i in decision.faulted), (
            "I3: nobody who agrees is faulted"
        )
    if isinstance(decision, More):
        assert len(results) + decision.count <= max(cap, len(results) + 1)


# --------------------------------------------------------------------------------------- settlement


def order(**changes: object) -> Order:
    fields: dict[str, object] = {
        "max_price_per_hour": Price(360_000),
        "budget": Amount(10**9),
        "max_duration": Seconds(10),
        "audit_premium_bps": Bps(500),
        "max_fee_bps": Bps(500),
    }
    made: Order = replace(message_of(Order), **{**fields, **changes})
    return made


@pytest.mark.rule("0.3", "4.14", "4.16")
def test_pay_rounds_down_and_is_bounded() -> None:
    assert pay_for(Milliseconds(36_000), Price(100_000), Amount(10**9)) == 1_000
    assert pay_for(Milliseconds(35_999), Price(100_000), Amount(10**9)) == 999
    assert pay_for(Milliseconds(36_000), Price(100_000), Amount(999)) == 999
    assert share_bps(Amount(49), Bps(200)) == 0 and share_bps(Amount(50), Bps(200)) == 1
    assigned: Assignment = replace(
        message_of(Assignment), price_per_hour=Price(3_600_000), max_duration=Seconds(10)
    )
    assert settlement.pay_of(order(), assigned, Milliseconds(9_000)) == 9_000
    assert settlement.pay_of(order(), assigned, Milliseconds(99_000)) == 10_000, (
        "no longer than the signed duration"
    )
    assert usd(1_234_567) == "1.234567"


@pytest.mark.rule("4.50", "4.51")
def test_worst_charge_covers_the_rule() -> None:
    for rule in (Label.QUORUM_2, Label.ADAPTIVE):
        assert settlement.worst_charge(order(), rule, Bps(200)) == 3 * 1_000 + 60
    assert settlement.worst_charge(order(), Label.UNVERIFIED, Bps(200)) == 1_000 + 20
    five = order(max_executions=Small(5))
    assert settlement.charge_limit(five, Label.QUORUM_2, Bps(200)) == 5 * 1_000 + 100
    small = replace(five, budget=Amount(4_000))
    assert settlement.charge_limit(small, Label.QUORUM_2, Bps(200)) == 4_000
    assert settlement.charge_limit(small, Label.UNVERIFIED, Bps(200)) == 1_000 + 20


@pytest.mark.rule("I1", "4.16")
@given(
    st.lists(st.integers(0, 10**7), min_size=1, max_size=7),
    st.integers(0, 2_000),
    st.integers(0, 2_000),
    st.integers(1, 10**8),
    st.sampled_from([Label.QUORUM_2, Label.ADAPTIVE, Label.UNVERIFIED]),
)
def test_every_unit_charged_goes_somewhere(
    pays: list[int], premium: int, fee: int, budget: int, rule: Label
) -> None:
    """I1 and I4: the sum is exact, the charge is within the budget, and nobody gets more than it
    earned.
    """
    wanted = order(budget=Amount(budget), audit_premium_bps=Bps(premium))
    credits = [
        Credit(Hash32(bytes([i]) * 32), Amount(min(pay, budget))) for i, pay in enumerate(pays)
    ]
    found = settlement.split(wanted, rule, Bps(fee), credits)
    assert found.charged == sum(item.amount for item in found.credits) + found.fee + found.fund
    assert all(
        0 <= got.amount <= earned.amount for got, earned in zip(found.credits, credits, strict=True)
    )
    assert found.charged <= budget
    assert rule is not Label.QUORUM_2 or found.fund == (found.fee + found.fund) // 10
    due, total = (
        share_bps(credits[0].amount, Bps(premium)) if rule is Label.ADAPTIVE else 0,
        sum(item.amount for item in credits),
    )
    if total + due + share_bps(Amount(total), Bps(fee)) <= budget:
        assert [item.amount for item in found.credits] == [item.amount for item in credits], (
            "nothing is cut that fits"
        )


def test_a_reservation_of_the_worst_charge_pays_all_that_was_earned() -> None:
    """The rounding of the fee once cost a provider one unit, if its job ran up to its limit."""
    limit = 333
    wanted = order(max_price_per_hour=Price(333 * 3600), max_duration=Seconds(1))
    worst = settlement.worst_charge(wanted, Label.QUORUM_2, Bps(200))
    found = settlement.split(
        replace(wanted, budget=worst),
        Label.QUORUM_2,
        Bps(200),
        [Credit(Hash32(bytes([number]) * 32), Amount(limit)) for number in range(3)],
    )
    assert [item.amount for item in found.credits] == [limit] * 3 and found.charged == worst


@pytest.mark.rule("4.54")
def test_a_budget_that_ends_pays_everybody_the_same_fraction() -> None:
    earned = [
        Credit(Hash32(bytes([i]) * 32), Amount(amount)) for i, amount in enumerate((900, 300))
    ]
    found = settlement.split(order(budget=Amount(610)), Label.QUORUM_2, Bps(200), earned)
    assert [item.amount for item in found.credits] == [449, 149] and found.charged == 609


# -------------------------------------------------------------------------------------------- audit


@pytest.mark.rule("5.1", "5.3", "5.4", "5.5", "5.6", "5.41")
def test_the_audit_rate_follows_rule_tier_and_trust() -> None:
    stakes = CheatingIncentive(Amount(10**7), Amount(10**8), Amount(10**10))

    def rate(rule: Label, tier: VerifyTier, trust: Trust) -> int:
        return audit_draw.rate_ppm(rule, tier, trust, stakes)

    assert rate(Label.UNVERIFIED, VerifyTier.STANDARD, Trust(200)) == 0
    assert rate(Label.QUORUM_2, VerifyTier.STANDARD, Trust(200)) == 1_000_000
    assert rate(Label.ADAPTIVE, VerifyTier.CRITICAL, Trust(200)) == 1_000_000
    # standard: 1 − ε(15+k)/.3 = .95 − k/300, until p_min; with a strike .98 − k/750
    for passed, clean, struck in ((0, 950_000, 980_000), (135, 500_000, 800_000)):
        assert rate(Label.ADAPTIVE, VerifyTier.STANDARD, Trust(passed)) == clean
        strike = Trust(passed, (UnixSeconds(1),))
        assert rate(Label.ADAPTIVE, VerifyTier.STANDARD, strike) == struck
    assert rate(Label.ADAPTIVE, VerifyTier.STANDARD, Trust(275)) > 30_000
    assert rate(Label.ADAPTIVE, VerifyTier.STANDARD, Trust(276)) == 30_000
    assert rate(Label.ADAPTIVE, VerifyTier.LEAN, Trust(3_000)) == 20_000
    assert rate(Label.ADAPTIVE, VerifyTier.STRICT, Trust(0)) == 995_000
    assert rate(Label.ADAPTIVE, VerifyTier.STRICT, Trust(3_000)) == 100_000


@pytest.mark.rule("5.5")
def test_little_held_pay_raises_the_audit_rate_and_stake_lowers_it() -> None:
    def rate(stake: int, held: int) -> int:
        stakes = CheatingIncentive(Amount(10**7), Amount(stake), Amount(held))
        return audit_draw.rate_ppm(Label.ADAPTIVE, VerifyTier.STANDARD, Trust(3_000), stakes)

    # p_econ = g/((g+S+E)·0.8), where a conviction costs at most 3.5 g + 1.75 USD
    assert rate(10**8, 0) == 10**7 * 10**12 // ((10**7 + 35 * 10**6 + 1_750_000) * 800_000)
    assert rate(0, 0) == 950_000 and rate(0, 24 * 10**7) == 50_000
    assert rate(0, 10**10) == 30_000


@pytest.mark.rule("5.41", "5.46")
def test_a_job_that_is_not_audited_is_held() -> None:
    assert audit_draw.is_held(Label.ADAPTIVE, audited=False)
    assert not audit_draw.is_held(Label.ADAPTIVE, audited=True) and not audit_draw.is_held(
        Label.QUORUM_2, audited=False
    )


def slot(index: int, owner: int, **changes: object) -> StakeSlot:
    account = Address(bytes([owner]) * 20)
    made = StakeSlot(index, account, account, account, Hash32(bytes([owner]) * 32), BlockNumber(1))
    return replace(made, **changes)  # type: ignore[arg-type]


@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.integers(0, 40))
def test_a_draw_picks_distinct_slots_and_can_be_continued(
    seed: bytes, owners: int, first: int
) -> None:
    slots = [slot(index, index % owners) for index in range(2 * owners)]
    eligible = {item.index: item for item in slots if item.index % 5}
    drawn = list(audit_draw.draw(Hash32(seed), len(slots), eligible, [slots[0]]))
    names = [item.slot.owner for item in drawn]
    assert len(set(names)) == len(names) and slots[0].owner not in names
    assert all(item.slot.index in eligible for item in drawn)
    for position, item in enumerate(drawn):
        taken = [slots[0], *(other.slot for other in drawn[:position])]
        assert (
            next(audit_draw.draw(Hash32(seed), len(slots), eligible, taken, first=item.attempt))
            == item
        ), "it goes on where it stopped"
    assert all(
        item.attempt >= first
        for item in audit_draw.draw(Hash32(seed), len(slots), eligible, [slots[0]], first)
    )


@pytest.mark.rule("5.17")
def test_of_slots_with_one_payout_or_one_network_one_is_drawn() -> None:
    same_payout = slot(1, 2, payout=slot(0, 1).payout)
    same_network = slot(2, 3, network=slot(0, 1).network)
    for other in (same_payout, same_network):
        assert list(audit_draw.draw(Hash32(bytes(32)), 3, {other.index: other}, [slot(0, 1)])) == []
    assert list(audit_draw.draw(Hash32(bytes(32)), 0, {}, [])) == [], "an empty list draws nobody"
    assert slot(0, 1).is_active(BlockNumber(1)) and not slot(0, 1).is_active(BlockNumber(0))


def test_many_empty_slots_in_a_list_leave_a_draw_few_auditors() -> None:
    """The list has eight owners and up to 256 empty slots, whose stake was taken back."""
    eligible = {number: slot(number, number) for number in range(8)}

    def found(length: int) -> float:
        seeds = [Hash32(number.to_bytes(32, "big")) for number in range(200)]
        return sum(len(list(audit_draw.draw(seed, length, eligible, []))) for seed in seeds) / len(
            seeds
        )

    assert found(8) > 7.9 and 1.5 < found(264) < 2.1


# -------------------------------------------------------------------------------------------- trust


@pytest.mark.rule("5.2", "5.3", "5.31", "5.55")
def test_trust_moves_slowly_up_and_falls_at_once() -> None:
    trust = Trust()
    assert trust.suspicion_ppm() == 200_000 and Trust(15).suspicion_ppm() == 100_000
    for _ in range(3_100):
        trust = after_audit(trust, True, UnixSeconds(5))
    assert trust.passed == 3_000 and trust.suspicion_ppm() == 1_000
    struck = after_audit(trust, False, UnixSeconds(7))
    assert struck.passed == 0 and struck.strikes == (7,) and struck.suspicion_ppm() == 200_000
    assert struck.error_ppm() == 50_000
    assert struck.live_strikes(UnixSeconds(7 + 90 * 86_400 - 1)) == 1
    assert struck.live_strikes(UnixSeconds(7 + 90 * 86_400)) == 0


@pytest.mark.rule("5.1")
@given(st.lists(st.booleans(), max_size=60))
def test_trust_depends_on_the_history_only_and_has_a_bounded_size(history: list[bool]) -> None:
    trust = Trust()
    for at, passed in enumerate(history):
        trust = after_audit(trust, passed, UnixSeconds(at))
        assert len(trust.strikes) <= 8
    run = next((i for i, passed in enumerate(reversed(history)) if not passed), len(history))
    assert trust.passed == run
    assert 1_000 <= trust.suspicion_ppm() <= 200_000


# ------------------------------------------------------------------------------------------- bearer

KEY = KeySigner(b"\x31" * 32)
COORDINATOR = Address(b"\x05" * 20)
BEARER = Bearer(Address(b"\x06" * 20), KEY.address, UnixSeconds(2_000))
TOKEN = make_token(BEARER, 31337, COORDINATOR, KEY.sign)


def test_bearer_tokens_are_read_back() -> None:
    assert read_token(TOKEN, 31337, COORDINATOR, recover, UnixSeconds(1_999)) == BEARER


@pytest.mark.parametrize(
    ("header", "chain", "coordinator", "now", "code"),
    [
        (TOKEN, 1, COORDINATOR, 1_000, Code.WRONG_SIGNER),
        (TOKEN, 31337, Address(b"\x07" * 20), 1_000, Code.WRONG_SIGNER),
        (TOKEN, 31337, COORDINATOR, 2_001, Code.EXPIRED),
        (TOKEN, 31337, COORDINATOR, 2_000 - 86_400 - 61, Code.EXPIRED),
        (TOKEN.replace("2000", "2001"), 31337, COORDINATOR, 1_000, Code.WRONG_SIGNER),
        (TOKEN.replace("0606", "0607", 1), 31337, COORDINATOR, 1_000, Code.WRONG_SIGNER),
        (TOKEN.replace("Quorate", "Bearer"), 31337, COORDINATOR, 1_000, Code.BAD_SIGNATURE),
        ("Quorate x", 31337, COORDINATOR, 1_000, Code.BAD_SIGNATURE),
        ("", 31337, COORDINATOR, 1_000, Code.BAD_SIGNATURE),
        (TOKEN[:-2], 31337, COORDINATOR, 1_000, Code.BAD_SIGNATURE),
    ],
)
def test_changed_or_foreign_tokens_are_refused(
    header: str, chain: int, coordinator: Address, now: int, code: Code
) -> None:
    with pytest.raises(Refused) as caught:
        read_token(header, chain, coordinator, recover, UnixSeconds(now))
    assert caught.value.code is code


def test_every_refusal_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Code)
    for meaning in MEANINGS.values():
        assert 400 <= meaning.status < 600 and meaning.sentence.endswith(".")
