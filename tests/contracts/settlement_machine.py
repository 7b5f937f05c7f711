"""Drives Settlement with the same calls as the model: jobs settled at once, announced, answered."""

from collections.abc import Mapping
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis.stateful import invariant, rule

from contracts.challenge_machine import ChallengedMoney
from contracts.market import BOSS, session_key
from contracts.money_machine import CLIENTS, OWNERS, WATCHER
from contracts.settlement_evidence import Signing, signed_job
from contracts.settlement_model import EVIDENCE_AGE, Credited, Settlements
from quorate_contracts.bindings.settlement import JobEvidence, Opening, ShownCredit
from quorate_contracts.bindings.settlement_events import SettlementOpened
from quorate_protocol.crypto.merkle import FullLog, credit_entry
from quorate_protocol.limits import DEVNET
from quorate_protocol.rules.epoch_tree import prove
from quorate_protocol.units import ZERO_HASH, Amount, Nonce
from quorate_protocol.values import replace

RESPONSE, DURATION = DEVNET.settle_response, 30
PRICE = 18_000  # of one hour: 100 for the usage below
USAGE_MS = 20_000
NONCES = st.sampled_from([0, 11, 12])
SHARES = st.sampled_from([(0, 1), (1, 2), (0, 1, 2), (2, 0)])
ODDITIES: dict[str, dict[str, int]] = {
    "none": {},
    "a short budget": {"budget": 299},
    "more usage than the time had": {"usage_ms": 10**9},
    "more usage than the receipt allows": {
        "usage_ms": 10**9,
        "max_duration": 300,
        "price_per_hour": 3_600,
    },
    "usage of a whole run": {"usage_ms": DURATION * 1000},
    "the order's price": {"max_price_per_hour": PRICE},
    "above the order's price": {"max_price_per_hour": PRICE - 1},
    "nothing is due": {"price_per_hour": 0},
}
"""Changes of a job's messages. Each is a bound, or one beyond it."""
NOTHING_ODD = ODDITIES["none"]


@dataclass(frozen=True)
class Told:
    """What a rule says about a job, apart from its oddity. Times are in seconds."""

    client: int
    nonce: int
    providers: tuple[int, ...]
    first_index: int = 0
    age: int = 40  # since acceptBy
    order_ends: int = 3600  # after acceptBy
    session_ends: int = 3600  # after acceptBy
    answer: bytes = b"answer"


AGES = st.sampled_from([0, 1, 40, DURATION + EVIDENCE_AGE, DURATION + EVIDENCE_AGE + 1])
ENDS = st.sampled_from([-1, 0, 3600, 3600, 3600])


