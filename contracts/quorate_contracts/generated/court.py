"""Calls, queries and events of `Court`.

Written by `binding_writer` from the contract; do not edit it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.generated.contract_calls import Call, Contract, Query, one, struct_of
from quorate_protocol.messages.signed import Order
from quorate_protocol.units import (
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Price,
    Round,
    Seconds,
    Signature,
    UnixSeconds,
)


@dataclass(frozen=True, slots=True)
class Run:
    """What `Court` calls run."""

    index: int
    blind: Hash32
    provider: Address
    price_per_hour: Price
    max_duration: int
    accept_by: UnixSeconds
    assignment_sig: Signature
    commitment: Hash32
    encrypted_output: Hash32
    usage_ms: int
    beacon_round: int
    commit_sig: Signature


@dataclass(frozen=True, slots=True)
class E:
    """What `Court` calls e."""

    session_key: Address
    up_to: Amount
    expires: UnixSeconds
    session_sig: Signature
    order: Order
    order_sig: Signature
    pool: Hash32
    class_id: Hash32
    run: Run
    contradiction: Run


@dataclass(frozen=True, slots=True)
class Filing:
    """What `Court` calls filing."""

    accuser: Address
    accused: Address
    other: Address
    pool: Hash32
    length: int
    at_block: BlockNumber
    opened_at: UnixSeconds
    opened_by: int
    duration: int
    pay: Amount
    execution: Hash32
    commitment: Hash32
    contradiction: Hash32
    other_commitment: Hash32


@dataclass(frozen=True, slots=True)
class Vote:
    """What `Court` calls vote."""

    place: int
    ballot: Hash32
    sig: Signature


@dataclass(frozen=True, slots=True)
class CourtReveal:
    """What `Court` calls reveal."""

    place: int
    juror: Address
    salt: Hash32
    digest: Hash32


@dataclass(frozen=True, slots=True)
class Ballot:
    """What `Court` calls ballot."""

    juror: Address
    salt: Hash32
    digest: Hash32


@dataclass(frozen=True, slots=True)
class Opening:
    """What `Court` calls opening."""

    exit_status: int
    output_digest: Hash32
    salt: Hash32


@dataclass(frozen=True, slots=True)
class CaseOf:
    """What `Court` calls case_of."""

    phase: int
    moved: int
    floor: int
    voted: int
    revealed: int
    when: int
    tries: int
    chain: int


@dataclass(frozen=True, slots=True)
class CaseOpened:
    """An event of `Court`."""

    execution: Hash32
    accused: Address
    filing: Filing
    spec_hash: Hash32
    input_root: Hash32
    class_id: Hash32


@dataclass(frozen=True, slots=True)
class JuryDrawn:
    """An event of `Court`."""

    execution: Hash32
    jury: tuple[Address, ...]
    vote_by: UnixSeconds


@dataclass(frozen=True, slots=True)
class Decided:
    """An event of `Court`."""

    execution: Hash32
    outcome: int
    taken: Amount
    paid: Amount


@dataclass(frozen=True, slots=True)
class RevealsOpen:
    """An event of `Court`."""

    execution: Hash32
    reveal_by: UnixSeconds


@dataclass(frozen=True, slots=True)
class Voted:
    """An event of `Court`."""

    execution: Hash32
    juror: Address
    ballot: Hash32


@dataclass(frozen=True, slots=True)
class RoundSet:
    """An event of `Court`."""

    execution: Hash32
    round: Round


@dataclass(frozen=True, slots=True)
class Revealed:
    """An event of `Court`."""

    execution: Hash32
    juror: Address
    salt: Hash32
    digest: Hash32


@dataclass(frozen=True, slots=True)
class Court(Contract):
    """The contract `Court`."""

    NAME: ClassVar[str] = "Court"

    def open_case(self, e: E, pay: Amount) -> Call:
        """Accuses the provider of `e.run`. The sender's balance in Escrow pays a whole jury, and
        gets nothing back. `pay` is what a juror gets beside its gas; it may be more than the
        least, for work that jurors decline. It is fixed here, because a sender that knew the
        jury could raise the loss of the accused and be paid by its own jurors.
        """
        return self._call("open_case", e, pay)

    def draw(self, filing: Filing, jury: bytes) -> Call:
        """Draws by the case's beacon round those that a jury of seven misses; `jury` lists who
        was drawn so far. In a long list one call does a part, and the next one goes on. A draw
        that ends with fewer than three jurors, those who voted included, seeks no more votes.
        """
        return self._call("draw", filing, jury)

    def vote(self, execution: Hash32, case_id: Hash32, jury: bytes, votes: Sequence[Vote]) -> Call:
        """Ballots signed by the jurors' operator keys, sent by anyone, one or more at once. The
        window closes when all are in.
        """
        return self._call("vote", execution, case_id, jury, votes)

    def advance(self, execution: Hash32, case_id: Hash32, jury: bytes) -> Call:
        """Moves a case past a deadline. A beacon round that is missing is replaced, twice at
        most. Jurors that did not vote are replaced once, by a new round, if there are more than
        two. Otherwise those who voted go on to their reveals.
        """
        return self._call("advance", execution, case_id, jury)

    def reveal(
        self, execution: Hash32, ballots: Sequence[Hash32], reveals: Sequence[CourtReveal]
    ) -> Call:
        """Opens ballots; needs no signature. `ballots` are the links of their chain, in order."""
        return self._call("reveal", execution, ballots, reveals)

    def decide(
        self,
        filing: Filing,
        jury_hash: Hash32,
        ballots: Sequence[Ballot],
        openings: Sequence[Opening],
    ) -> Call:
        """Opens the commitments of accused and contradiction, pays the jurors, and ends the
        case. Without openings, which anybody may give, it ends one window after the reveals, and
        another case may follow. `ballots` are given in order, as revealed.
        """
        return self._call("decide", filing, jury_hash, ballots, openings)

    def case_of(self, execution: Hash32) -> Query[CaseOf]:
        """The case over an execution as it stands, by the digest of the accused's Assignment;
        all zero when there is none.
        """
        return self._query("case_of", struct_of(CaseOf), execution)

    def stakes(self) -> Query[Address]:
        return self._query("STAKES", one)

    def escrow(self) -> Query[Address]:
        return self._query("ESCROW", one)

    def beacon(self) -> Query[Address]:
        return self._query("BEACON", one)

    def owners_min(self) -> Query[int]:
        return self._query("OWNERS_MIN", one)

    def slot_age(self) -> Query[int]:
        return self._query("SLOT_AGE", one)

    def evidence_age(self) -> Query[int]:
        return self._query("EVIDENCE_AGE", one)

    def duration_max(self) -> Query[int]:
        return self._query("DURATION_MAX", one)

    def rounds_ahead(self) -> Query[int]:
        return self._query("ROUNDS_AHEAD", one)

    def beacon_missing(self) -> Query[int]:
        return self._query("BEACON_MISSING", one)

    def window(self) -> Query[Seconds]:
        return self._query("WINDOW", one)

    def gas_fee(self) -> Query[Amount]:
        return self._query("GAS_FEE", one)

    def jury_pay_min(self) -> Query[int]:
        return self._query("JURY_PAY_MIN", one)


EVENTS: tuple[type, ...] = (CaseOpened, JuryDrawn, Decided, RevealsOpen, Voted, RoundSet, Revealed)
