"""Events of the contracts as dataclasses, and `decode_log`. Field names are those of the contracts
in snake_case. Amounts are in token units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from re import sub

from quorate_contracts.artifact import artifact
from quorate_protocol.units import Address, Amount, BlockNumber, Hash32, Round, Seconds, UnixSeconds


@dataclass(frozen=True, slots=True)
class Registered:
    """Stakes: an account became a provider."""

    account: Address
    index: int
    operator_key: Address
    payout: Address
    peer_key: Hash32
    box_key: Hash32
    network: Hash32


@dataclass(frozen=True, slots=True)
class CoordinatorRegistered:
    """Stakes: an account became a coordinator."""

    account: Address
    index: int
    statement_key: Address
    posting_key: Address


@dataclass(frozen=True, slots=True)
class ClientEnrolled:
    """Stakes: a client got its index at its first deposit."""

    account: Address
    index: int


@dataclass(frozen=True, slots=True)
class KeyRotated:
    """Stakes: an account has a new operator or statement key."""

    account: Address
    key: Address


@dataclass(frozen=True, slots=True)
class PayoutChanged:
    """Stakes: a provider's money goes to a new address."""

    account: Address
    payout: Address


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    """Stakes: a provider is reached in a new network."""

    account: Address
    network: Hash32


@dataclass(frozen=True, slots=True)
class PostingKeyChanged:
    """Stakes: a coordinator has a new posting key."""

    account: Address
    key: Address


@dataclass(frozen=True, slots=True)
class SlotOpened:
    """Stakes: a slot can be drawn from `from_block` on."""

    host_class: Hash32
    account: Address
    place: int
    from_block: BlockNumber


@dataclass(frozen=True, slots=True)
class SlotClosed:
    """Stakes: a slot cannot be drawn from `until_block` on."""

    host_class: Hash32
    account: Address
    place: int
    until_block: BlockNumber


@dataclass(frozen=True, slots=True)
class Unbonded:
    """Stakes: stake or a bond was paid back."""

    account: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class Frozen:
    """Stakes: the number of open cases against an account changed."""

    account: Address
    cases: int


@dataclass(frozen=True, slots=True)
class Slashed:
    """Stakes: a module took stake or bond. A provider's slots up to `out_block` are closed; it is 0
    for a coordinator.
    """

    account: Address
    amount: Amount
    out_block: BlockNumber


@dataclass(frozen=True, slots=True)
class Fined:
    """Stakes: a module took a small part of stake or bond. `out_block` is 0 if slots stay open."""

    account: Address
    amount: Amount
    out_block: BlockNumber


@dataclass(frozen=True, slots=True)
class ToppedUp:
    """Stakes: an account restored stake or bond."""

    account: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class Exited:
    """Stakes: a provider closed all slots, or a coordinator retired."""

    account: Address


@dataclass(frozen=True, slots=True)
class Deposited:
    """Escrow: a client's tokens came in."""

    client: Address
    amount: Amount
    index: int


@dataclass(frozen=True, slots=True)
class Allocated:
    """Escrow: a client put money aside for a coordinator."""

    client: Address
    coordinator: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """Escrow: from `ready_at` on, the coordinator may have `amount` less."""

    client: Address
    coordinator: Address
    amount: Amount
    ready_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class Released:
    """Escrow: an allocation became free deposit again."""

    client: Address
    coordinator: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class WithdrawalRequested:
    """Escrow: a withdrawal was announced."""

    client: Address
    amount: Amount
    ready_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Escrow: a client's tokens went out."""

    client: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class EpochPosted:
    """Epochs: a root was posted. `charged` is what vouchers have brought into the pool so far."""

    coordinator: Address
    epoch: int
    root: Hash32
    sum_final: Amount
    sum_held: Amount
    charged: Amount


@dataclass(frozen=True, slots=True)
class Claimed:
    """Epochs: a claim was paid."""

    coordinator: Address
    account: Address
    receiver: Address
    amount: Amount
    epoch: int


@dataclass(frozen=True, slots=True)
class Announced:
    """Epochs: a coordinator's peer key, and its multiaddrs, one a line. The bytes can be any."""

    coordinator: Address
    peer_key: Hash32
    addresses: bytes


