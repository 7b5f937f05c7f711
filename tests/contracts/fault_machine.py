"""Drives Faults with the same calls as the model: faults that signatures prove."""

import hypothesis.strategies as st
from hypothesis.stateful import invariant, rule

from contracts.fault_evidence import ack, other_commit
from contracts.fault_model import AGE, FIRST_FAULT_FOR, Faults
from contracts.market import BOSS, Evidence
from contracts.money_machine import CLIENTS, OWNERS, WATCHER
from contracts.staking_machine import ANYONE, STAKERS, StakedMoney
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import USD
from quorate_protocol.units import Address, ExitStatus


class FaultedMoney(StakedMoney):
    """A state machine in which providers and coordinators sign what they must not."""

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

    @rule(age=st.sampled_from([0, AGE, AGE + 1]), is_other=st.booleans(), subject=st.integers(0, 1))
    def a_coordinator_signs_two_acks(self, age: int, is_other: bool, subject: int) -> None:
        world, signer = self.world, self.side.statement_key
        at, job = world.evm.now, keccak256(b"job %d" % subject)
        acks = [ack(world, job, epoch, signer) for epoch in (1, 1 + is_other)]
        world.evm.travel(age)
        call, now = world.contracts.faults.two_acks(self.c, *acks), world.evm.now
        self.both(
            WATCHER, call, lambda: self.faults.two_acks(WATCHER, self.c, job, is_other, at, now)
        )

    @rule(account=st.sampled_from([WATCHER, *STAKERS]))
    def proofs_are_paid(self, account: Address) -> None:
        due = self.faults.credits[account]
        call = self.world.contracts.faults.withdraw(account)
        if self.both(BOSS.address, call, lambda: self.faults.withdraw(account)):
            self.paid_by_others += due * (account in OWNERS)

    @invariant()
    def faults_has_what_it_owes(self) -> None:
        """I1: Faults holds credits, and what it burned."""
        faults = self.world.contracts.faults
        assert self.world.balance(faults.address) == self.faults.total(), "I1: faults"

    def teardown(self) -> None:
        super().teardown()
        faults, evm = self.world.contracts.faults, self.world.evm
        for account in (WATCHER, *STAKERS, *self.staking.coordinators):
            assert evm.ask(faults.credit_of(account)) == self.faults.credits[account], "I1"
        assert evm.ask(faults.burned()) == self.faults.burned, "I1"
