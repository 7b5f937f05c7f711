"""The values in the coordinator's tables of faults, cases and images that cannot be verified."""

from msgspec import Struct

from quorate_coordinator.core.model.effects import Evidence
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, UnixSeconds


class Fault(Struct, frozen=True):
    """One execution outside the accepted group, which counts against its provider or was outvoted
    by other determinism classes.
    """

    assignment_hash: Hash32
    job_id: Hash32
    client: Address
    at: UnixSeconds
    is_in_no_case: bool = False  # it was killed or outvoted, or its image cannot be verified
    image: Hash32 = ZERO_HASH  # digest of the job's image


class UnverifiableImage(Struct, frozen=True):
    """It gave a provider two results. Until then no job of the client with it is verified."""

    image: Hash32  # see `job_spec.image_digest`
    until: UnixSeconds


class Case(Struct, frozen=True):
    """A case in court over one execution, opened by this coordinator or by another account."""

    execution: Hash32  # digest of the accused's Assignment
    accused: Address
    job_id: Hash32 | None  # None if the state does not have the execution
    evidence: Evidence | None
    key: str = ""  # of the effect that opens it; "" = another account opened it
    burned: Amount = Amount(0)  # by this coordinator
    opened_at: UnixSeconds = UnixSeconds(0)
    case_id: Hash32 | None = None  # None until the chain has it
    jurors: tuple[Address, ...] = ()
    is_convicted: bool | None = None  # None = it is open
    taken: Amount = Amount(0)
    phase: str = "opening"
