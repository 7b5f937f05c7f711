"""What the constructor of each contract is given. Every constant comes from the limits."""

from collections.abc import Mapping

from quorate_protocol.limits import Limits
from quorate_protocol.ports import BeaconInfo
from quorate_protocol.units import Address
from quorate_runtime.beacon.bls import public_key_words, words_bytes

Arguments = tuple[object, ...]


def constructor_arguments(
    places: Mapping[str, Address], limits: Limits, beacon: BeaconInfo, faucet: bool
) -> dict[str, Arguments]:
    """Returns the constructor arguments of each contract. `places`: addresses by name."""
    return {
        "TestToken": (faucet, 0),
        "Stakes": _stakes(places, limits),
        "Escrow": _escrow(places, limits),
        "Epochs": _epochs(places, limits),
        "Beacon": (
            words_bytes(public_key_words(beacon.public_key)),
            beacon.genesis_time,
            beacon.period,
        ),
        "Court": _court(places, limits),
        "Cases": _cases(places, limits),
        "Faults": _faults(places, limits),
    }


def _stakes(places: Mapping[str, Address], limits: Limits) -> Arguments:
    return (
        places["TestToken"],
        places["Court"],
        places["Faults"],
        places["Escrow"],
        limits.slot_stake,
        limits.coordinator_bond,
        limits.unbond_after,
        limits.profile_delay,
    )


def _escrow(places: Mapping[str, Address], limits: Limits) -> Arguments:
    return (
        places["TestToken"],
        places["Stakes"],
        places["Epochs"],
        limits.allocation_release,
        limits.withdrawal_delay,
    )


def _epochs(places: Mapping[str, Address], limits: Limits) -> Arguments:
    return (places["Stakes"], places["Escrow"], limits.challenge_window)


def _court(places: Mapping[str, Address], limits: Limits) -> Arguments:
    return (
        places["TestToken"],
        places["Stakes"],
        places["Cases"],
        places["Beacon"],
        limits.jury_slot_age,
        limits.jury_rounds_ahead,
        limits.jury_beacon_missing,
        limits.jury_window,
        limits.jury_gas_fee,
        limits.jury_seat_deposit,
    )


def _cases(places: Mapping[str, Address], limits: Limits) -> Arguments:
    return (
        places["Stakes"],
        places["Escrow"],
        places["Court"],
        limits.jury_owners_min,
        limits.case_evidence_age,
        limits.case_allocation_age,
        limits.case_duration_max,
        limits.jury_pay_min,
    )


def _faults(places: Mapping[str, Address], limits: Limits) -> Arguments:
    return (
        places["TestToken"],
        places["Stakes"],
        limits.jury_gas_fee,
        limits.coordinator_fault_penalty,
        limits.case_evidence_age,
    )
