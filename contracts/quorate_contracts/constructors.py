"""What the constructor of each contract is given. Every constant comes from the limits."""

from collections.abc import Mapping

from quorate_protocol.limits import Limits
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Address
from quorate_runtime.keys.bls import public_key_words, words_bytes

Arguments = tuple[object, ...]


def constructor_arguments(
    places: Mapping[str, Address], limits: Limits, beacon: BeaconInfo, faucet: bool
) -> dict[str, Arguments]:
    return {
        "TestToken": (faucet, 0),
        "Stakes": (
            places["TestToken"],
            places["Court"],
            places["Faults"],
            limits.slot_stake,
            limits.coordinator_bond,
            limits.unbond_after,
            limits.profile_delay,
        ),
        "Escrow": (
            places["TestToken"],
            places["Stakes"],
            places["Court"],
            places["Jobs"],
            limits.client_close,
            limits.coordinator_close,
        ),
        "Jobs": (
            places["Escrow"],
            places["Stakes"],
            limits.evidence_window,
            limits.escrow_evidence_age,
        ),
        "Beacon": (
            words_bytes(public_key_words(beacon.public_key)),
            beacon.genesis_time,
            beacon.period,
        ),
        "Court": (
            places["Stakes"],
            places["Escrow"],
            places["Beacon"],
            limits.jury_owners_min,
            limits.jury_slot_age,
            limits.case_evidence_age,
            limits.case_duration_max,
            limits.jury_rounds_ahead,
            limits.jury_beacon_missing,
            limits.jury_window,
            limits.jury_gas_fee,
            limits.jury_pay_min,
        ),
        "Faults": (
            places["Stakes"],
            limits.slot_stake,
            limits.jury_gas_fee,
            limits.case_evidence_age,
        ),
    }
