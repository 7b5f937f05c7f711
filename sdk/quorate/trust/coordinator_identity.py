"""What a profile pins of a coordinator at first contact: later answers must say the same, or
nothing is signed.
"""

import os
from pathlib import Path

from msgspec import Struct

from quorate.errors import EvidenceError, ProfileError
from quorate_protocol.codec import canonical
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.limits import BY_NAME, Limits
from quorate_protocol.messages.views import InfoView
from quorate_protocol.ports import BeaconInfo
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.beacon_rounds import Timing
from quorate_protocol.units import Address, Seconds

PERIOD_MAX = 3_600  # seconds between beacon rounds
GENESIS_MAX = 2**40
TRUSTED = "deployment.json"


class CoordinatorIdentity(Struct, frozen=True):
    """Identity of coordinator, deployment and beacon."""

    coordinator: Address
    statement_key: Address
    chain_id: int
    stakes: Address
    escrow: Address
    token: Address
    beacon_key: bytes
    beacon_period: int
    beacon_genesis: int
    limits: str

    @property
    def domain(self) -> Domain:
        """EIP-712 domain of the deployment."""
        return Domain(self.chain_id, self.stakes)

    @property
    def constants(self) -> Limits:
        """The deployment's constants."""
        return BY_NAME[self.limits]

    @property
    def timing(self) -> Timing:
        """By which rounds later batches are drawn."""
        limits = self.constants
        return Timing(
            self.beacon_genesis, limits.beacon_period, limits.reveal_within, limits.max_hold
        )

    @property
    def beacon(self) -> BeaconInfo:
        """When rounds appear."""
        return BeaconInfo(self.beacon_key, Seconds(self.beacon_period), self.beacon_genesis)


def pins_of(info: InfoView) -> CoordinatorIdentity:
    """What to pin of GET /v1/info. EvidenceError when it names no usable deployment."""
    contracts = info.contracts
    missing = [name for name in ("Stakes", "Escrow", "TestToken") if name not in contracts]
    if missing or info.limits not in BY_NAME:
        raise EvidenceError(
            f"info: the coordinator names no {', '.join(missing) or 'known limits'}"
        )
    beacon = info.beacon
    if not (
        0 < info.chain_id < 2**63
        and 0 < beacon.period <= PERIOD_MAX
        and 0 <= beacon.genesis_time < GENESIS_MAX
    ):
        raise EvidenceError(
            f"info: chain {info.chain_id}, beacon each {beacon.period} s from "
            f"{beacon.genesis_time}: there are none such"
        )
    return CoordinatorIdentity(
        coordinator=info.coordinator,
        statement_key=info.statement_key,
        chain_id=info.chain_id,
        stakes=contracts["Stakes"],
        escrow=contracts["Escrow"],
        token=contracts["TestToken"],
        beacon_key=beacon.public_key,
        beacon_period=beacon.period,
        beacon_genesis=beacon.genesis_time,
        limits=info.limits,
    )


def check_pins(path: Path, info: InfoView) -> CoordinatorIdentity:
    """Pins at first contact, compares ever after; before both with the deployment that the
    profile trusts by a file, if there is one.

    EvidenceError names what has changed, or is another.
    """
    fresh = pins_of(info)
    if (path.parent / TRUSTED).exists():
        from quorate_contracts.trusted_deployment import (
            strange,  # here, because it loads the contracts, which most commands need not wait for
        )

        other = strange(path.parent, info)
        if other:
            raise EvidenceError(other)
    if not path.exists():
        _pin(path, fresh)
    try:
        stored = canonical.decode(CoordinatorIdentity, path.read_bytes())
    except (OSError, Refused) as error:
        remedy = (
            "put a backup of it in its place, or make a new profile: quorate --home FOLDER init"
        )
        raise ProfileError(
            f"{path}: the coordinator's identity cannot be read: {error}; {remedy}"
        ) from error
    changed = [
        name
        for name in CoordinatorIdentity.__struct_fields__
        if getattr(stored, name) != getattr(fresh, name)
    ]
    if changed:
        raise EvidenceError(
            f"the coordinator is not the one this profile knows: {', '.join(changed)} changed "
            f"({path.name})"
        )
    return stored


def _pin(path: Path, fresh: CoordinatorIdentity) -> None:
    """Writes it down whole or not at all; what another program of the profile pinned meanwhile
    stands.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        draft.write_bytes(canonical.encode(fresh))
        os.link(draft, path)
    except (
        FileExistsError
    ):  # not re-raised: another program was first, and its pins are what ours are compared with
        pass
    finally:
        draft.unlink(missing_ok=True)