class SettledMoney(ChallengedMoney):
    """A state machine in which single jobs are settled, by their coordinators or by strangers."""

    def __init__(self) -> None:
        super().__init__()
        clients = [client.address for client in CLIENTS]
        self.settlements = [
            Settlements(side.model, self.credits, self.world.domain, clients, OWNERS)
            for side in self.sides
        ]

    @property
    def jobs(self) -> Settlements:
        """The model of the coordinator that acts now."""
        return self.settlements[self.sides.index(self.side)]

    def _job(self, told: Told, odd: Mapping[str, int] = NOTHING_ODD) -> JobEvidence:
        """Returns evidence of a job. Its session has the terms that the client signs just now."""
        client, evm = CLIENTS[told.client], self.world.evm
        signing = Signing(
            self.world.domain,
            evm.now,
            client,
            session_key(client),
            self.c,
            self.side.statement_key,
            self.world.operators,
        )
        accept_by = evm.now - told.age
        changes: dict[str, object] = {
            "price_per_hour": PRICE,
            "usage_ms": USAGE_MS,
            "budget": 1_000,
            "accept_by": accept_by,
            "expiry": accept_by + told.order_ends,
            "expires": accept_by + told.session_ends,
            "up_to": self.model.clients[told.client].up_to,
            "time": min(accept_by + 25, evm.now),
            **odd,
        }
        owners = [OWNERS[number] for number in told.providers]
        return signed_job(signing, told.nonce, owners, told.answer, told.first_index, changes)

    def _settle(self, job: JobEvidence, is_known: bool = False) -> None:
        settlement, now = self.world.contracts.settlement, self.world.evm.now
        self.both(
            self.side.poster.address,
            settlement.settle_job(job, is_known),
            lambda: self.jobs.settle([job], now, is_known),
        )

    def _open(self, job: JobEvidence, is_known: bool = False) -> Opening | None:
        """Announces a settlement; returns None if both refuse it."""
        jobs, now, world = self.jobs, self.world.evm.now, self.world
        expected: list[Opening] = []

        def act() -> None:
            expected.append(jobs.opening(job, now, is_known))
            jobs.open(expected[0])

        call = world.contracts.settlement.open(job, is_known)
        mined = self.both_mined(WATCHER, call, act)
        if mined is None:
            return None
        (event,) = (each for each in mined.events if isinstance(each, SettlementOpened))
        assert Opening.of(event.opening) == expected[0], "the contract announces another pay"
        return expected[0]

    def _execute(self, opening: Opening) -> None:
        call = self.world.contracts.settlement.execute(opening)
        now = self.world.evm.now
        self.both(BOSS.address, call, lambda: self.jobs.execute(opening, now))

    @rule(
        client=st.integers(0, 1),
        nonce=NONCES,
        providers=st.sampled_from([(0, 1), (0, 1, 2), (1, 1), (2,)]),
        first_index=st.sampled_from([0, 1, 62, 63]),
        age=AGES,
        ends=st.tuples(ENDS, ENDS),
        oddity=st.sampled_from(list(ODDITIES)),
        is_known=st.booleans(),
    )
    def a_job_is_settled_at_once(
        self,
        client: int,
        nonce: int,
        providers: tuple[int, ...],
        first_index: int,
        age: int,
        ends: tuple[int, int],
        oddity: str,
        is_known: bool,
    ) -> None:
        self.deposit_and_allocate(client, 1000)
        told = Told(client, nonce, providers, first_index, age, *ends)
        self._settle(self._job(told, ODDITIES[oddity]), is_known)

    @rule(client=st.integers(0, 1), beyond=st.integers(0, 1))
    def settled_credit_leaves_the_allocations(self, client: int, beyond: int) -> None:
        """A nonce of its own, so that the job is not settled before."""
        self.deposit_and_allocate(client, 1000)
        self._settle(self._job(Told(client, 24 + 12 * self.steps, (0, 1))))
        self.held_credits_reach_the_allocations(client, 99, beyond)

    @rule(client=st.integers(0, 1), nonce=NONCES, spare=st.integers(-1, 1))
    def a_job_reaches_the_session_and_the_allocation(
        self, client: int, nonce: int, spare: int
    ) -> None:
        who = self.model.clients[client]
        self.deposit_and_allocate(client, 1000)
        self._sign_session(client, who.charged + 200 + spare, 10**6)
        self._settle(self._job(Told(client, nonce, (0, 1))))
        self._sign_session(client, 10**9, 10**6)
        if who.allocated > who.charged:
            told = Told(client, 13, (0, 1))
            budget = 3 * ((who.allocated - who.charged + spare) // 2)
            changes = {"budget": max(3, budget), "price_per_hour": 10**6, "usage_ms": 10**9}
            self._settle(self._job(told, changes | {"max_price_per_hour": 10**6}))

    @rule(nonce=NONCES, first=st.integers(0, 1), second=st.integers(0, 1), index=NONCES)
    def jobs_are_settled_together(self, nonce: int, first: int, second: int, index: int) -> None:
        for client in (first, second):
            self.deposit_and_allocate(client, 1000)
            self._post(self.model.newest(), 0, [(client, self.model.clients[client].charged)])
        jobs = [
            self._job(Told(first, nonce, (0, 1))),
            self._job(Told(second, nonce, (1, 2), first_index=index)),
        ]
        settlement, now = self.world.contracts.settlement, self.world.evm.now
        call = settlement.settle_many(self.c, jobs)
        self.both(
            self.side.poster.address, call, lambda: self.jobs.settle(jobs, now, is_known=True)
        )

    @rule(
        client=st.integers(0, 1),
        nonce=NONCES,
        providers=SHARES,
        oddity=st.sampled_from(list(ODDITIES)),
        early=st.integers(0, 1),
        amount=st.sampled_from([1, 100, 1000]),
    )
    def a_stranger_settles_a_job(
        self,
        client: int,
        nonce: int,
        providers: tuple[int, ...],
        oddity: str,
        early: int,
        amount: int,
    ) -> None:
        self.deposit_and_allocate(client, amount)
        job = self._job(Told(client, nonce, providers), ODDITIES[oddity])
        opening = self._open(job)
        self._open(job)
        if opening is not None:
            for seconds in (RESPONSE - early, early, 0):
                self.world.evm.travel(seconds)
                self._execute(opening)

    @rule(client=st.integers(0, 1), raised=st.integers(0, 2), is_late=st.booleans())
    def a_voucher_covers_an_announced_job(self, client: int, raised: int, is_late: bool) -> None:
        """The voucher counts what was settled, or its floor ends the settlement."""
        self.deposit_and_allocate(client, 1000)
        who = self.model.clients[client]
        nonce = who.nonce_floor + 1
        opening = self._open(self._job(Told(client, nonce, (0, 1))))
        self.world.evm.travel(RESPONSE)
        who.signed_floor = who.nonce_floor + raised
        if opening is not None and is_late:
            self._execute(opening)
        self._post(self.model.newest(), 0, [(client, max(0, who.charged - 50 * is_late))])
        if opening is not None and not is_late:
            self._execute(opening)

    @rule(client=st.integers(0, 1), nonce=NONCES, providers=SHARES, others=SHARES)
    def an_announced_job_is_outvoted(
        self, client: int, nonce: int, providers: tuple[int, ...], others: tuple[int, ...]
    ) -> None:
        told = Told(client, nonce, providers)
        opening = self._open(self._job(told))
        if opening is None:
            return
        other = self._job(Told(client, nonce, others, 5, answer=b"another"))
        settlement, now = self.world.contracts.settlement, self.world.evm.now
        for shown in (self._job(told), other):
            call = settlement.outvote(opening, shown)
            self.both(WATCHER, call, lambda job=shown: self.jobs.outvote(opening, job, now))
        self.world.evm.travel(RESPONSE)
        self._execute(opening)

    @rule(
        client=st.integers(0, 1),
        pay=st.sampled_from([1, 99, 100, 101]),
        lacking=st.integers(0, 1),
        fate=st.sampled_from(["answered", "answered", "void", "another share", "no pay"]),
    )
    def an_epoch_credits_an_announced_job(
        self, client: int, pay: int, lacking: int, fate: str
    ) -> None:
        self.deposit_and_allocate(client, 1000)
        who, jobs = self.model.clients[client], self.jobs
        job = self._job(Told(client, who.nonce_floor + 2, (0, 1)))
        body = job.executions[0].assignment.message
        pay *= fate != "no pay"
        log = FullLog([credit_entry(body.assignment_id, Amount(pay))])
        newest = self.model.newest()
        final = max(newest[0], jobs.answered_of.get(OWNERS[0], 0) + pay - lacking)
        posted, vouched = len(self.trees), min(who.charged + 300, who.allocated)
        self._post(
            (final, *newest[1:]), 0, [(client, vouched)], roots=(log.root(), *[ZERO_HASH] * 2)
        )
        opening = self._open(job)
        if opening is None or len(self.trees) == posted:
            return
        shown = Credited(len(self.trees), body.assignment_id, pay)
        if fate == "void":
            self._challenge_statement(shown.epoch, shown.epoch, 1, newest[1] + 1)
        if fate == "another share":
            opening = replace(opening, shares=opening.shares[::-1])
        changed = opening
        for _ in range(2):
            if self._show_credit(changed, shown, log):
                changed = jobs.after_answer(changed, 0, pay)
        self.world.evm.travel(RESPONSE)
        self._execute(changed)
        self._execute(opening)

    def _show_credit(self, opening: Opening, shown: Credited, log: FullLog) -> bool:
        leaf, proof = prove(self.trees[shown.epoch - 1], OWNERS[0])
        credit = ShownCredit(shown.epoch, leaf, proof, Amount(shown.pay), log.prove(0))
        call = self.world.contracts.settlement.answer(opening, 0, credit)
        return self.both(WATCHER, call, lambda: self.jobs.answer(opening, 0, shown))

    @rule(provider=st.integers(0, 2))
    def credit_is_paid(self, provider: int) -> None:
        call = self.world.contracts.escrow.pay_credit(OWNERS[provider])
        self.both(BOSS.address, call, lambda: self.jobs.pay_credit(provider))

    @invariant()
    def settled_credits_agree(self) -> None:
        """I1: what was settled is credited, or was paid."""
        escrow, evm = self.world.contracts.escrow, self.world.evm
        credits = [evm.ask(escrow.credit_of(owner)) for owner in OWNERS]
        assert credits == [self.credits.of.get(number, 0) for number in range(3)], "I1"
        clients = [who for side in self.sides for who in side.model.clients]
        settled = sum(who.settled for who in clients)
        assert settled == sum(credits) + self.credits.paid, "I1"

    def _compare(self) -> None:
        super()._compare()
        evm = self.world.evm
        for (number, nonce), indices in self.jobs.settled.items():
            client = CLIENTS[number].address
            found = evm.ask(self.world.contracts.settlement.settled(client, self.c, Nonce(nonce)))
            assert list(found) == indices
