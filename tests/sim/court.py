"""The simulated court, written from PROTOCOL §5 alone.

It checks evidence again, draws a jury by a later round, takes votes by commit and reveal, and
convicts by two thirds. A case is named by the accused's Assignment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quorate_coordinator.core.model.effects import OpenCase, ShownRun
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import hash_tuple, sha256
from quorate_protocol.messages.beacon_rounds import round_at, round_time
from quorate_protocol.messages.commitment import assignment_id, commitment, result_digest
from quorate_protocol.messages.envelope import Envelope, signer
from quorate_protocol.messages.signed import JuryVote
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import KILLED, ZERO_HASH, Address, Hash32, Round, UnixSeconds
from quorate_runtime.keys.crypto import recover
from sim.escrow import COURT
from sim.parties import BEACON, DOMAIN, beacon_signature, key

if TYPE_CHECKING:
    from sim.chain import Chain

JURORS_MAX = 7
JURORS_MIN = 3
VOTES_ENOUGH = 5


@dataclass(slots=True)
class Case:
    """One case on chain."""

    case_id: Hash32
    accused: Address
    accuser: Address
    pay: int  # of one juror, beside its gas
    opened: OpenCase
    round: Round
    phase: str = "drawing"
    jurors: tuple[Address, ...] = ()
    deadline: int = 0
    is_redrawn: bool = False
    ballots: dict[Address, Hash32] = field(default_factory=dict)
    votes: dict[Address, Hash32] = field(default_factory=dict)
    is_convicted: bool = False
    taken: int = 0

    @property
    def execution(self) -> Hash32:
        """The name of the case on chain."""
        return digest(DOMAIN, self.opened.execution.run.assignment.message)


class Court:
    """All cases. `closed` are executions that no case names again."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.cases: list[Case] = []
        self.closed: set[Hash32] = set()

    def copies(self) -> tuple[list[Case], set[Hash32]]:
        """Copies of everything that can change."""
        cases = [
            replace(case, ballots=dict(case.ballots), votes=dict(case.votes)) for case in self.cases
        ]
        return cases, set(self.closed)

    def is_drawing(self) -> bool:
        """Whether a case waits for the round that draws its jury."""
        return any(case.phase == "drawing" for case in self.cases)

    def take_back(self, copies: tuple[list[Case], set[Hash32]]) -> None:
        """Goes back to earlier copies; they are used once."""
        self.cases, self.closed = copies

    def open(self, effect: OpenCase, accuser: Address) -> None:
        """Opens a case and burns its jury's pay; Refused if money or owners are missing."""
        limits = self.chain.limits
        accused = effect.execution.run.assignment.message.provider
        execution = self._check(effect, accused)
        if self._open_case(execution) is not None or execution in self.closed:
            raise Refused(Code.CHAIN, "named")
        if len(self._able(accuser, effect)) < limits.jury_owners_min:
            raise Refused(Code.CHAIN, "owners")
        body, order = effect.execution.run.assignment.message, effect.execution.order.message
        most = min(order.budget, body.price_per_hour * body.max_duration // 3600)
        assert effect.pay >= max(limits.jury_pay_min, most), "I5: jurors get too little"
        cost = JURORS_MAX * (effect.pay + limits.jury_gas_fee)
        self.chain.escrow.move(accuser, COURT, cost)
        first = Round(round_at(BEACON, self.chain.now) + 4)
        case_id = hash_tuple("case", execution, len(self.cases))
        case = Case(case_id, accused, accuser, effect.pay, effect, first)
        self.cases.append(case)
        self.chain.case_opened(case)

    def _open_case(self, execution: Hash32) -> Case | None:
        cases = (case for case in self.cases if case.execution == execution)
        return next((case for case in cases if case.phase != "decided"), None)

    def _case(self, execution: Hash32, phase: str) -> Case:
        case = self._open_case(execution)
        if case is None or case.phase != phase:
            raise Refused(Code.CHAIN, "no such case, or not now")
        return case

    def _able(self, accuser: Address, effect: OpenCase) -> list[Address]:
        """Owners that may judge: all with open slots but the parties."""
        named = (effect.execution.run, effect.execution.contradiction)
        owners = (run.assignment.message.provider for run in named)
        parties = {accuser, *owners, *self.chain.left}
        return [
            owner
            for owner, stake in self.chain.stakes.items()
            if owner not in parties
            and 2 * stake >= self.chain.staked[owner]
            and self.chain.pools[owner] == named[0].assignment.message.pool
        ]

    def _check(self, effect: OpenCase, accused: Address) -> Hash32:
        """I5: the evidence is signed, is of this provider, and opens to what it committed."""
        mine, other = effect.execution.run, effect.execution.contradiction
        assert other.assignment.message.provider != accused, "I5: contradiction"
        self._check_run(effect, other, other.assignment.message.provider)
        assert not {mine.reveal.exit_status, other.reveal.exit_status} & set(KILLED), (
            "I5: a killed execution shows nothing"
        )
        assert _result(mine) != _result(other), (
            "I5: what contradicts an execution has another result"
        )
        same = mine.commit.message.class_id == other.commit.message.class_id
        assert same, "I5: two determinism classes contradict nothing"
        return self._check_run(effect, mine, accused)

    def _check_run(self, effect: OpenCase, run: ShownRun, provider: Address) -> Hash32:
        """I5: a run of the item's job is signed, and opens to what it committed."""
        item = effect.execution
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
        opened = commitment(hashed, provider, run.reveal.salt, _result(run))
        assert commit.commitment == opened, "I5: reveal"
        return hashed

    def vote(self, execution: Hash32, vote: Envelope[JuryVote]) -> None:
        """Takes a ballot."""
        case, message = self._case(execution, "voting"), vote.message
        if message.juror not in case.jurors or message.case_id != case.case_id:
            raise Refused(Code.CHAIN, "no vote is open to this juror")
        case.ballots[message.juror] = message.ballot
        self.chain.voted(execution, message.juror, message.ballot)

    def reveal(self, execution: Hash32, juror: Address, salt: Hash32, result: Hash32) -> None:
        """Takes an opened ballot."""
        case = self._case(execution, "revealing")
        if juror not in case.ballots:
            raise Refused(Code.CHAIN, "no such ballot")
        assert case.ballots[juror] == hash_tuple(execution, juror, salt, result), (
            "I5: a juror's ballot does not open to what it votes"
        )
        case.votes[juror] = result

    def advance(self) -> None:
        """Does everything that is due at a new block's time."""
        now = self.chain.now
        for case in self.cases:
            match case.phase:
                case "drawing" if now >= round_time(BEACON, case.round):
                    self._draw(case)
                case "voting" if now > case.deadline or len(case.ballots) == len(case.jurors):
                    self._end_votes(case)
                case "revealing" if now > case.deadline or len(case.votes) == len(case.ballots):
                    self._decide(case)
                case _:
                    pass

    def _draw(self, case: Case) -> None:
        randomness = sha256(beacon_signature(case.round))
        able = [
            owner for owner in self._able(case.accuser, case.opened) if owner not in case.jurors
        ]
        able.sort(key=lambda owner: hash_tuple(randomness, case.case_id, owner))
        found = able[: JURORS_MAX - len(case.ballots)]
        if len(found) + len(case.ballots) < JURORS_MIN or not found:
            self._end_votes(case)
            return
        kept = [juror for juror in case.jurors if juror in case.ballots]
        case.jurors = (*kept, *found)
        duration = case.opened.execution.run.assignment.message.max_duration
        case.phase = "voting"
        case.deadline = self.chain.now + self.chain.limits.jury_window + duration
        self.chain.jury_drawn(case)

    def _end_votes(self, case: Case) -> None:
        """Replaces once those who did not vote; then those who voted open their ballots."""
        is_missing = len(case.ballots) < min(VOTES_ENOUGH, len(case.jurors))
        if case.phase == "voting" and is_missing and not case.is_redrawn:
            case.phase, case.is_redrawn = "drawing", True
            case.round = Round(round_at(BEACON, self.chain.now) + 4)
            return
        if not case.ballots:
            self._end(case)
            return
        case.phase, case.deadline = "revealing", self.chain.now + self.chain.limits.jury_window
        self.chain.voting_ended(case, UnixSeconds(case.deadline))

    def _decide(self, case: Case) -> None:
        """Two thirds of the answers, and at least three, decide; jurors that agree are paid."""
        item, limits = case.opened.execution, self.chain.limits
        votes = Counter(case.votes.values())
        size = max(votes.values(), default=0)
        found = max((each for each in votes if votes[each] == size), default=ZERO_HASH)
        mine, other = _result(item.run), _result(item.contradiction)
        if size >= JURORS_MIN and 3 * size >= 2 * len(case.votes):
            case.is_convicted = found == other
            if found in (other, mine):
                self.closed.add(case.execution)
        if case.is_convicted:
            cost = JURORS_MAX * (case.pay + limits.jury_gas_fee)
            case.taken = self.chain.slash(case.accused, cost // 2)
        for juror, result in case.votes.items():
            if votes[result] == size:
                gas = limits.jury_gas_fee
                self.chain.escrow.move(COURT, juror, gas + (case.pay if result != ZERO_HASH else 0))
        self._end(case)

    def _end(self, case: Case) -> None:
        case.phase = "decided"
        self.chain.case_decided(case)


def _result(run: ShownRun) -> Hash32:
    return result_digest(run.reveal.exit_status, run.reveal.output_digest)