@dataclass(frozen=True, slots=True)
class RoundProven:
    """Beacon: a round is on chain."""

    round: Round
    randomness: Hash32


@dataclass(frozen=True, slots=True)
class CaseOpened:
    """Court: a case was opened. Each list has three entries in the case's order, zero after the
    last execution.
    """

    case_id: int
    accused: Address
    accuser: Address
    host_class: Hash32
    round: Round
    bond: Amount
    spec_hashes: tuple[Hash32, ...]
    input_roots: tuple[Hash32, ...]
    assignment_hashes: tuple[Hash32, ...]
    contradictions: tuple[Hash32, ...]  # Assignments of the other owners' executions
    commitments: tuple[Hash32, ...]
    max_durations: tuple[Seconds, ...]
    pays: tuple[Amount, ...]


@dataclass(frozen=True, slots=True)
class JuryDrawn:
    """Court: these jurors may vote until `vote_by`. After a redraw the list holds the jurors that
    stay and the new ones.
    """

    case_id: int
    jurors: tuple[Address, ...]
    vote_by: UnixSeconds


@dataclass(frozen=True, slots=True)
class Voted:
    """Court: a juror has voted."""

    case_id: int
    juror: Address
    ballot: Hash32


@dataclass(frozen=True, slots=True)
class RevealsOpen:
    """Court: voting is over, and jurors open their ballots."""

    case_id: int
    reveal_by: UnixSeconds


@dataclass(frozen=True, slots=True)
class Revealed:
    """Court: a juror opened its ballot. A zero digest means that it had no result."""

    case_id: int
    juror: Address
    digests: tuple[Hash32, ...]


@dataclass(frozen=True, slots=True)
class Redraw:
    """Court: this round will draw jurors in the place of those that did not vote."""

    case_id: int
    round: Round


@dataclass(frozen=True, slots=True)
class Decided:
    """Court: a case has ended. `outcome` is a `court.CaseOutcome`."""

    case_id: int
    accused: Address
    convicted: bool
    outcome: int
    slashed: Amount
    burned: Amount


@dataclass(frozen=True, slots=True)
class Credited:
    """Court: an account can withdraw this amount."""

    account: Address
    case_id: int
    amount: Amount


@dataclass(frozen=True, slots=True)
class FaultProven:
    """Faults: stake or bond was taken. `kind` is a `faults.FaultKind`. `subject` is an assignment's
    hash, or a job.
    """

    liable: Address
    kind: int
    subject: Hash32
    slashed: Amount
    burned: Amount


StakesEvent = (
    Registered
    | CoordinatorRegistered
    | ClientEnrolled
    | KeyRotated
    | PayoutChanged
    | PostingKeyChanged
    | SlotOpened
    | SlotClosed
    | Unbonded
    | Frozen
    | Slashed
    | Fined
    | ToppedUp
    | NetworkChanged
    | Exited
)
EscrowEvent = Deposited | Allocated | ReleaseRequested | Released | WithdrawalRequested | Withdrawn
CourtEvent = CaseOpened | JuryDrawn | Voted | RevealsOpen | Revealed | Redraw | Decided | Credited
FaultsEvent = FaultProven
EpochsEvent = EpochPosted | Claimed | Announced
Event = StakesEvent | EscrowEvent | EpochsEvent | RoundProven | CourtEvent | FaultsEvent
EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__args__}


def decode_log(
    contracts: Mapping[Address, str], address: Address, topics: Sequence[bytes], data: bytes
) -> Event | None:
    """The event in a log of one of `contracts` (address to artifact name). None for logs of other
    contracts and for token transfers.
    """
    name = contracts.get(address)
    if name is None or not topics:
        return None
    kind = artifact(name).events.get(Hash32(topics[0]))
    if kind is None or kind.name not in EVENTS:
        return None
    return EVENTS[kind.name](
        **{_snake(key): value for key, value in kind.parameters_of(topics, data).items()}
    )


def _snake(name: str) -> str:
    return sub(r"([A-Z])", lambda match: "_" + match[1].lower(), name)
