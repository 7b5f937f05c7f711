"""The context of one step: state, time, random value, and the effects so far."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from msgspec import Struct

from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.core.model.entities import Job, OwnRecord
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.tables import LINES, LIVE_BYTES, OWN
from quorate_protocol.codec import eip712
from quorate_protocol.codec.hashing import hash_tuple, keccak256
from quorate_protocol.limits import USD, Limits
from quorate_protocol.messages.beacon_rounds import Timing
from quorate_protocol.messages.envelope import Envelope, Sign, seal
from quorate_protocol.messages.receipt import Evidence
from quorate_protocol.messages.signed import Commit, Message
from quorate_protocol.messages.views import JobEvent
from quorate_protocol.units import Address, Amount, Bps, Hash32, Sequence, UnixSeconds
from quorate_protocol.values import replace

M = TypeVar("M", bound=Message)
EVENTS_PER_JOB_MAX = 256
ACCUSE_BUDGET = Amount(20 * USD)


class Rules(Struct, frozen=True):
    """What does not change while the coordinator runs. `sign` is deterministic."""

    domain: eip712.Domain
    coordinator: Address
    statement_key: Address
    sign: Sign
    limits: Limits
    fee_bps: Bps
    beacon_genesis: int
    beacon_key: bytes
    sources: tuple[str, ...]  # gateway base URLs given to providers
    accuse_budget: Amount = ACCUSE_BUDGET  # burned in court by itself in 30 days, at most

    @property
    def timing(self) -> Timing:
        limits = self.limits
        return Timing(
            self.beacon_genesis,
            limits.beacon_period,
            limits.reveal_within,
            limits.max_hold,
            limits.accept_within,
        )

    def secret(self) -> Hash32:
        """It follows from the statement key, at the cost of a signature."""
        return _secret(self.statement_key, self.sign)


@lru_cache(maxsize=16)
def _secret(_: Address, sign: Sign) -> Hash32:
    return keccak256(sign(hash_tuple("quorate-derive/2")))


@dataclass(slots=True)
class StepContext:
    """What the functions of one step share."""

    state: State
    rules: Rules
    at: UnixSeconds
    random: Hash32
    effects: list[Effect] = field(default_factory=list)
    draws: int = 0
    paid: dict[Hash32, int] = field(default_factory=dict)  # credited in this step, by assignment
    # under its digest, from the moment its verdict is signed until its receipt is published
    evidence: dict[Hash32, Evidence] = field(default_factory=dict)

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def seal(self, message: M) -> Envelope[M]:
        return seal(self.rules.domain, message, self.rules.sign)

    def digest(self, message: Message) -> Hash32:
        return eip712.digest(self.rules.domain, message)

    def derive(self, label: str) -> Hash32:
        """A new secret value. It follows from the step's journaled random value and from the
        signing key, so the journal alone does not disclose it.
        """
        self.draws += 1
        return hash_tuple(self.rules.secret(), self.random, label, self.draws)

    def change_own(self, **changes: object) -> OwnRecord:
        own = replace(self.state.own, **changes)  # type: ignore[arg-type]
        self.state.own_record[OWN] = own
        return own

    def put(self, job: Job, **changes: object) -> Job:
        changed = replace(job, **changes) if changes else job  # type: ignore[arg-type]
        self.state.jobs[job.id] = changed
        return changed

    def note(
        self, job_id: Hash32, name: str, text: str, commit: Envelope[Commit] | None = None
    ) -> None:
        """The job's client reads that history."""
        event = JobEvent(Sequence(self.count(LINES)), self.at, job_id, name, text, commit)
        self.state.events[job_id] = _with_line(
            self.state.events.get(job_id) or (), event, EVENTS_PER_JOB_MAX
        )

    def count(self, name: str) -> int:
        counted = (self.state.counters.get(name) or 0) + 1
        self.state.counters[name] = counted
        return counted

    def count_bytes(self, change: int) -> None:
        before = self.state.counters.get(LIVE_BYTES) or 0
        self.state.counters[LIVE_BYTES] = before + change

    def set_live(self, job: Job, is_live: bool) -> None:
        """Live jobs have no verdict and no end yet. A repeat changes nothing."""
        if (job.id in self.state.live) == is_live:
            return
        if is_live:
            self.state.live[job.id] = True
        else:
            del self.state.live[job.id]
        client, sign = self.state.clients[job.order.client], 1 if is_live else -1
        size = sign * job.live_bytes
        self.count_bytes(size)
        self.state.clients[client.account] = replace(
            client, under_way=client.under_way + sign, live_bytes=client.live_bytes + size
        )


def _with_line(log: tuple[JobEvent, ...], event: JobEvent, most: int) -> tuple[JobEvent, ...]:
    """A full history loses its oldest quarter at once, so that most additions copy it only once."""
    return (*log, event) if len(log) < most else (*log[-most * 3 // 4 :], event)
