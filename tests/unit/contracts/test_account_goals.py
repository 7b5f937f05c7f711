"""Tests which calls an account makes for what it wants, as a table."""

import pytest

from quorate_contracts.account import goals
from quorate_contracts.account.goals import Permit, StakeSlot
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import (
    ZERO_ADDRESS,
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Seconds,
    Signature,
    UnixSeconds,
)

PLACES = [Address(bytes([number]) * 20) for number in range(1, 8)]
MADE = Deployment(31337, BlockNumber(0), DEVNET.name, *PLACES, bytes(96), Seconds(2), 1)
C = Contracts.of(MADE)
CPU, GPU, PEER = Hash32(b"\x01" * 32), Hash32(b"\x02" * 32), Address(b"\x03" * 20)
OPENED = StakeSlot(CPU, 0, BlockNumber(7), UnixSeconds(0))
CLOSED = StakeSlot(CPU, 1, BlockNumber(7), UnixSeconds(100))
LATER = StakeSlot(GPU, 2, BlockNumber(7), UnixSeconds(200))
PERMIT = Permit(Amount(5), UnixSeconds(9), Signature(b"\x01" * 64 + b"\x1b"))
SUM = Amount(5)
ROWS: list[tuple[list[Call], list[tuple[str, tuple[object, ...]]]]] = [
    (goals.open_slots(C, {}, SUM), []),
    (
        goals.open_slots(C, {GPU: 1, CPU: 33}, SUM, allowance=4),
        [
            ("approve", (C.stakes.address, SUM)),
            ("open_slots", (CPU, 16)),
            ("open_slots", (CPU, 16)),
            ("open_slots", (CPU, 1)),
            ("open_slots", (GPU, 1)),
        ],
    ),
    (goals.open_slots(C, {CPU: 2}, SUM, allowance=5), [("open_slots", (CPU, 2))]),
    (goals.top_up(C, Amount(0)), []),
    (goals.top_up(C, SUM), [("approve", (C.stakes.address, SUM)), ("top_up", (SUM,))]),
    (goals.top_up(C, SUM, allowance=9), [("top_up", (SUM,))]),
    (goals.close_slots(C, (OPENED, CLOSED)), [("close_slot", (CPU, 0))]),
    (goals.take_back(C, (OPENED, CLOSED, LATER), UnixSeconds(99)), []),
    (goals.take_back(C, (OPENED, CLOSED, LATER), UnixSeconds(100)), [("unbond_slot", (CPU, 1))]),
    (goals.withdraw(C.escrow, Amount(0)), []),
    (goals.withdraw(C.escrow, SUM), [("withdraw", (SUM,))]),
    (goals.withdraw(C.escrow, SUM, keep=5), []),
    (
        goals.deposit(C.token, C.escrow, SUM, PEER),
        [("approve", (C.escrow.address, SUM)), ("deposit", (SUM, PEER))],
    ),
    (
        goals.deposit(C.token, C.escrow, SUM, PEER, permit=PERMIT),
        [("deposit_with_permit", (SUM, PEER, 9, 27, b"\x01" * 32, b"\x01" * 32))],
    ),
    (goals.deposit_of(C, SUM, None, 5), [("deposit", (SUM, ZERO_ADDRESS))]),
    (
        goals.deposit_of(C, SUM, PEER, 5),
        [("deposit", (SUM, ZERO_ADDRESS)), ("pay", ([int.from_bytes(PEER) << 96 | SUM],))],
    ),
]


@pytest.mark.parametrize(("calls", "wanted"), ROWS)
def test_an_account_makes_the_calls_that_are_missing(
    calls: list[Call], wanted: list[tuple[str, tuple[object, ...]]]
) -> None:
    assert [(call.function, call.arguments) for call in calls] == wanted
