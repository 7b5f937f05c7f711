"""Orders with an escrow of their own, and signed evidence of their executions."""

import copy
from dataclasses import dataclass, field
from typing import Any

from contracts.executions import assignment, blind_of, commit, order, salt_of
from contracts.world import ASSIGNMENT, COMMIT, ORDER, World, account, typed_hash
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DAY, USD
from quorate_protocol.units import Address, Hash32

MINUTES = 30  # that an execution takes
RECEIPT = "CommitReceipt(bytes32 commitHash,uint64 time)"


@dataclass
class FundedOrder:
    """An order of a client, and what is signed about its executions.

    `changes` replace values of the order by name.
    """

    world: World
    client: str = "client0"
    nonce: int = 1
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.named = order(self.world, self.client, self.nonce, self.changes)
        self.values = tuple(self.named.values())
        self.job_id = typed_hash(self.world.domain, ORDER, self.values)
        self.accept_by = self.world.now + 30  # of its executions

    def fork(self) -> "FundedOrder":
        """The same order on an independent copy of the world."""
        other = copy.copy(self)
        other.world = self.world.fork()
        return other

    def fund(self, budget: int = 6 * USD, days: int = 20) -> int:
        """The client pays the budget in; returns the gas."""
        until = self.world.now + days * DAY
        fund = (self.job_id, budget, until)
        return self.world.send(self.client, self.world.jobs, "fund", *fund).gas

    def run(self, owner: str, answer: bytes = b"answer", **changes: Any) -> tuple[Any, ...]:
        """Evidence of one execution that looks honest.

        `changes` replace a value of any message by its name, and the signers by `by_statement`,
        `by_operator` and `by_receipt`.
        """
        usual = {"acceptBy": self.accept_by, "usageMs": MINUTES * 60_000}
        assigned = assignment(self.world, self.named, owner, usual | changes)
        made = commit(self.world, assigned, answer, usual | changes)
        time = changes.get("time", assigned["acceptBy"] + MINUTES * 60 + 5)
        commit_hash = typed_hash(self.world.domain, COMMIT, tuple(made.values()))
        receipt = {"commitHash": commit_hash, "time": time}
        statement, signed = "coordinator statement", self.world.signed
        return (
            *(changes.get("shown_index", 1), blind_of(owner), tuple(assigned.values())),
            signed(ASSIGNMENT, assigned, changes.get("by_statement", statement)),
            tuple(made.values()),
            signed(COMMIT, made, changes.get("by_operator", f"{owner} operator")),
            *(time, signed(RECEIPT, receipt, changes.get("by_receipt", statement))),
            *(changes.get("status", 0), keccak256(answer), changes.get("salt", salt_of(answer))),
        )

    def show(self, owner: str, answer: bytes = b"answer", **changes: Any) -> int:
        """A stranger shows an execution; returns the gas."""
        run = self.run(owner, answer, **changes)
        return self.world.send("stranger", self.world.jobs, "show", self.values, run).gas

    def pay(self, *providers: str) -> int:
        """A stranger lets the job be paid; returns the gas."""
        listed = sorted(account(each) for each in providers)
        return self.world.send("stranger", self.world.jobs, "pay", self.values, listed).gas

    def expect(self, reason: str, function: str, *arguments: Any, who: str = "stranger") -> None:
        """Asserts that a call about this order is refused, or taken without a reason."""
        self.world.expect(reason, who, self.world.jobs, function, self.values, *arguments)

    def refused(self, reason: str, function: str, *arguments: Any, who: str = "stranger") -> None:
        """Asserts that a call about this order is refused."""
        self.world.refused(reason, who, self.world.jobs, function, self.values, *arguments)

    def state(self) -> tuple[int, ...]:
        """The job: budget, until, firstShown, lastShown, count, isOver."""
        place: tuple[Address, Hash32] = (account(self.client), self.job_id)
        return tuple(self.world.ask(self.world.jobs, "job", *place))
