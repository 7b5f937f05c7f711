"""Stakes, Escrow, Beacon, Court and Faults on one machine, with owners, and evidence of their jobs.

Owners are "owner0", "owner1", ...; each has an operator key and slots. A message is a dict in the
order of its signed fields, so that a test changes a field by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from contracts import executions
from contracts.evm import GENESIS_TIME, PyEvm
from contracts.executions import CLASS_ID, Message, assignment, blind_of, changed, commit, salt_of
from contracts.world import (
    ASSIGNMENT,
    CLASS,
    CLIENT_CLOSE,
    COMMIT,
    COORDINATOR_CLOSE,
    ORDER,
    SESSION,
    Sent,
    World,
    account,
    typed_hash,
)
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD, Limits
from quorate_protocol.units import ZERO_ADDRESS, Address, Hash32, Round
from quorate_runtime.keys.bls import (
    beacon_round,
    keygen,
    public_key,
    public_key_words,
    signature_words,
    words_bytes,
)

SECRET = keygen(b"contract tests, local beacon")
TRUTH, LIE = b"what honest providers find", b"another answer"
SHOWN_OF_COMMIT = ("commitment", "encryptedOutput", "usageMs", "beaconRound")


@dataclass(frozen=True, slots=True)
class Run:
    """One execution, signed, with what opens its commitment."""

    shown: tuple[Any, ...]
    digest: Hash32  # of the Assignment
    opening: tuple[int, Hash32, Hash32]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an accuser shows, and what opens it."""

    shown: tuple[Any, ...]
    run: Run
    contradiction: Run

    @property
    def execution(self) -> Hash32:
        return self.run.digest

    @property
    def openings(self) -> list[Any]:
        return [self.run.opening, self.contradiction.opening]


@dataclass
class CourtWorld(World):
    """The contracts of stakes and juries on one chain."""

    limits: Limits = DEVNET
    serial: int = 0
    owners: dict[Address, str] = field(default_factory=dict)  # labels

    def fork(self) -> "CourtWorld":
        return replace(
            self, evm=self.evm.fork(), contracts=dict(self.contracts), owners=dict(self.owners)
        )

    def owner(self, number: int, slots: int = 1, pool: Hash32 = CLASS) -> str:
        """Registers owner `number`, with slots, and with a balance in Escrow."""
        label = f"owner{number}"
        self.provider(label, 0)
        self.rich(label, 1000)
        if slots:
            self.send(label, self.stakes, "open_slots", pool, slots)
        self.owners[account(label)] = label
        return label

    def rich(self, label: str, usd: int) -> str:
        """Gives an account tokens, and a balance in Escrow of as much."""
        self.fund(label, 2 * usd * USD)
        self.send(label, self.escrow, "deposit", usd * USD, ZERO_ADDRESS)
        return label

    def prove(self, number: int) -> Sent:
        """Submits a beacon round, once it has appeared."""
        self.evm.now = max(self.evm.now, self.ask(self.beacon, "time_of", number))
        words = words_bytes(signature_words(beacon_round(SECRET, Round(number)).signature))
        return self.send("boss", self.beacon, "submit", number, words)

    def stake(self, label: str) -> int:
        return int(self.ask(self.stakes, "stake_of", account(label)))

    def order(self, changes: Mapping[str, Any]) -> Message:
        """An order of client0 that a jury can judge."""
        self.serial += 1
        short = {"specHash": keccak256(b"spec %d" % self.serial), "maxDuration": 60}
        usual = short | {"budget": USD, "verifyTier": 1}
        return executions.order(self, "client0", self.serial, usual | dict(changes))

    def run(self, order: Message, provider: str, output: bytes, changes: Mapping[str, Any]) -> Run:
        """A signed execution. `changes` name fields of its messages, index, status, or signers."""
        signer = changes.get("signer", "coordinator statement")
        assigned = assignment(self, order, provider, changes)
        made = commit(self, assigned, output, changes)
        shown = (
            changes.get("shown_index", changes.get("index", 1)),
            blind_of(provider),
            *(assigned[name] for name in ("provider", "pricePerHour", "maxDuration", "acceptBy")),
            self.signed(ASSIGNMENT, assigned, signer),
            *(made[name] for name in SHOWN_OF_COMMIT),
            self.signed(COMMIT, made, changes.get("committer", f"{provider} operator")),
        )
        opening = (changes.get("status", 0), keccak256(output), salt_of(output))
        return Run(shown, typed_hash(self.domain, ASSIGNMENT, tuple(assigned.values())), opening)

    def evidence(
        self,
        accused: str = "owner0",
        other: str = "owner1",
        answers: tuple[bytes, bytes] = (LIE, TRUTH),
        *,
        both: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
        contradiction: Mapping[str, Any] | None = None,
        session: Mapping[str, Any] | None = None,
    ) -> Evidence:
        """An execution and its contradiction. `both` changes order, runs and their signers."""
        shared = dict(both or {})
        order = self.order(shared)
        usual = {
            "client": order["client"],
            "sessionKey": account("client0 session"),
            "coordinator": order["coordinator"],
            "upTo": 10**12,
            "expires": self.now + 3600,
        }
        named = changed(usual, session or {})
        mine = self.run(order, accused, answers[0], shared | dict(run or {}))
        theirs = self.run(order, other, answers[1], shared | dict(contradiction or {}))
        shown = (
            *(named[name] for name in ("sessionKey", "upTo", "expires")),
            self.signed(SESSION, named, (session or {}).get("signer", "client0")),
            tuple(order.values()),
            self.signed(ORDER, order, shared.get("orderer", "client0 session")),
            CLASS,
            CLASS_ID,
            mine.shown,
            theirs.shown,
        )
        return Evidence(shown, mine, theirs)


