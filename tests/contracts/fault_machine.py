"""Drives Faults with the same calls as the model: faults that signatures prove, and demands."""

import hypothesis.strategies as st
from hypothesis.stateful import invariant, rule

from contracts.fault_evidence import SECRET_X, ack, commit_set, other_commit, statement
from contracts.fault_model import AGE, FIRST_FAULT_FOR, RETIRE_GRACE, SECRET_AFTER, Faults
from contracts.market import BOSS, Evidence, Market
from contracts.money_machine import CLIENTS, OWNERS, WATCHER
from contracts.money_model import need
from contracts.staking_machine import ANYONE, STAKERS, StakedMoney, staked
from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.faults import FaultKind
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import Address, ExitStatus, Hash32
from quorate_protocol.values import replace

ANSWER_WITHIN = DEVNET.reveal_demand
ENDS = st.sampled_from(["answered", "answered late", "answered wrongly", "punished", "open"])


def provable(world: Market) -> Market:
    """Peoples a market with stakers, and lets the watcher's bonds for demands be pulled."""
    staked(world)
    token = world.contracts.token
    world.evm.send(WATCHER, token.approve(world.contracts.faults.address))
    return world


class FaultedMoney(StakedMoney):
    """A state machine in which providers and coordinators sign what they must not."""

    people = staticmethod(provable)

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults(self.staking)

    def _execution(
        self,
        provider: Address,
        client: int,
        seconds: int,
        age: int,
        answer: bytes = b"answer",
        status: int = 0,
        order_ends: int = 3600,
    ) -> Evidence:
        """Returns evidence of an execution for the coordinator that acts; `age` is acceptBy's."""
        self.world.ordered_from = (self.side.coordinator, self.side.statement_key)
        return self.world.execution(
            provider,
            CLIENTS[client],
            answer,
            max_duration=seconds,
            accept_by=self.world.evm.now - age,
            exit_status=ExitStatus(status),
            budget=USD // 4,
            price_per_hour=3 * USD,
            expiry=self.world.evm.now + order_ends,
        )

    @property
    def at(self) -> tuple[int, int]:
        """Time and block of the next transaction."""
        return self.world.evm.now, self.world.evm.number

    def _equivocate(self, each: Evidence, is_other: bool) -> None:
        run, body = each.shown.run, each.shown.run.assignment.message
        other = other_commit(self.world, each) if is_other else run.commit
        call = self.world.contracts.faults.equivocation(run.assignment, run.commit, other)
        subject, at = each.assignment_hash, self.at
        self.both(
            WATCHER, call, lambda: self.faults.equivocation(WATCHER, body, subject, is_other, at)
        )

    @rule(
        number=ANYONE,
        seconds=st.sampled_from([30, 600, 3600, 90_000]),
        age=st.sampled_from([-1, 0, 1, AGE, AGE + 1]),
        is_other=st.booleans(),
        gap=st.sampled_from([0, 0, 1, FIRST_FAULT_FOR - 1, FIRST_FAULT_FOR]),
    )
    def a_provider_signs_two_commits(
        self, number: int, seconds: int, age: int, is_other: bool, gap: int
    ) -> None:
        """The same proof counts once; the next one costs more within 90 days."""
        each = self._execution(STAKERS[number], 0, seconds, age)
        self._equivocate(each, is_other)
        self._equivocate(each, is_other=True)
        if is_other:
            self.world.evm.travel(gap)
            self._equivocate(self._execution(STAKERS[number], 1, seconds, 0), is_other)

    @rule(
        number=ANYONE,
        seconds=st.sampled_from([30, 3600]),
        age=st.sampled_from([0, AGE, AGE + 1]),
        end=ENDS,
        late=st.integers(0, 1),
    )
    def a_reveal_is_demanded(
        self, number: int, seconds: int, age: int, end: str, late: int
    ) -> None:
        each = self._execution(STAKERS[number], 0, seconds, 1)
        closed = commit_set(self.world, each, self.side.statement_key)
        self.world.evm.travel(age)
        run, faults = each.shown.run, self.world.contracts.faults
        body, subject = run.assignment.message, each.assignment_hash
        closed_at = closed.message.closed_at
        for _ in range(2):
            now = self.world.evm.now
            self.both(
                WATCHER,
                faults.demand_reveal(closed, body, run.commit),
                lambda now=now: self.faults.demand_reveal(WATCHER, body, subject, closed_at, now),
            )
        wrong = replace(each.reveal, output_digest=keccak256(b"wrong"))
        shown = wrong if end == "answered wrongly" else each.reveal
        self._end_demand(subject, faults.answer_reveal(shown), end, late)

    @rule(
        order_ends=st.sampled_from([0, 100]),
        early=st.integers(0, 1),
        beyond=st.sampled_from([0, AGE, AGE + 1]),
        end=ENDS,
        late=st.integers(0, 1),
    )
    def a_secret_is_demanded(
        self, order_ends: int, early: int, beyond: int, end: str, late: int
    ) -> None:
        each = self._execution(OWNERS[0], 0, 30, 1, order_ends=order_ends)
        order, evm = each.shown.job.order.message, self.world.evm
        subject = digest(self.world.domain, order)
        signed = ack(self.world, subject, signer=self.side.statement_key)
        due, faults = evm.now + order_ends, self.world.contracts.faults
        for seconds in (order_ends + SECRET_AFTER - early, early + beyond):
            evm.travel(seconds)
            call, now = faults.demand_secret(order, signed), evm.now
            self.both(
                WATCHER,
                call,
                lambda now=now: self.faults.demand_secret(WATCHER, self.c, subject, due, now),
            )
        secret = keccak256(b"wrong") if end == "answered wrongly" else SECRET_X
        self._end_demand(subject, faults.answer_secret(subject, secret), end, late)

    def _end_demand(self, subject: Hash32, answer: Call, end: str, late: int) -> None:
        if end == "open":
            return
        evm, faults = self.world.evm, self.world.contracts.faults
        evm.travel(ANSWER_WITHIN + (late if end != "answered" else 0))
        if end != "punished":
            is_right, now = end != "answered wrongly", evm.now
            self.both(WATCHER, answer, lambda: self.faults.answer(subject, is_right, now))
        for _ in range(2):
            at = self.at
            self.both(
                BOSS.address,
                faults.punish_unanswered(subject),
                lambda at=at: self.faults.punish_unanswered(subject, at),
            )

    @rule(
        kind=st.sampled_from([FaultKind.TWO_ACKS, FaultKind.TWO_STATEMENTS]),
        age=st.sampled_from([0, AGE, AGE + 1]),
        is_other=st.booleans(),
        subject=st.integers(0, 1),
    )
    def a_coordinator_signs_two(
        self, kind: FaultKind, age: int, is_other: bool, subject: int
    ) -> None:
        """Only Acks have a time."""
        world, signer, faults = self.world, self.side.statement_key, self.world.contracts.faults
        at = world.evm.now
        if kind is FaultKind.TWO_ACKS:
            job = keccak256(b"job %d" % subject)
            acks = [ack(world, job, epoch, signer) for epoch in (1, 1 + is_other)]
            call = faults.two_acks(self.c, *acks)
        else:
            signed = [statement(world, OWNERS[0], 1 + k, subject, signer) for k in (0, is_other)]
            call = faults.two_statements(self.c, *signed)
        world.evm.travel(age)

        def act() -> None:
            if kind is FaultKind.TWO_ACKS:
                self.faults.check_age(at, world.evm.now)
            need(is_other, "same")
            self.faults.coordinator_fault(kind, WATCHER, self.c, subject, world.evm.now)

        self.both(WATCHER, call, act)

    @rule(late=st.integers(0, 1), age=st.sampled_from([0, AGE, AGE + 1]), subject=st.integers(0, 1))
    def a_retired_coordinator_signs_an_ack(self, late: int, age: int, subject: int) -> None:
        evm, model = self.world.evm, self.model
        evm.now = max(evm.now, model.retired_at + RETIRE_GRACE + late)
        at, job = evm.now, keccak256(b"late job %d" % subject)
        signed = ack(self.world, job, signer=self.side.statement_key)
        evm.travel(age)

        def act() -> None:
            need(0 < model.retired_at < at - RETIRE_GRACE, "time")
            self.faults.check_age(at, evm.now)
            self.faults.coordinator_fault(FaultKind.LATE_ACK, WATCHER, self.c, subject, evm.now)

        self.both(WATCHER, self.world.contracts.faults.late_ack(self.c, signed), act)

    @rule(account=st.sampled_from([WATCHER, *STAKERS]))
    def proofs_are_paid(self, account: Address) -> None:
        due = self.faults.credits[account]
        call = self.world.contracts.faults.withdraw(account)
        if self.both(BOSS.address, call, lambda: self.faults.withdraw(account)):
            self.paid_by_others += due * (account in OWNERS)

    @invariant()
    def faults_has_what_it_owes(self) -> None:
        """I1: Faults holds bonds of open demands, credits, and what it burned."""
        faults = self.world.contracts.faults
        assert self.world.balance(faults.address) == self.faults.total(), "I1: faults"

    def teardown(self) -> None:
        super().teardown()
        faults, evm = self.world.contracts.faults, self.world.evm
        for account in (WATCHER, *STAKERS, *self.staking.coordinators):
            assert evm.ask(faults.credit_of(account)) == self.faults.credits[account], "I1"
        assert evm.ask(faults.burned()) == self.faults.burned, "I1"
