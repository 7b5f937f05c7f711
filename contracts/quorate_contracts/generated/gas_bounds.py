"""Measured upper bounds of each transaction's gas. Tests send every call with this gas.

They have room for cold storage, for accounts that are new, for a token that costs more than the
test token, and for what a transaction gets back at its end only.
"""

from collections.abc import Sequence

# Contract.function -> gas, and gas for each item of its lists, in the order of its arguments.
BOUNDS: dict[str, tuple[int, ...]] = {
    "TestToken.approve": (80_000,),
    "TestToken.mint": (110_000,),
    "TestToken.transfer": (90_000,),
    "TestToken.transferFrom": (110_000,),
    "Stakes.register": (250_000,),
    "Stakes.register_coordinator": (320_000,),
    "Stakes.rotate_key": (100_000,),
    "Stakes.change_payout": (150_000,),
    "Stakes.change_network": (90_000,),
    "Stakes.change_posting_key": (60_000,),
    "Stakes.announce": (80_000,),
    "Stakes.unbond_coordinator": (130_000,),
    "Stakes.open_slots": (260_000, 45_000),
    "Stakes.close_slot": (150_000,),
    "Stakes.unbond_slot": (170_000,),
    "Stakes.exit": (400_000,),  # of an owner with slots in 16 classes
    "Stakes.top_up": (150_000,),
    "Stakes.register_for": (400_000,),
    "Stakes.open_slots_for": (400_000, 45_000),
    "Stakes.close_slot_for": (280_000,),
    "Stakes.unbond_slot_for": (300_000,),
    "Stakes.change_payout_for": (280_000,),
    "Stakes.exit_for": (540_000,),
    "Stakes.burn": (400_000,),
    "Escrow.deposit": (250_000,),
    "Escrow.deposit_with_permit": (350_000,),
    "Escrow.withdraw": (150_000,),
    "Escrow.withdraw_for": (220_000,),
    "Escrow.pay": (80_000, 32_000),
    "Escrow.set_limits": (110_000,),
    "Escrow.take": (90_000,),
    "Escrow.lock": (100_000,),
    "Escrow.lock_for": (180_000,),
    "Escrow.lock_many": (110_000, 34_000),
    "Escrow.redeem": (130_000, 50_000, 36_000),
    "Escrow.payroll": (110_000, 36_000),
    "Escrow.draw": (160_000, 22_000),
    "Escrow.draw_many": (60_000, 110_000),
    "Escrow.give_back": (110_000,),
    "Escrow.close": (70_000,),
    "Escrow.close_for": (160_000,),
    "Escrow.finish": (90_000,),
    "Jobs.fund": (140_000,),
    "Jobs.show": (170_000,),
    "Jobs.pay": (120_000, 40_000),
    "Jobs.reclaim": (110_000,),
    "Jobs.release": (80_000,),
    "Beacon.submit": (250_000,),
    "Court.open_case": (300_000,),
    "Court.draw": (6_000_000,),  # one part of a list of thousands of places
    "Court.vote": (90_000, 20_000),
    "Court.advance": (90_000,),
    "Court.reveal": (60_000, 4_000, 12_000),
    "Court.decide": (500_000, 36_000, 8_000),  # a convict may have slots in 16 classes
    "Faults.equivocation": (520_000,),  # likewise
    "Faults.two_acks": (220_000,),
}
COUNTS = {"Stakes.open_slots": 1, "Stakes.open_slots_for": 2}
"""The argument that counts the items, of functions without a list."""


def gas_of(contract: str, function: str, arguments: Sequence[object]) -> int:
    name = f"{contract}.{function}"
    base, *each = BOUNDS[name]
    items = [len(value) for value in arguments if isinstance(value, list)]
    if name in COUNTS:
        items = [int(str(arguments[COUNTS[name]]))]
    return base + sum(gas * count for gas, count in zip(each, items, strict=True))
