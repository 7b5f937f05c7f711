"""Compares a receipt with the deployment that its reader knows: chain, contracts, beacon, times.

Client, provider and `quorate verify --deployment` use it after `receipt_checks.verify`.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.limits import Limits
from quorate_protocol.messages.beacon_rounds import Timing
from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.messages.receipt import Check, Receipt
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.units import Address


class Pins(Struct, frozen=True):
    """What a reader knows of its deployment. `statement_key` is None if it knows no coordinator."""

    domain: Domain
    beacon_key: bytes  # 96-byte compressed G2 point
    timing: Timing
    statement_key: Address | None = None


def timing_of(beacon: BeaconInfo, limits: Limits) -> Timing:
    return Timing(
        beacon.genesis_time,
        beacon.period,
        limits.reveal_within,
        limits.max_hold,
        limits.accept_within,
    )


def checks(body: Receipt, pins: Pins) -> Iterator[Check]:
    found = Domain(body.chain_id, body.stakes)
    yield Check(
        "pin:network",
        found == pins.domain,
        f"the receipt is of chain {body.chain_id} and Stakes 0x{body.stakes.hex()}, the "
        f"deployment of chain {pins.domain.chain_id} and Stakes "
        f"0x{pins.domain.verifying_contract.hex()}",
    )
    yield Check("pin:beacon", body.beacon_key == pins.beacon_key, "the deployment's beacon")
    yield Check("pin:timing", body.timing == pins.timing, "the deployment's rounds and times")
    if pins.statement_key is not None:
        yield Check(
            "pin:statementKey",
            body.coordinator_key == pins.statement_key,
            f"0x{body.coordinator_key.hex()} signed, and the coordinator's statement key is "
            f"0x{pins.statement_key.hex()}",
        )


def list_checks(receipt: Receipt, slots: Sequence[StakeSlot]) -> Iterator[Check]:
    """Yields the comparison with all places of the pools' lists at the Ack's block."""
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
