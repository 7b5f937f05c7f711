"""A coordinator's identity, which a profile pins (stores) at first contact. If later answers
differ, the client signs nothing.
"""

import os
from pathlib import Path

from msgspec import Struct

from quorate.base.errors import EvidenceError, ProfileError
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.limits import BY_NAME, Limits
from quorate_protocol.messages.beacon_rounds import Timing
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.messages.views import InfoView
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.receipts.receipt_pins import timing_of
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Seconds

PERIOD_MAX = 3_600  # seconds between beacon rounds
GENESIS_MAX = 2**40
TRUSTED = "deployment.json"


class CoordinatorIdentity(Struct, frozen=True):
    """Identity of the coordinator, its deployment and its beacon."""

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
    genesis: Hash32 = ZERO_HASH  # of the chain's first block

    @property
    def domain(self) -> Domain:
        return Domain(self.chain_id, self.stakes)

    @property
    def constants(self) -> Limits:
        return BY_NAME[self.limits]

    @property
    def timing(self) -> Timing:
        """Returns the times that decide which beacon rounds draw later batches."""
        return timing_of(self.beacon, self.constants)

    @property
    def beacon(self) -> BeaconInfo:
        return BeaconInfo(self.beacon_key, Seconds(self.beacon_period), self.beacon_genesis)


def identity_of(info: InfoView) -> CoordinatorIdentity:
    """Returns the identity in an answer of GET /v1/info. Raises EvidenceError if it names no usable
    deployment.
    """
    contracts = info.contracts
    missing = [name for name in ("Stakes", "Escrow", "TestToken") if name not in contracts]
    if missing or info.limits not in BY_NAME:
        raise EvidenceError(
            f"info: the coordinator's answer lacks {', '.join(missing) or 'known limits'}"
        )
    beacon = info.beacon
    if not (
        0 < info.chain_id < 2**63
        and 0 < beacon.period <= PERIOD_MAX
        and 0 <= beacon.genesis_time < GENESIS_MAX
    ):
        raise EvidenceError(
            f"info: the coordinator names impossible values: chain {info.chain_id}, a beacon "
            f"every {beacon.period} s from {beacon.genesis_time}"
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
        genesis=info.genesis,
    )


def check_identity(path: Path, info: InfoView) -> CoordinatorIdentity:
    """Pins the identity at first contact and compares it later. Returns the pinned identity.

    A trusted deployment file in the profile is compared first. Raises EvidenceError, which names
    what differs.
    """
    fresh = identity_of(info)
    if (path.parent / TRUSTED).exists():
        from quorate_contracts.trusted_deployment import (
            # imported here because it loads the contracts, which most commands do not need
            strange,
        )

        other = strange(path.parent, info)
        if other:
            raise EvidenceError(other)
    if not path.exists():
        _pin(path, fresh)
    stored = read_pinned(path)
    changed = [
        name
        for name in CoordinatorIdentity.__struct_fields__
        if getattr(stored, name) != getattr(fresh, name)
    ]
    if changed:
        raise EvidenceError(
            f"this is not the coordinator that this profile knows: {', '.join(changed)} "
            f"changed ({path.name})"
        )
    return stored


def read_pinned(path: Path) -> CoordinatorIdentity:
    """Returns the pinned identity. Raises ProfileError if it cannot be read."""
    try:
        return canonical.decode(CoordinatorIdentity, path.read_bytes())
    except (OSError, Refused) as error:
        remedy = "restore it from a backup, or make a new profile: quorate --home FOLDER init"
        raise ProfileError(
            f"{path}: the coordinator's identity cannot be read: {error}; {remedy}"
        ) from error


def _pin(path: Path, fresh: CoordinatorIdentity) -> None:
    """Writes the pinned identity, whole or not at all. If another program of the profile was first,
    its file stays.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        draft.write_bytes(canonical.encode(fresh))
        os.link(draft, path)
    except FileExistsError:  # not re-raised: ours are compared with the pins of the other program
        pass
    finally:
        draft.unlink(missing_ok=True)
