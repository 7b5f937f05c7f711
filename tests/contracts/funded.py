"""Orders with an escrow of their own, and signed evidence of their executions."""

import copy
from dataclasses import dataclass, field
from typing import Any

from contracts.world import ASSIGNMENT, CLASS, COMMIT, ORDER, World, account, sign, typed_hash
from quorate_contracts.abi_codec import encode
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DAY, USD
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Address, Hash32

HOUR = 3600
PRICE = 2 * USD  # an hour
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
        values = {
            "client": account(self.client),
            "coordinator": account("coordinator"),
            "specHash": keccak256(b"spec"),
            "inputRoot": keccak256(b"inputs"),
            "termsHash": keccak256(b"terms"),
            "priceTier": 2,
            "maxPricePerHour": 3 * USD,
            "budget": 6 * USD,
            "maxDuration": HOUR,
            "maxExecutions": 7,
            "auditPremiumBps": 500,
            "maxFeeBps": 300,
            "verifyTier": 2,
            "comparator": 1,
            "caseable": True,
            "hostClass": ZERO_HASH,
            "witness": ZERO_ADDRESS,
            "acceptUnwitnessed": False,
            "acceptUnverified": False,
            "sealedKeyHash": ZERO_HASH,
            "maxRecipients": 0,
            "expiry": self.world.now + HOUR,
            "nonce": self.nonce,
        }
        self.values = tuple((values | self.changes).values())
        self.named = values | self.changes
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
        used_ms = changes.get("usageMs", MINUTES * 60_000)
        blind = keccak256(b"blind" + owner.encode())
        identity = keccak256(encode(["bytes32", "uint256", "bytes32"], [self.job_id, 1, blind]))
        assignment = {
            "assignmentId": identity,
            "coordinator": self.named["coordinator"],
            "provider": account(owner),
            "specHash": self.named["specHash"],
            "hostClass": CLASS,
            "priceTier": self.named["priceTier"],
            "pricePerHour": PRICE,
            "maxDuration": self.named["maxDuration"],
            "acceptBy": self.accept_by,
        }
        assignment_hash, assignment_values, assignment_sig = self._signed(
            ASSIGNMENT, assignment, changes, changes.get("by_statement", "coordinator statement")
        )
        salt, output = keccak256(b"salt" + owner.encode()), keccak256(answer)
        status = changes.get("exit_status", 0)
        result = keccak256(encode(["uint16", "bytes32"], [status, output]))
        hidden = (assignment_hash, account(owner), salt, result)
        commit = {
            "assignmentHash": assignment_hash,
            "classId": keccak256(b"determinism class"),
            "commitment": keccak256(encode(["bytes32", "address", "bytes32", "bytes32"], hidden)),
            "encryptedOutput": keccak256(b"ciphertext"),
            "usageMs": used_ms,
            "beaconRound": 5,
        }
        commit_hash, commit_values, commit_sig = self._signed(
            COMMIT, commit, changes, changes.get("by_operator", f"{owner} operator")
        )
        time = changes.get("time", assignment_values[8] + MINUTES * 60 + 5)
        receipt = {"commitHash": commit_hash, "time": time}
        _, _, receipt_sig = self._signed(
            RECEIPT, receipt, {}, changes.get("by_receipt", "coordinator statement")
        )
        return (
            *(changes.get("index", 1), blind, assignment_values, assignment_sig, commit_values),
            *(commit_sig, time, receipt_sig, status, output, changes.get("salt", salt)),
        )

    def _signed(
        self, kind: str, values: dict[str, Any], changes: dict[str, Any], signer: str
    ) -> tuple[Hash32, tuple[Any, ...], Any]:
        values = {name: changes.get(name, value) for name, value in values.items()}
        digest = typed_hash(self.world.domain, kind, tuple(values.values()))
        return digest, tuple(values.values()), sign(signer, digest)

    def show(self, owner: str, answer: bytes = b"answer", **changes: Any) -> int:
        """A stranger shows an execution; returns the gas."""
        run = self.run(owner, answer, **changes)
        return self.world.send("stranger", self.world.jobs, "show", self.values, run).gas

    def pay(self, *providers: str) -> int:
        """A stranger lets the job be paid; returns the gas."""
        listed = sorted(account(each) for each in providers)
        return self.world.send("stranger", self.world.jobs, "pay", self.values, listed).gas

    def refused(self, reason: str, function: str, *arguments: Any, who: str = "stranger") -> None:
        """Asserts that a call about this order is refused."""
        self.world.refused(reason, who, self.world.jobs, function, self.values, *arguments)

    def state(self) -> tuple[int, ...]:
        """The job: budget, until, firstShown, lastShown, count, isOver."""
        place: tuple[Address, Hash32] = (account(self.client), self.job_id)
        return tuple(self.world.ask(self.world.jobs, "job", *place))
