"""Compares the eligible list of a receipt's Ack with the chain's stake slots (PROTOCOL §5 Draw).

The whole list follows from the slots and the shown withdrawals. So a coordinator that leaves an
owner out, whether a draw met it or not, gives another root.
"""

from collections.abc import Iterator, Sequence

from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.messages.receipt import Check, Receipt
from quorate_protocol.messages.stake_slot import StakeSlot


def checks(receipt: Receipt, slots: Sequence[StakeSlot]) -> Iterator[Check]:
    """Yields the comparison with all places of the host class's list at the Ack's block."""
    ack = receipt.ack.message
    gone = {item.offer.message.provider for item in receipt.withdrawals}
    wanted = [slot for slot in slots if slot.is_active(ack.slot_block) and slot.owner not in gone]
    by_index = {slot.index: slot for slot in wanted}
    for item in receipt.slots:
        left_out = by_index.get(item.proof.index)
        if item.slot is None and left_out is not None:
            yield Check(
                f"chain:eligible[{left_out.index}]",
                False,
                f"0x{left_out.owner.hex()} has stake there, did not withdraw, and is left out",
            )
    yield Check(
        "chain:eligible",
        EligibleList(wanted, len(slots)).root == ack.eligible_root,
        "the list has every active stake slot whose owner did not withdraw, and no other",
    )
