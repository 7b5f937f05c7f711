"""The simulated court, written from PROTOCOL §5 alone.

It checks evidence again, draws a jury by a later round, takes votes by commit and reveal, and
convicts by two thirds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import Contradiction, Evidence, OpenCase
from quorate_node.core import events as node_events
from quorate_protocol.crypto.commitment import assignment_id, commitment, result_digest
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.crypto.hashing import hash_tuple, sha256
from quorate_protocol.limits import Limits
from quorate_protocol.messages.envelope import Envelope, signer
from quorate_protocol.messages.signed import JuryReveal, JuryVote
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.beacon_rounds import round_at, round_time
from quorate_protocol.units import (
    KILLED,
    ZERO_HASH,
    Address,
    Amount,
    Hash32,
    Nonce,
    Round,
    UnixSeconds,
)
from quorate_runtime.keys.crypto import recover
from sim.parties import BEACON, DOMAIN, beacon_signature, key

if TYPE_CHECKING:
    from sim.chain import Chain

JURORS_MAX = 7
JURORS_MIN = 3
STAKE_MULTIPLE = 8


@dataclass(slots=True)
class Case:
    """One case on chain."""

    case_id: Nonce
    accused: Address
    executions: tuple[Evidence, ...]
    round: Round
    phase: str = "drawing"
    jurors: tuple[Address, ...] = ()
    deadline: int = 0
    ballots: dict[Address, Hash32] = field(default_factory=dict)
    opened: dict[Address, tuple[Hash32, ...]] = field(default_factory=dict)
    is_convicted: bool = False


Copies = tuple[list[Case], set[Hash32]]


class Court:
    """All cases."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.cases: list[Case] = []
        self._used: set[Hash32] = set()

    def copies(self) -> Copies:
        """Copies of everything that can change."""
        return [
            replace(case, ballots=dict(case.ballots), opened=dict(case.opened))
            for case in self.cases
        ], set(self._used)

    def is_drawing(self) -> bool:
        """Whether a case waits for the round that draws its jury."""
        return any(case.phase == "drawing" for case in self.cases)

    def take_back(self, copies: Copies) -> None:
        """Goes back to earlier copies; they are used once."""
        self.cases, self._used = copies

    def open(self, effect: OpenCase) -> None:
        """Opens a case; Refused unless signatures prove every execution."""
        clients = {item.order.message.client for item in effect.executions}
        if len(clients) < 2 and len(effect.executions) < 3:
            raise Refused(Code.CHAIN, "two clients or three executions")
        hashes = [self._check(item, effect.accused) for item in effect.executions]
        assert len(set(hashes)) == len(hashes) and not set(hashes) & self._used, (
            "I5: an execution is named twice"
        )
        self._used |= set(hashes)
        first = Round(round_at(BEACON, self.chain.now) + 4)
        case = Case(Nonce(len(self.cases) + 1), effect.accused, effect.executions, first)
        self.cases.append(case)
        others = tuple(
            digest(DOMAIN, item.contradiction.assignment.message)
            for item in effect.executions
            if item.contradiction is not None
        )
        self.chain.note(ev.ChainCaseOpened(case.case_id, case.accused, tuple(hashes), others))
        named = tuple(
            node_events.CaseExecution(item.order.message.spec_hash, effect.host_class)
            for item in effect.executions
        )
        self.chain.tell(node_events.ChainCaseOpened(case.case_id, case.accused, named))

    def _check(self, item: Evidence, accused: Address) -> Hash32:
        """I5: the evidence is signed, is of this provider, and opens to what it committed."""
        other = item.contradiction
        assert other is not None and other.assignment.message.provider != accused, (
            "I5: contradiction"
        )
        self._check_run(item, other, other.assignment.message.provider)
        assert other.reveal.exit_status not in KILLED and item.reveal.exit_status not in KILLED, (
            "I5: a killed execution shows nothing"
        )
        theirs = result_digest(other.reveal.exit_status, other.reveal.output_digest)
        mine = result_digest(item.reveal.exit_status, item.reveal.output_digest)
        assert theirs != mine, "I5: what contradicts an execution has another result"
        return self._check_run(item, item, accused)

    def _check_run(
        self, item: Evidence, run: Evidence | Contradiction, provider: Address
    ) -> Hash32:
        """I5: a run of the item's job is signed, and opens to what it committed."""
        assignment, commit = run.assignment.message, run.commit.message
        order, session = item.order.message, item.session.message
        operator = self.chain.keys[provider].at(assignment.accept_by).address
        assert signer(DOMAIN, item.session, recover) == order.client == session.client, (
            "I5: session"
        )
        assert signer(DOMAIN, item.order, recover) == session.session_key, "I5: order"
        assert signer(DOMAIN, run.assignment, recover) == key("statement").address, "I5: assignment"
        assert signer(DOMAIN, run.commit, recover) == operator, "I5: commit"
        hashed = digest(DOMAIN, assignment)
        assert assignment.assignment_id == assignment_id(
            digest(DOMAIN, order), run.index, run.blind
        ), "I5: blind"
        assert (
            commit.assignment_hash == hashed
            and assignment.provider == provider == run.reveal.provider
        ), "I5: provider"
        result = result_digest(run.reveal.exit_status, run.reveal.output_digest)
        assert commit.commitment == commitment(hashed, provider, run.reveal.salt, result), (
            "I5: reveal"
        )
        return hashed

    def vote(self, vote: Envelope[JuryVote]) -> None:
        """Takes a ballot."""
        message = vote.message
        case = self.cases[message.case_id - 1]
        if case.phase != "voting" or message.juror not in case.jurors:
            raise Refused(Code.CHAIN, "no vote is open to this juror")
        case.ballots[message.juror] = message.ballot

    def reveal(self, reveal: JuryReveal) -> None:
        """Takes an opened ballot."""
        case = self.cases[reveal.case_id - 1]
        padded = (*reveal.digests, *[ZERO_HASH] * (3 - len(reveal.digests)))
        ballot = hash_tuple(reveal.case_id, reveal.juror, reveal.salt, *padded)
        if case.phase != "revealing" or reveal.juror not in case.ballots:
            raise Refused(Code.CHAIN, "no such ballot, or not now")
        assert case.ballots[reveal.juror] == ballot, (
            "I5: a juror's ballot does not open to what it votes"
        )
        case.opened[reveal.juror] = reveal.digests

    def advance(self) -> None:
        """Does everything that is due at a new block's time."""
        now = self.chain.now
        for case in self.cases:
            match case.phase:
                case "drawing" if now >= round_time(BEACON, case.round):
                    self._draw(case)
                case "voting" if now > case.deadline or len(case.ballots) == len(case.jurors):
                    case.phase, case.deadline = "revealing", now + self.chain.limits.jury_window
                    self.chain.tell(
                        node_events.ChainVotingEnded(case.case_id, UnixSeconds(case.deadline))
                    )
                case "revealing" if now > case.deadline or len(case.opened) == len(case.ballots):
                    self._decide(case)
                case _:
                    pass

    def _draw(self, case: Case) -> None:
        randomness = sha256(beacon_signature(case.round))
        least, gone = self.chain.limits.slot_stake, {*self.chain.left, case.accused}
        able = [
            owner
            for owner, stake in self.chain.stakes.items()
            if stake >= least and owner not in gone
        ]
        able.sort(key=lambda owner: hash_tuple(randomness, case.case_id, owner))
        case.jurors = tuple(able[:JURORS_MAX])
        if len(case.jurors) < JURORS_MIN:
            self._end(case, is_convicted=False)
            return
        runs = sum(item.assignment.message.max_duration for item in case.executions)
        case.phase, case.deadline = (
            "voting",
            self.chain.now + self.chain.limits.jury_window + runs,
        )
        self.chain.note(ev.ChainJuryDrawn(case.case_id, case.jurors))
        self.chain.tell(
            node_events.ChainJuryDrawn(case.case_id, case.jurors, UnixSeconds(case.deadline))
        )

    def _decide(self, case: Case) -> None:
        convict = [self._is_wrong(case, index, item) for index, item in enumerate(case.executions)]
        self._end(case, all(convict))

    def _is_wrong(self, case: Case, index: int, item: Evidence) -> bool:
        """Whether two thirds of the jurors that revealed, and at least three, found what the
        contradicting execution did.
        """
        assert item.contradiction is not None
        shown = item.contradiction.reveal
        other = result_digest(shown.exit_status, shown.output_digest)
        votes = Counter(
            digests[index] for digests in case.opened.values() if digests[index] != ZERO_HASH
        )
        best, count = max(
            votes.items(), key=lambda item: (item[1], item[0]), default=(ZERO_HASH, 0)
        )
        return count >= JURORS_MIN and 3 * count >= 2 * len(case.opened) and best == other

    def _end(self, case: Case, is_convicted: bool) -> None:
        case.phase, case.is_convicted = "decided", is_convicted
        slashed = Amount(0)
        if is_convicted:
            limits = self.chain.limits
            pays = sum(_jury_pay(item, limits) for item in case.executions)
            votes = Counter(case.opened.values())
            group = max(votes.values())
            paid = sum(votes[each] == group for each in case.opened.values())
            costs = paid * (pays + limits.jury_gas_fee) + limits.jury_gas_fee
            slashed = self.chain.slash(case.accused, max(STAKE_MULTIPLE * pays, costs))
        self.chain.note(ev.ChainCaseDecided(case.case_id, is_convicted, slashed))
        self.chain.tell(node_events.ChainCaseDecided(case.case_id))


def _jury_pay(item: Evidence, limits: Limits) -> int:
    """Returns what a juror gets for an execution."""
    body = item.assignment.message
    longest = body.price_per_hour * body.max_duration // 3600
    return max(min(item.order.message.budget, longest), limits.jury_pay_min)
