"""Drives Cases and Court with the same calls as the model: accusations to their end."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule

from contracts.court_model import AHEAD, WINDOW, Ballot, Case, Court, Named
from contracts.fault_machine import FaultedMoney
from contracts.market import ACCUSER, BOSS, TRUE, Evidence
from contracts.money_machine import CLIENTS, OWNERS, WATCHER, Side
from contracts.staking_machine import STAKERS, UNBONDING
from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.cases import jury_pay
from quorate_contracts.bindings.court import CaseId, CaseOutcome, Phase, jury_vote
from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import JuryReveal, Reveal
from quorate_protocol.units import ZERO_HASH, Address, ExitStatus, Hash32, Nonce, Round

MISSING, AGE = DEVNET.jury_beacon_missing, DEVNET.case_evidence_age
KILLED = (512, 513)
Act = Callable[[], None]
TRUTH = result_digest(ExitStatus(0), keccak256(TRUE))
OTHER = result_digest(ExitStatus(0), keccak256(b"what no provider found"))
ACCUSED = st.integers(0, 3)
OPENERS = (WATCHER, STAKERS[3])
LATE = st.sampled_from([0, 1])
MAJORITIES = [
    [view] * count + [rest] * (7 - count)
    for view, rest in (("truth", "other"), ("void", "truth"), ("accused", "truth"))
    for count in (3, 4, 5, 6)
]
VIEWS = st.sampled_from(MAJORITIES) | st.permutations(
    ["accused", "truth", "truth", "truth", "void", "other", "mixed"]
)
CLOSE_VOTES = [["truth"] * 7, ["accused"] * 7, ["truth"] * 4 + ["other"] * 3]
CLOSE_VOTES += [["truth"] + ["void"] * 3 + ["truth"] * 3]
SILENT = st.sampled_from([(0, 0), (0, 0), (0, 2), (2, 0), (4, 0), (0, 4), (5, 5)])
SIDES = st.sampled_from(["truth", "accused", "views", "views"])


@dataclass
class Tried:
    """A case, its evidence, and what its jurors voted."""

    number: CaseId
    case: Case
    side: Side
    evidence: Sequence[Evidence]
    ballots: dict[Address, Ballot] = field(default_factory=dict)

    def reveals(self) -> list[Reveal]:
        """What opens the claims."""
        return [one for each in self.evidence for one in (each.reveal, each.other)]

    def ballot(self, view: str) -> Ballot:
        """A juror's answers: those of one side, void ones, or void for the first alone."""
        answers: dict[str, Hash32 | None] = {"truth": TRUTH, "void": None, "other": OTHER}
        digests = [answers.get(view, each.digest) for each in self.evidence]
        return (None, *digests[1:]) if view == "mixed" else tuple(digests)


