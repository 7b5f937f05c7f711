"""The values in the coordinator's tables of faults, cases and images that cannot be verified."""

from msgspec import Struct

from quorate_coordinator.core.effects import Evidence
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, Nonce, UnixSeconds


class Fault(Struct, frozen=True):
    """One execution whose result was outside the accepted group."""

    assignment_hash: Hash32
    job_id: Hash32
    client: Address
    at: UnixSeconds
    is_case_used: bool = False
    checked: int = (
        0  # how many of its provider's executions were checked by then, this one included
    )
    # the court hears it only in a case of three, because its client had allocated too shortly
    # before (PROTOCOL §5)
    is_for_three: bool = False
    price: Amount = Amount(0)  # what the job cost its client
    image: Hash32 = ZERO_HASH  # digest of the job's image


class UnverifiableImage(Struct, frozen=True):
    """An image with which a client's job gave one provider two results. Until then no job of that
    client with this image is verified.
    """

    image: Hash32  # see `job_spec.image_digest`
    until: UnixSeconds


class Case(Struct, frozen=True):
    """A case in court, opened by this coordinator or by another account. The chain gives
    `case_id`.
    """

    key: str
    accused: Address
    jobs: tuple[Hash32, ...]
    executions: tuple[Evidence, ...]
    case_id: Nonce | None = None
    jurors: tuple[Address, ...] = ()
    is_convicted: bool | None = None
    slashed: Amount = Amount(0)
    phase: str = "opening"
