"""Compares payrolls and redemptions with public logs, without network."""

import pytest

from quorate.trust.settlement_check import (
    PAYROLL,
    REDEMPTION,
    Comparison,
    PayLog,
    Settlement,
    compare,
)
from quorate_protocol.messages.views import ReputationHead
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32

COORDINATOR, ANNA, BERT, CLIENT = (Address(bytes([n]) * 20) for n in range(1, 5))
ROOTS = tuple(Hash32(bytes([n]) * 32) for n in range(4))
LOG = PayLog(
    ReputationHead(COORDINATOR, COORDINATOR, 1, COORDINATOR, 3, ROOTS[3]),
    ROOTS,
    (((ANNA, Amount(5)),), ((ANNA, Amount(2)), (BERT, Amount(7))), ((BERT, Amount(1)),)),
)


def compared(root: Hash32, paid: dict[Address, int], of_providers: bool = True) -> Comparison:
    kind = PAYROLL if of_providers else REDEMPTION
    sums = {account: Amount(amount) for account, amount in paid.items()}
    return compare(Settlement(kind, COORDINATOR, root, sums, of_providers), LOG)


@pytest.mark.rule("6.73", "7.3")
@pytest.mark.parametrize(
    ("root", "paid", "verdicts"),
    [
        (ROOTS[2], {ANNA: 7, BERT: 7}, ["covered", "covered"]),
        (ROOTS[2], {BERT: 8}, ["more"]),  # the eighth is in a later line
        (ROOTS[3], {BERT: 8}, ["covered"]),
        (ROOTS[1], {BERT: 1}, ["unknown"]),
        (ZERO_HASH, {ANNA: 6}, ["covered"]),  # without a root: the whole log
    ],
)
def test_pay_is_compared_with_the_log_up_to_the_root_of_the_transaction(
    root: Hash32, paid: dict[Address, int], verdicts: list[str]
) -> None:
    found = compared(root, paid)
    assert [row.verdict for row in found.rows] == verdicts
    assert found.is_good == ("more" not in verdicts)


@pytest.mark.rule("6.73")
def test_a_root_that_the_log_never_had_is_no_evidence() -> None:
    found = compared(Hash32(b"\x09" * 32), {ANNA: 1})
    assert not found.is_good and found.lines is None and "no root" in found.unproven[0]


@pytest.mark.rule("6.73")
def test_what_clients_paid_is_not_proven_because_the_log_names_none() -> None:
    found = compared(ROOTS[3], {CLIENT: 9}, of_providers=False)
    assert found.is_good and found.lines == 3
    assert [(row.verdict, row.logged) for row in found.rows] == [("unknown", None)]
    assert "names no clients" in found.unproven[0]
