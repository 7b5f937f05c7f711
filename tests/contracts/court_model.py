"""A model of Cases and Court in plain Python: who may open a case, who judges it, who pays.

Pays come from `quorate_protocol` and from what the coordinator itself computes for a bond.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.money_model import Model, need
from contracts.staking_model import LIST_MAX, Staking
from quorate_contracts.bindings.court import CaseOutcome, Phase
from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.limits import DEVNET, JURORS, JURORS_MIN, SLASH_MULTIPLE
from quorate_protocol.units import Address, Hash32

WINDOW, FEE, FAILED_MAX = DEVNET.jury_window, DEVNET.jury_gas_fee, 2
CASE_EXECUTIONS_MIN = 2
AHEAD = DEVNET.jury_rounds_ahead * DEVNET.beacon_period
Ballot = tuple[Hash32 | None, ...]  # a digest for each execution; None = void


@dataclass(frozen=True)
class Named:
    """One execution of a case. `mine` is the provider's digest, None if the machine killed one of
    the pair; `other` is the contradiction's.
    """

    hash: Hash32  # of the Assignment
    accept_by: int
    max_duration: int
    pay: int  # of a juror
    mine: Hash32 | None
    other: Hash32 | None
    client: int


@dataclass
class Case:
    """One case at Court. Seats are places of the jury."""

    accuser: Address
    liable: Address
    executions: Sequence[Named]
    opened_at: int
    block: int
    length: int  # of the slot list at the opening
    round: int
    phase: Phase = Phase.DRAWING
    seats: list[Address | None] = field(default_factory=lambda: [None] * JURORS)
    voted: set[int] = field(default_factory=set)
    ballots: dict[int, Ballot] = field(default_factory=dict)  # those revealed
    is_redrawn: bool = False
    deadline: int = 0
    ended_at: int = 0
    outcome: CaseOutcome = CaseOutcome.OPEN
    closed: set[int] = field(default_factory=set)  # executions that a jury judged
    failed: set[int] = field(default_factory=set)

    @property
    def bond(self) -> int:
        return JURORS * (sum(each.pay for each in self.executions) + FEE)

    @property
    def jurors(self) -> list[Address]:
        return [juror for juror in self.seats if juror is not None]

    @property
    def duration(self) -> int:
        return sum(each.max_duration for each in self.executions)

    def seat(self, juror: Address) -> int:
        need(juror in self.seats, "juror")
        return self.seats.index(juror)


@dataclass
class History:
    """What earlier cases mean for an execution."""

    case: Case
    position: int
    seconds: int = 0  # in earlier cases
    failed: int = 0  # earlier cases that failed on it


@dataclass
class Court:
    """All cases. Times are in seconds, amounts in token units."""

    staking: Staking
    genesis: int  # of the beacon
    cases: list[Case] = field(default_factory=list)
    named: dict[Hash32, History] = field(default_factory=dict)
    credits: Counter[Address] = field(default_factory=Counter)
    burned: int = 0

    def total(self) -> int:
        """What Court holds."""
        bonds = sum(case.bond for case in self.cases if case.outcome is CaseOutcome.OPEN)
        return bonds + sum(self.credits.values()) + self.burned

    def round_from(self, at: int) -> int:
        """The first round that appears at or after a moment."""
        return max(0, -(-(at - self.genesis) // DEVNET.beacon_period)) + 1

    def time_of(self, number: int) -> int:
        return self.genesis + (number - 1) * DEVNET.beacon_period

    def check_case(self, case: Case, model: Model, accuser: Address) -> None:
        """Whether an accusation may be opened with honest signatures."""
        now, named = case.opened_at, case.executions
        need(accuser != case.liable, "accuser")
        need(self.staking.stakes[case.liable] > 0, "stake")
        self.check_owners(case.liable, accuser)
        need(len(named) > 2 or named[0].client != named[1].client, "clients")
        for each in named:
            need(each.accept_by < now, "early")
            need(model.was_bonded(each.accept_by), "bond")
            if len(named) == CASE_EXECUTIONS_MIN:
                since = model.clients[each.client].since
                need(0 < since <= each.accept_by - DEVNET.case_allocation_age, "allocation")
            self.check_named(each, now)
        need(case.duration <= DEVNET.case_duration_max, "duration")

    def check_owners(self, *sides: Address) -> None:
        need(len(self.staking.owners() - set(sides)) >= DEVNET.jury_owners_min, "owners")

    def check_named(self, each: Named, now: int) -> None:
        """An execution is in one case at a time, and its evidence ages while it is in none."""
        before = self.named.get(each.hash)
        seconds = 0
        if before is not None:
            case, place = before.case, before.position
            need(case.phase is Phase.DECIDED and place not in case.closed, "named")
            seconds = before.seconds + case.ended_at - case.opened_at
            need(before.failed + (place in case.failed) < FAILED_MAX, "named")
        ended = each.accept_by + each.max_duration
        need(now <= ended + DEVNET.case_evidence_age + seconds, "late")

    def open(self, case: Case) -> None:
        """Takes a case whose evidence was checked."""
        for place, each in enumerate(case.executions):
            before = self.named.get(each.hash)
            seconds = failed = 0
            if before is not None:
                old = before.case
                seconds = before.seconds + old.ended_at - old.opened_at
                failed = before.failed + (before.position in old.failed)
            self.named[each.hash] = History(case, place, seconds, failed)
        self.cases.append(case)
        self.staking.freeze(case.liable)

    def draw(self, case: Case, random: Hash32 | None, now: int) -> None:
        need(case.phase is Phase.DRAWING, "phase")
        need(random is not None, "beacon")
        assert random is not None
        number = self.cases.index(case) + 1
        seed = hash_tuple(random, number, int(case.is_redrawn))
        excluded = [case.liable, case.accuser, *case.jurors]
        kept = {seat: case.seats[seat] for seat in case.voted}
        drawn = self._drawn(case, seed, JURORS - len(kept), set(excluded))
        has_new = bool(drawn)
        case.seats = [
            kept[seat] if seat in kept else (drawn.pop(0) if drawn else None)
            for seat in range(JURORS)
        ]
        case.phase, case.deadline = Phase.VOTING, now + WINDOW + case.duration
        if len(case.jurors) < JURORS_MIN:
            self._end(case, CaseOutcome.VOID, now, 0)
        elif not has_new:
            self._open_reveals(case, now)

    def _drawn(self, case: Case, seed: Hash32, want: int, excluded: set[Address]) -> list[Address]:
        """Owners in the order of a shuffle of all places, as many as are wanted."""
        assert case.length <= LIST_MAX
        order, found = list(range(case.length)), list[Address]()
        since = min(each.accept_by for each in case.executions) - DEVNET.jury_slot_age
        for k in range(case.length):
            if len(found) >= want:
                break
            roll = k + int.from_bytes(hash_tuple(seed, k), "big") % (case.length - k)
            order[k], order[roll] = order[roll], order[k]
            slot = self.staking.places[order[k]]
            if slot is None or slot.opened_at > since:
                continue
            if self.staking.is_active(slot, case.block) and slot.owner not in excluded:
                excluded = excluded | {slot.owner}
                found.append(slot.owner)
        return found

    def vote(self, case: Case, jurors: Sequence[Address], now: int) -> None:
        need(case.phase is Phase.VOTING and now <= case.deadline, "phase")
        voted = set(case.voted)
        for juror in jurors:
            seat = case.seat(juror)
            need(seat not in voted, "voted")
            voted.add(seat)
        case.voted = voted
        if len(voted) == len(case.jurors):
            self._open_reveals(case, now)

    def advance(self, case: Case, random: Hash32 | None, now: int, block: int) -> None:
        if case.phase is Phase.DRAWING:
            need(random is None, "phase")
            need(now > self.time_of(case.round) + DEVNET.jury_beacon_missing, "early")
            if not case.is_redrawn:
                self._end(case, CaseOutcome.NO_BEACON, now, block)
                return
        else:
            need(case.phase is Phase.VOTING, "phase")
            need(now > case.deadline, "early")
            self._fine(case, set(range(JURORS)) - case.voted, now, block)
            if not case.is_redrawn:
                case.is_redrawn, case.phase = True, Phase.DRAWING
                case.round = self.round_from(now + AHEAD)
                return
        if len(case.voted) < JURORS_MIN:
            self._end(case, CaseOutcome.VOID, now, block)
        else:
            self._open_reveals(case, now)

    def reveal(self, case: Case, ballots: dict[Address, Ballot], now: int) -> None:
        need(case.phase is Phase.REVEALING and now <= case.deadline, "phase")
        opened = dict(case.ballots)
        for juror, ballot in ballots.items():
            seat = case.seat(juror)
            need(seat in case.voted and seat not in opened, "revealed")
            opened[seat] = ballot
        case.ballots = opened
        if set(opened) == case.voted:
            case.phase, case.deadline = Phase.DECIDING, now

    def decide(self, case: Case, shown: str, now: int, block: int) -> None:
        """`shown` says which openings come: right, wrong, or none."""
        is_over = case.phase is Phase.REVEALING and now > case.deadline
        need(case.phase is Phase.DECIDING or is_over, "phase")
        need(shown != "wrong", "reveal")
        need(shown != "none" or now > case.deadline + WINDOW, "early")
        self._fine(case, case.voted - set(case.ballots), now, block)
        every = set(range(len(case.executions)))
        is_enough = len(case.ballots) >= JURORS_MIN
        case.failed = every
        outcome = CaseOutcome.UNOPENED if is_enough else CaseOutcome.VOID
        if shown == "right" and is_enough:
            outcome = self._judged(case, every)
        self._end(case, outcome, now, block)

    def _judged(self, case: Case, every: set[int]) -> CaseOutcome:
        """What three or more ballots say (PROTOCOL §5, Verdict)."""
        right, wrong, is_void = set(), set(), False
        for place, each in enumerate(case.executions):
            votes = Counter(ballot[place] for ballot in case.ballots.values())
            is_void = is_void or 2 * votes.pop(None, 0) >= len(case.ballots)
            found, count = (votes.most_common(1) or [(None, 0)])[0]
            is_found = count >= JURORS_MIN and 3 * count >= 2 * len(case.ballots)
            if each.mine is None or each.mine == each.other:
                right.add(place)
            elif is_found and found == each.other:
                wrong.add(place)
            elif is_found and found == each.mine:
                right.add(place)
        if wrong == every:
            case.closed, case.failed = every, set()
            return CaseOutcome.CONVICTED
        case.closed, case.failed = right, every - right - wrong
        return CaseOutcome.VOID if is_void else CaseOutcome.ACQUITTED

    def withdraw(self, account: Address) -> None:
        need(self.credits[account] > 0, "amount")
        self.credits[account] = 0

    def _open_reveals(self, case: Case, now: int) -> None:
        case.phase, case.deadline = Phase.REVEALING, now + WINDOW

    def _fine(self, case: Case, seats: set[int], now: int, block: int) -> None:
        for seat in sorted(seats):
            juror = case.seats[seat]
            if juror is not None:
                self.burned += self.staking.fine(juror, DEVNET.jury_seat_deposit, now, block)

    def _end(self, case: Case, outcome: CaseOutcome, now: int, block: int) -> None:
        """Pays everybody (PROTOCOL §5): who was right first, then the jurors."""
        owed, left = self._owed(case), case.bond
        total = funds = sum(owed.values())
        self.staking.freeze(case.liable, -1)
        if outcome is CaseOutcome.CONVICTED:
            pays = sum(each.pay for each in case.executions)
            loss = max(SLASH_MULTIPLE * pays, total + FEE)
            taken = self.staking.slash(case.liable, loss, now, block)
            own = min(taken, FEE)
            self.credits[case.accuser] += left + own
            funds, left = min(total, taken - own), taken - own
        elif outcome is CaseOutcome.VOID:
            self.credits[case.accuser] += left - total
            left = total
        for seat, amount in owed.items():
            juror, share = case.seats[seat], amount * funds // total
            assert juror is not None
            self.credits[juror] += share
            left -= share
        self.burned += left
        was_judged = case.phase in (Phase.DECIDING, Phase.REVEALING)
        if not was_judged and outcome is not CaseOutcome.CONVICTED:
            case.failed = set(range(len(case.executions)))
        case.phase, case.outcome, case.ended_at = Phase.DECIDED, outcome, now

    def _owed(self, case: Case) -> dict[int, int]:
        """What each seat earns: before the reveals the voters' gas, then the largest groups'
        executions too.
        """
        if case.phase in (Phase.DRAWING, Phase.VOTING):
            return dict.fromkeys(sorted(case.voted), FEE)
        sizes = Counter(case.ballots.values())
        largest = max(sizes.values(), default=0)
        return {
            seat: FEE
            + sum(
                each.pay
                for each, digest in zip(case.executions, ballot, strict=True)
                if digest is not None
            )
            for seat, ballot in sorted(case.ballots.items())
            if sizes[ballot] == largest
        }