class CourtMoney(FaultedMoney):
    """A state machine in which providers are accused."""

    endings: ClassVar[Counter[CaseOutcome]] = Counter()  # of cases, in all runs

    def __init__(self) -> None:
        super().__init__()
        self.court = Court(self.staking, self.world.contracts.deployment.beacon_genesis)
        self.tried: list[Tried] = []
        self.proven: dict[int, Hash32] = {}
        self.withdrawn = 0

    # Evidence

    def _named(self, each: Evidence, client: int) -> Named:
        body, order = each.shown.run.assignment.message, each.shown.job.order.message
        is_killed = each.reveal.exit_status in KILLED
        return Named(
            each.assignment_hash,
            body.accept_by,
            body.max_duration,
            jury_pay(order, body.price_per_hour, body.max_duration, DEVNET),
            None if is_killed else each.digest,
            None if is_killed else TRUTH,
            client,
        )

    def _case(self, accuser: Address, liable: Address, named: list[Named]) -> Case:
        evm, length = self.world.evm, len(self.staking.places)
        number = self.court.round_from(evm.now + AHEAD)
        return Case(accuser, liable, named, evm.now, evm.number, length, number)

    def _opened(
        self, call: Call, case: Case, evidence: Sequence[Evidence], act: Act
    ) -> Tried | None:
        def both() -> None:
            act()
            self.court.open(case)

        if not self.both(case.accuser, call, both):
            return None
        tried = Tried(CaseId(len(self.court.cases)), case, self.side, evidence)
        self.tried.append(tried)
        self._agree(tried)
        return tried

    def _accuse(
        self, accuser: Address, accused: Address, evidence: Sequence[Evidence]
    ) -> Tried | None:
        orders = [each.shown.job.order.message for each in evidence]
        clients = [[who.address for who in CLIENTS].index(order.client) for order in orders]
        named = [self._named(*pair) for pair in zip(evidence, clients, strict=True)]
        case = self._case(accuser, accused, named)
        call = self.world.contracts.cases.open_case([each.shown for each in evidence])
        return self._opened(
            call, case, evidence, lambda: self.court.check_case(case, self.model, accuser)
        )

    # Steps, each for one case

    def _agree(self, tried: Tried) -> None:
        """Contract and model say the same of a case."""
        found, case = self.world.evm.ask(self.world.contracts.court.case(tried.number)), tried.case
        assert (found.phase, found.outcome) == (case.phase, case.outcome)
        assert (found.accused, found.accuser, found.bond) == (case.liable, case.accuser, case.bond)
        assert found.jurors == tuple(case.jurors)
        assert found.voted == sum(1 << seat for seat in case.voted)
        assert found.revealed == sum(1 << seat for seat in case.ballots)
        assert (found.round, found.deadline) == (case.round, case.deadline)
        assert (found.opened_at, found.ended_at) == (case.opened_at, case.ended_at)

    def _step(self, tried: Tried, call: Call, act: Act, sender: Address = BOSS.address) -> None:
        self.both(sender, call, act)
        self._agree(tried)

    def _arrive(self, moment: int) -> None:
        """Waits until a moment that has not passed."""
        self.world.evm.now = max(self.world.evm.now, moment)

    def _prove(self, number: int) -> None:
        self.world.prove(Round(number))
        beacon = self.world.contracts.beacon
        self.proven[number] = self.world.evm.ask(beacon.randomness(Round(number)))

    def _draw(self, tried: Tried) -> None:
        call, evm = self.world.contracts.court.draw_jury(tried.number), self.world.evm
        random = self.proven.get(tried.case.round)
        self._step(tried, call, lambda: self.court.draw(tried.case, random, evm.now))

    def _advance(self, tried: Tried) -> None:
        call, evm = self.world.contracts.court.advance(tried.number), self.world.evm
        random = self.proven.get(tried.case.round)
        self._step(tried, call, lambda: self.court.advance(tried.case, random, evm.now, evm.number))

    def _vote(self, tried: Tried, jurors: Sequence[Address], views: Sequence[str]) -> None:
        votes, domain = [], self.world.domain
        for juror, view in zip(jurors, views, strict=False):
            tried.ballots[juror] = tried.ballots.get(juror, tried.ballot(view))
            digests = [each or ZERO_HASH for each in tried.ballots[juror]]
            body = jury_vote(tried.number, juror, _salt(juror), digests)
            votes.append(seal(domain, body, self.world.operators[juror].sign))
        call, evm = self.world.contracts.court.vote(tried.number, votes), self.world.evm
        self._step(tried, call, lambda: self.court.vote(tried.case, jurors, evm.now))

    def _reveal(self, tried: Tried, jurors: Sequence[Address]) -> None:
        known = {juror: tried.ballots.get(juror, tried.ballot("void")) for juror in jurors}
        number = Nonce(tried.number)
        reveals = [
            JuryReveal(number, juror, tuple(each or ZERO_HASH for each in ballot), _salt(juror))
            for juror, ballot in known.items()
        ]
        call, evm = self.world.contracts.court.reveal(tried.number, reveals), self.world.evm
        self._step(tried, call, lambda: self.court.reveal(tried.case, known, evm.now))

    def _decide(self, tried: Tried, shown: str) -> None:
        reveals = tried.reveals() if shown != "none" else []
        if shown == "wrong":
            reveals = [reveals[-1], *reveals[1:-1], reveals[0]]
        call, evm = self.world.contracts.court.decide(tried.number, reveals), self.world.evm
        self._step(tried, call, lambda: self.court.decide(tried.case, shown, evm.now, evm.number))

    def _try(
        self, tried: Tried, views: list[str], silent: tuple[int, int], late: int, shown: str
    ) -> None:
        """Takes a case from its draw to its end. `silent` counts jurors that do not vote, and that
        do not reveal; `late` is a second after each deadline.
        """
        case = tried.case
        self._prove(case.round)
        self._draw(tried)
        jurors, absent = case.jurors, silent[0]
        if case.phase is Phase.VOTING:
            self._vote(tried, jurors[: len(jurors) - absent], views)
        if case.phase is Phase.VOTING:
            self._arrive(case.deadline + late)
            self._advance(tried)
            self._vote(tried, jurors[len(jurors) - absent :], views[-absent:])
        if case.phase is Phase.DRAWING:
            self._prove(case.round)
            self._draw(tried)
        if case.phase is Phase.VOTING:
            new = [each for each in case.jurors if case.seat(each) not in case.voted]
            self._vote(tried, new[late:], views)
            self._arrive(case.deadline + 1)
            self._advance(tried)
        self._end_of_trial(tried, silent[1], late, shown)

    def _end_of_trial(self, tried: Tried, hidden: int, late: int, shown: str) -> None:
        case = tried.case
        voters = [each for each in case.jurors if case.seat(each) in case.voted]
        if case.phase is Phase.REVEALING:
            self._reveal(tried, voters[hidden:])
        if case.phase is Phase.REVEALING:
            self._arrive(case.deadline + late)
            self._decide(tried, "right" if not late else shown)
            self._reveal(tried, voters[:hidden])
        if shown == "none":
            self._decide(tried, shown)
            self._arrive(case.deadline + WINDOW + late)
        self._decide(tried, shown)
        self._arrive(case.deadline + WINDOW + 1)
        self._decide(tried, "right" if shown == "wrong" else shown)

    @rule(
        accused=ACCUSED,
        opener=st.integers(0, 1),
        clients=st.sampled_from([(0, 1), (0, 1), (1, 1, 0), (0, 0)]),
        seconds=st.sampled_from([30, 120, 300, 301]),
        age=st.sampled_from([0, 1, 1, 1, 5, -1]),
        lies=st.sampled_from([(b"a", 0), (b"a", 0), (b"b", 0), (TRUE, 0), (b"a", 512)]),
        views=VIEWS,
        side=SIDES,
        silent=SILENT,
        late=LATE,
        shown=st.sampled_from(["right", "right", "right", "none", "wrong"]),
        ends=st.booleans(),
    )
    def a_provider_is_accused(
        self,
        accused: int,
        opener: int,
        clients: tuple[int, ...],
        seconds: int,
        age: int,
        lies: tuple[bytes, int],
        views: list[str],
        side: str,
        silent: tuple[int, int],
        late: int,
        shown: str,
        ends: bool,
    ) -> None:
        """An age below zero stands for evidence at its end, or a second beyond it."""
        for client in (0, 1):
            self.deposit_and_allocate(client, 100)
        self.world.evm.travel(seconds + AGE + late if age < 0 else age)
        age = seconds + AGE + late if age < 0 else age
        evidence = [
            self._execution(STAKERS[accused], client, seconds, age, lies[0])
            for client in clients[:-1]
        ]
        last = self._execution(STAKERS[accused], clients[-1], seconds, age, *lies)
        tried = self._accuse(OPENERS[opener], STAKERS[accused], [*evidence, last])
        if tried is not None and ends:
            self._try(tried, views if side == "views" else [side] * 7, silent, late, shown)

    @rule(
        accused=ACCUSED, count=st.integers(2, 3), views=VIEWS, side=SIDES, silent=SILENT, late=LATE
    )
    def a_liar_is_tried(
        self,
        accused: int,
        count: int,
        views: list[str],
        side: str,
        silent: tuple[int, int],
        late: int,
    ) -> None:
        self._try_liar(accused, count, views if side == "views" else [side] * 7, silent, late)

    @rule(
        accused=ACCUSED,
        last=st.lists(st.sampled_from(["truth", "truth", "other", "void"]), min_size=3, max_size=4),
    )
    def few_votes_are_revealed(self, accused: int, last: list[str]) -> None:
        hidden = 7 - len(last)
        self._try_liar(accused, 2, ["truth"] * hidden + last, (0, hidden), late=1)

    def _try_liar(
        self, accused: int, count: int, views: list[str], silent: tuple[int, int], late: int
    ) -> None:
        """Everything about the case is in order, unless the liar has no stake any more."""
        for client in (0, 1):
            self.deposit_and_allocate(client, 1)
        self.world.evm.travel(1)
        liar = STAKERS[accused]
        evidence = [self._execution(liar, k % 2, 120, 1, b"lie") for k in range(count)]
        tried = self._accuse(WATCHER, liar, evidence)
        if tried is not None:
            self._try(tried, views, silent, late, "right")

    def _accuse_of_two(self, accused: int) -> Tried | None:
        for client in (0, 1):
            self.deposit_and_allocate(client, 1)
        self.world.evm.travel(1)
        owner = STAKERS[accused]
        evidence = [self._execution(owner, k, 120, 1, b"lie") for k in (0, 1)]
        return self._accuse(WATCHER, owner, evidence)

    def _accuse_again(self, tried: Tried) -> Tried | None:
        return self._accuse(WATCHER, tried.case.liable, tried.evidence)

    @rule(accused=ACCUSED, late=LATE)
    def evidence_gets_the_time_of_its_void_case_back(self, accused: int, late: int) -> None:
        """And no third case after two that failed."""
        tried = self._accuse_of_two(accused)
        if tried is None:
            return
        self._try(tried, ["void"] * 7, (0, 0), 0, "right")
        case, first = tried.case, tried.case.executions[0]
        ended = first.accept_by + first.max_duration
        self._arrive(ended + AGE + case.ended_at - case.opened_at + late)
        second = self._accuse_again(tried)
        if second is not None:
            self._try(second, ["void"] * 7, (0, 0), 0, "right")
            self._accuse_again(tried)

    @rule(accused=ACCUSED, views=st.sampled_from(CLOSE_VOTES), hidden=LATE)
    def what_a_jury_judged_is_not_judged_again(
        self, accused: int, views: list[str], hidden: int
    ) -> None:
        """The first juror may be too late with its reveal."""
        tried = self._accuse_of_two(accused)
        if tried is not None:
            self._try(tried, views, (0, hidden), hidden, "right")
            self._accuse_again(tried)

    @rule(accused=ACCUSED)
    def a_stake_stays_while_its_case_is_open(self, accused: int) -> None:
        tried, owner = self._accuse_of_two(accused), STAKERS[accused]
        places = enumerate(self.staking.places)
        mine = [place for place, slot in places if slot and slot.owner == owner]
        if tried is not None and mine:
            self._close_slot(owner, mine[0])
            self.world.evm.travel(UNBONDING)
            self._unbond_slot(owner, mine[0])

    @precondition(lambda self: self.tried)
    @rule(back=st.integers(0, 2), views=VIEWS, side=SIDES, late=LATE)
    def a_case_is_opened_again(self, back: int, views: list[str], side: str, late: int) -> None:
        """Refused while it is open, once it is judged, and after two cases that failed."""
        old = self.tried[-1 - min(back, len(self.tried) - 1)]
        if old.side is not self.side:
            return
        self.world.evm.travel(late)
        tried = self._accuse(WATCHER, old.case.liable, old.evidence)
        if tried is not None:
            self._try(tried, views if side == "views" else [side] * 7, (0, 0), 0, "right")

    @precondition(lambda self: any(each.case.phase is Phase.DRAWING for each in self.tried))
    @rule(late=LATE, is_proven=st.booleans())
    def a_round_is_missing(self, late: int, is_proven: bool) -> None:
        tried = next(each for each in self.tried if each.case.phase is Phase.DRAWING)
        self._draw(tried)
        self._arrive(self.court.time_of(tried.case.round) + MISSING + late)
        if is_proven:
            self._prove(tried.case.round)
        self._advance(tried)

    @precondition(lambda self: any(not each.case.ended_at for each in self.tried))
    @rule(
        step=st.sampled_from(["draw", "vote", "advance", "reveal", "decide"]),
        count=st.integers(1, 4),
        views=VIEWS,
        after=st.sampled_from([None, 0, 1]),
    )
    def an_open_case_goes_on(
        self, step: str, count: int, views: list[str], after: int | None
    ) -> None:
        """One step, perhaps in a phase that does not allow it."""
        tried = next(each for each in self.tried if not each.case.ended_at)
        case = tried.case
        if after is not None:
            self._arrive(case.deadline + after)
        if step == "draw":
            self._prove(case.round)
            self._draw(tried)
        elif step == "vote":
            self._vote(tried, (case.jurors or STAKERS)[:count], views)
        elif step == "advance":
            self._advance(tried)
        elif step == "reveal":
            self._reveal(tried, (case.jurors or STAKERS)[:count])
        else:
            self._decide(tried, "right")

    @rule(number=st.integers(-1, len(STAKERS) - 1))
    def the_court_pays(self, number: int) -> None:
        account = STAKERS[number] if number >= 0 else ACCUSER.address
        due = self.court.credits[account]
        call = self.world.contracts.court.withdraw(account)
        if self.both(BOSS.address, call, lambda: self.court.withdraw(account)):
            self.paid_by_others += due * (account in OWNERS)

    @invariant()
    def the_court_has_what_it_owes(self) -> None:
        """I1: Court holds bonds of open cases, credits, and what it burned."""
        court = self.world.contracts.court
        assert self.world.balance(court.address) == self.court.total(), "I1: the court"

    def teardown(self) -> None:
        super().teardown()
        court, evm = self.world.contracts.court, self.world.evm
        for account in (*STAKERS, ACCUSER.address, *self.staking.coordinators):
            assert evm.ask(court.credit_of(account)) == self.court.credits[account], "I1"
        assert evm.ask(court.burned()) == self.court.burned, "I1"
        for each in self.tried:
            CourtMoney.endings[each.case.outcome] += 1
        open_cases = [each for each in self.tried if each.case.outcome is CaseOutcome.OPEN]
        assert all(self.staking.frozen(each.case.liable) for each in open_cases)


def _salt(juror: Address) -> Hash32:
    return keccak256(b"jury salt" + juror)
