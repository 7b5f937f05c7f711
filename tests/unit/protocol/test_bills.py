"""Tests who pays what ran: the client, the audit fund, or nobody (PROTOCOL §4 Outputs and pay)."""

import pytest

from quorate_protocol.messages.signed import Ack, Order, Verdict
from quorate_protocol.rules import settlement
from quorate_protocol.rules.settlement import Ran
from quorate_protocol.units import Amount, Bps, Hash32, Label, Outcome, Price, Seconds, Small
from quorate_protocol.values import replace
from vectors.generate import message_of

SECONDS = 36  # one execution of the whole duration costs 1,000 at 0.10 USD an hour


def name(number: int) -> Hash32:
    return Hash32(bytes([number + 1]) * 32)


def bill_of(
    results: str,
    outcome: Outcome,
    *,
    rule: Label = Label.QUORUM_2,
    read: tuple[int, ...] = (),
    pay: int = 500,
    was_held: bool = False,
    has_audit_billed: bool = False,
    **changes: object,
) -> tuple[str, str, int]:
    """Returns what a client pays: numbers of the executions that it pays and that the fund pays,
    and the charge. "-" stands for an execution that was not revealed; an accepted group has the
    result A.
    """
    fields: dict[str, object] = {
        "max_price_per_hour": Price(100_000),
        "budget": Amount(3_060),
        "max_duration": Seconds(SECONDS),
        "max_executions": Small(7),
        "audit_premium_bps": Bps(500),
        "accept_unverified": False,
    }
    order: Order = replace(message_of(Order), **{**fields, **changes})
    ack: Ack = replace(message_of(Ack), rule=rule, fee_bps=Bps(200))
    ran = [
        Ran(name(number), Amount(pay), None if result == "-" else Hash32(result.encode() * 32))
        for number, result in enumerate(results)
    ]
    group = tuple(item.assignment_hash for item in ran if item.result == b"A" * 32)
    verdict: Verdict = replace(
        message_of(Verdict),
        outcome=outcome,
        label=rule,
        group=group if outcome is Outcome.ACCEPTED else (),
        faulted=(),
        read=tuple(name(number) for number in read),
    )
    found = settlement.bill(order, ack, verdict, ran, has_audit_billed, was_held)
    assert found.is_readable == bool(found.by_client)
    assert [item.assignment_hash for item in found.split.credits] == list(found.by_client)
    numbers = {item.assignment_hash: str(index) for index, item in enumerate(ran)}
    return (
        "".join(numbers[item] for item in found.by_client),
        "".join(numbers[item.assignment_hash] for item in found.by_fund),
        found.split.charged,
    )


@pytest.mark.rule("4.52", "4.53", "5.35", "5.36", "5.110")
@pytest.mark.parametrize(
    ("results", "outcome", "changes", "expected"),
    [
        # quorum-2: the client pays those that agree
        ("AA", Outcome.ACCEPTED, {}, ("01", "", 1_020)),
        ("AABA", Outcome.ACCEPTED, {}, ("01", "3", 1_020)),  # drawn to confirm the fault
        ("ABA", Outcome.ACCEPTED, {"read": (1,)}, ("02", "", 1_020)),
        # its own limit: all that were revealed
        ("AB", Outcome.UNRESOLVED, {"max_executions": Small(2)}, ("01", "", 1_020)),
        ("ABC", Outcome.UNRESOLVED, {}, ("012", "", 1_530)),
        ("AB-C", Outcome.UNRESOLVED, {"max_executions": Small(3)}, ("013", "", 1_530)),
        ("AB", Outcome.UNRESOLVED, {"budget": Amount(1_100)}, ("01", "", 1_020)),
        ("AB", Outcome.UNRESOLVED, {"budget": Amount(612)}, ("01", "", 612)),
        # the market ran out on two results: nobody pays
        ("AB", Outcome.UNRESOLVED, {}, ("", "", 0)),
        ("AB-----", Outcome.UNRESOLVED, {}, ("", "", 0)),
        ("--", Outcome.UNRESOLVED, {}, ("", "", 0)),
        # lines of its log were read
        ("AB", Outcome.UNRESOLVED, {"read": (0,)}, ("0", "", 510)),
        ("-B", Outcome.UNRESOLVED, {"read": (0,)}, ("", "", 0)),
        # nobody could confirm it
        ("A", Outcome.CANNOT_VERIFY, {}, ("", "0", 0)),
        ("A", Outcome.CANNOT_VERIFY, {"read": (0,)}, ("0", "", 510)),
        ("A-A", Outcome.CANNOT_VERIFY, {"accept_unverified": True}, ("0", "2", 510)),
        # stopped by its client
        ("A", Outcome.LAPSED, {}, ("0", "", 510)),
    ],
)
def test_who_pays_what_ran(
    results: str, outcome: Outcome, changes: dict[str, object], expected: tuple[str, str, int]
) -> None:
    assert bill_of(results, outcome, **changes) == expected  # type: ignore[arg-type]


@pytest.mark.rule("4.21", "4.23")
def test_the_premium_fund_pays_the_auditors_of_an_adaptive_job() -> None:
    def adaptive(results: str, outcome: Outcome, **more: object) -> tuple[str, str, int]:
        return bill_of(results, outcome, rule=Label.ADAPTIVE, **more)  # type: ignore[arg-type]

    assert adaptive("AA", Outcome.ACCEPTED) == ("0", "1", 535)
    assert adaptive("AA", Outcome.ACCEPTED, has_audit_billed=True) == ("01", "", 1_020)
    assert adaptive("ABC", Outcome.UNRESOLVED) == ("012", "", 1_530), "and no premium"
    # A re-execution of a held job moves held pay only: its first verdict has charged it.
    for outcome in (Outcome.ACCEPTED, Outcome.CANNOT_VERIFY):
        assert adaptive("AA", outcome, was_held=True) == ("0", "1", 535)
    assert adaptive("ABC", Outcome.UNRESOLVED, was_held=True) == ("0", "12", 535)
    assert adaptive("AB", Outcome.UNRESOLVED, was_held=True) == ("0", "", 535)
