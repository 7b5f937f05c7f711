"""The simulated court, written from PROTOCOL §5 alone.

It checks evidence again, draws a jury by a later round, takes votes by commit and reveal, and
convicts by two thirds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import Evidence, OpenCase
from quorate_node.core import events as node_events
from quorate_protocol.crypto.commitment import assignment_id, commitment, result_digest
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.crypto.hashing import hash_tuple, sha256
from quorate_protocol.messages.envelope import Envelope, signer
from quorate_protocol.messages.signed import JuryReveal, JuryVote
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.beacon_rounds import round_at, round_time
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, Nonce, Round, UnixSeconds
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


class Court:
    """All cases."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.cases: list[Case] = []
        self._used: set[Hash32] = set()

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
        first = Round(round_at(BEACON, self.chain.schedule.now) + 4)
        case = Case(Nonce(len(self.cases) + 1), effect.accused, effect.executions, first)
        self.cases.append(case)
        self.chain.note(ev.ChainCaseOpened(case.case_id, case.accused, tuple(hashes)))
        named = tuple(
            node_events.CaseExecution(item.order.message.spec_hash, effect.host_class)
            for item in effect.executions
        )
        self.chain.tell(node_events.ChainCaseOpened(case.case_id, case.accused, named))

    def _check(self, item: Evidence, accused: Address) -> Hash32:
        """I5: the evidence is signed, is of this provider, and opens to what it committed."""
        order, session, assignment, commit = (
            item.order.message,
            item.session.message,
            item.assignment.message,
            item.commit.message,
        )
        operator = self.chain.keys[accused].at(assignment.accept_by).address
        assert signer(DOMAIN, item.session, recover) == order.client == session.client, (
            "I5: session"
        )
        assert signer(DOMAIN, item.order, recover) == session.session_key, "I5: order"
        assert signer(DOMAIN, item.assignment, recover) == key("statement").address, (
            "I5: assignment"
        )
        assert signer(DOMAIN, item.commit, recover) == operator, "I5: commit"
        hashed = digest(DOMAIN, assignment)
        assert assignment.assignment_id == assignment_id(
            digest(DOMAIN, order), item.index, item.blind
        ), "I5: blind"
        assert (
            commit.assignment_hash == hashed
            and assignment.provider == accused == item.reveal.provider
        ), "I5: provider"
        result = result_digest(item.reveal.exit_status, item.reveal.output_digest)
        assert commit.commitment == commitment(hashed, accused, item.reveal.salt, result), (
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
        now = self.chain.schedule.now
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
            self.chain.schedule.now + self.chain.limits.jury_window + runs,
        )
        self.chain.note(ev.ChainJuryDrawn(case.case_id, case.jurors))
        self.chain.tell(
            node_events.ChainJuryDrawn(case.case_id, case.jurors, UnixSeconds(case.deadline))
        )

    def _decide(self, case: Case) -> None:
        accused = [
            result_digest(item.reveal.exit_status, item.reveal.output_digest)
            for item in case.executions
        ]
        self._end(
            case, all(self._is_wrong(case, index, digest) for index, digest in enumerate(accused))
        )

    def _is_wrong(self, case: Case, index: int, accused: Hash32) -> bool:
        """Whether two thirds of the jurors, and at least three, agree on another digest."""
        votes = Counter(
            digests[index] for digests in case.opened.values() if digests[index] != ZERO_HASH
        )
        best, count = max(
            votes.items(), key=lambda item: (item[1], item[0]), default=(ZERO_HASH, 0)
        )
        return count >= JURORS_MIN and 3 * count >= 2 * len(case.jurors) and best != accused

    def _end(self, case: Case, is_convicted: bool) -> None:
        case.phase, case.is_convicted = "decided", is_convicted
        slashed = Amount(0)
        if is_convicted:
            pays = sum(
                min(
                    item.order.message.budget,
                    item.commit.message.usage_ms
                    * item.assignment.message.price_per_hour
                    // 3_600_000,
                )
                for item in case.executions
            )
            slashed = self.chain.slash(case.accused, STAKE_MULTIPLE * pays)
        self.chain.note(ev.ChainCaseDecided(case.case_id, is_convicted, slashed))
        self.chain.tell(node_events.ChainCaseDecided(case.case_id))