def deployed_court(limits: Limits, **made: dict[str, Any]) -> CourtWorld:
    """New contracts; `made`: compilations that replace those of the sources, by contract."""
    world = CourtWorld(PyEvm.made(), limits=limits)
    token = world.deploy("TestToken", True, 0).address
    stakes, escrow, beacon, court, faults = (world.next_address(ahead) for ahead in range(5))
    arguments: dict[str, tuple[object, ...]] = {
        "Stakes": (
            *(token, court, faults, limits.slot_stake, limits.coordinator_bond),
            *(limits.unbond_after, limits.profile_delay),
        ),
        "Escrow": (token, stakes, court, faults, CLIENT_CLOSE, COORDINATOR_CLOSE),
        "Beacon": (
            words_bytes(public_key_words(public_key(SECRET))),
            GENESIS_TIME - 10_000,
            limits.beacon_period,
        ),
        "Court": (
            *(stakes, escrow, beacon, limits.jury_owners_min, limits.jury_slot_age),
            *(limits.case_evidence_age, limits.case_duration_max, limits.jury_rounds_ahead),
            *(limits.jury_beacon_missing, limits.jury_window),
            *(limits.jury_gas_fee, limits.jury_pay_min),
        ),
        "Faults": (stakes, limits.slot_stake, limits.jury_gas_fee, limits.case_evidence_age),
    }
    for name, values in arguments.items():
        world.deploy(name, *values, made=made.get(name))
    return world


def peopled_court(limits: Limits = DEVNET, owners: int = 9) -> CourtWorld:
    """A market with a coordinator, an accuser and owners of one pool whose slots are old
    enough; seven judge where two are parties. Each process deploys once and forks the result.
    """
    return _peopled(limits, owners).fork()


@lru_cache(maxsize=8)
def _deployed(limits: Limits) -> CourtWorld:
    return deployed_court(limits)


@lru_cache(maxsize=8)
def _peopled(limits: Limits, owners: int) -> CourtWorld:
    return people(_deployed(limits).fork(), owners)


def people(world: CourtWorld, owners: int) -> CourtWorld:
    """Registers the usual accounts."""
    world.coordinator()
    world.rich("accuser", 10_000)
    for number in range(owners):
        world.owner(number)
    world.evm.travel(world.limits.jury_slot_age + world.limits.profile_delay + 100)
    return world
