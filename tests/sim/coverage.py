"""Counts which edges of the state machines and which refusal codes occurred.

An edge that is not declared here is a violation.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, get_args

from quorate_coordinator.core import coordinator_core
from quorate_coordinator.core.model import entities, lease
from quorate_node.core import jury_duty, phases
from quorate_protocol import limits
from quorate_protocol.codec.tables import Table
from quorate_protocol.refusals import Code

K = TypeVar("K")
V = TypeVar("V")

LEASE = {
    "new": "Assigned Lapsed",
    "Assigned": "Accepted Declined Lapsed Stopped",
    "Accepted": "Committed Lapsed Live",
    "Live": "Returned",
    "Committed": "Closed",
    "Closed": "Revealed Silent",
}
JOB = {
    "new": "Matching AwaitingRound",
    "Matching": "Running Ended",
    "Running": "AwaitingRound Matching Revealing Ended Final Rented",
    "Rented": "Ended",
    "AwaitingRound": "Running Final Ended",
    "Revealing": "AwaitingRound Matching Running Decided Final Ended",
    "Decided": "AwaitingRound",
}
EXECUTION = {
    "new": "Accepted Declined",
    "Accepted": "Fetching Lapsed",
    "Fetching": "Starting Lapsed",
    "Starting": "Running Lapsed Live",
    "Live": "Over",
    "Running": "Publishing Lapsed",
    "Publishing": "Committed Lapsed",
    "Committed": "Receipted Done Lapsed",
    "Receipted": "Revealed Done",
    "Revealed": "Done",
}
DUTY = {
    "new": "Waiting",
    "Waiting": "Repeating Voting",
    "Repeating": "Voting Served",
    "Voting": "Voted Opening",
    "Voted": "Opening",
    "Opening": "Served",
}
MACHINES = {"lease": LEASE, "job": JOB, "execution": EXECUTION, "duty": DUTY}

# Edges that may occur but need not. Frames of one lane come in order, so a CommitSet before the
# receipt needs a reply that is lost at a bad moment. A juror rarely waits for a run slot or repeats
# through a whole voting window, declines, waits for a block with its vote, or for a court that
# never opens the ballots. Few seeds give one provider W further jobs of a class while it holds one.
RARE = frozenset(
    {
        "execution:Committed>Revealed",
        "duty:Waiting>Served",
        "duty:Waiting>Voting",
        "duty:Repeating>Served",
        "duty:Voted>Served",
        "duty:Voting>Served",
        "job:Decided>Final",
        "job:AwaitingRound>Revealing",
    }
)

# Names of every phase in the code. If a phase is added there and not above, this import fails.
PHASES = {
    "lease": {kind.__name__ for kind in get_args(lease.Phase)},
    "job": {kind.__name__ for kind in get_args(entities.JobPhase)} | {"Final"},
    "execution": {kind.__name__ for kind in get_args(phases.Phase)},
    "duty": {kind.__name__ for kind in get_args(jury_duty.Phase)},
}

# Codes that are in the sources and that no run of a minute can cause.
OUT_OF_REACH = {
    "coordinator": {"busy"},  # limits of a hundred thousand jobs; their own tests lower them
    # 200,000 executions; an owner who moves a folder to another deployment; a job that ended ten
    # minutes ago is assigned again
    "provider": {"busy", "wrong-chain", "replayed"},
}
GATE = (
    "codec/canonical",
    "codec/text_writer",
    "codec/value_reader",
    "messages/envelope",
    "messages/frames",
)  # checked on frames before a core sees them
RULES = (
    "messages/offer",
    "rules/orders",
    "messages/commitment",
    "messages/job_spec",
)  # also checked on the coordinator's side


def _codes(*sources: Path) -> set[str]:
    named = {
        name
        for source in sources
        for name in re.findall(r"\bCode\.([A-Z_]+)", source.read_text(encoding="utf-8"))
    }
    return {Code[name].value for name in named}


def _all_codes() -> frozenset[str]:
    """Every refusal code that the cores and frame handlers name in their sources, less unreachable
    ones.
    """
    protocol, coordinator, provider = (
        Path(str(module.__file__)).parent for module in (limits, coordinator_core, phases)
    )
    gate = [protocol / f"{name}.py" for name in GATE]
    found = {
        "coordinator": _codes(
            *coordinator.rglob("*.py"), *gate, *[protocol / f"{name}.py" for name in RULES]
        ),
        "provider": _codes(
            *provider.glob("*.py"), provider.parent / "market" / "frame_handler.py", *gate
        ),
    }
    return frozenset(
        f"{side}:{code}" for side, codes in found.items() for code in codes - OUT_OF_REACH[side]
    )


def _all_edges() -> frozenset[str]:
    found: set[str] = set()
    for machine, table in MACHINES.items():
        for start, ends in table.items():
            found.update(f"{machine}:{start}>{end}" for end in ends.split())
    return frozenset(found)


ALL_EDGES = _all_edges()
ALL_CODES = _all_codes()
for _machine, _table in MACHINES.items():
    _named = {*_table, *(end for ends in _table.values() for end in ends.split())} - {"new"}
    assert _named == PHASES[_machine], (
        f"{_machine}: phases of the code and of this table differ: {_named ^ PHASES[_machine]}"
    )


# Facts that no phase and no code shows, and that every long run must have met.
ALL_FACTS = frozenset(
    {
        "accepted by two pools",
        "accepted within a tolerance",
        "acquitted",
        "convicted",
        "held, caught",
        "held, confirmed",
        "held, gone",
        "held, kept",
        "ended at the client's limit",
        "fast jobs decided",
        "ended by the budget",
        "the market ran out",
        "nobody could verify",
        "outvoted by other classes",
        "undecided, and its log was read",
        "forged receipts refused",
        "receipts that their providers compared",
        "bound by a clock that is behind",
        "paid under a key rotated away",
        "clients that left",
        "clients that left with jobs under way",
        "coordinators that vanished",
        "daemons that slept for days",
        "declined as unsecured",
        "fined for two Commits",
        "orders with an escrow of their own",
        "funded orders that owners settled",
        "payrolls",
        "owners that redeemed",
        "replaced blocks",
        "accepted beside a funded execution",
        "an order on credit",
        "a second lease at once",
        "given up after an Accept",
        "assigned beside another's lease",
        "assigned within a client's window",
        "private runs refused",
        "runs read by their clients",
        "runs read in part",
        "stopped after an Accept",
        "stopped before an Accept",
        "the audit fund was empty",
        "witnesses after the round",
        "declined to a second coordinator",
        "leases of a second coordinator",
        "offers that gossip brought first",
        "offers that gossip repeated",
        "meters that charged",
        "meters within an allowance",
        "rentals that no voucher covered",
        "rentals that their owner ended",
        "spot rentals that gave way",
    }
)


@dataclass(slots=True)
class Coverage:
    """Counts over any number of seeds."""

    edges: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)

    def edge(self, machine: str, start: str, end: str) -> None:
        """Counts a move of a machine."""
        name = f"{machine}:{start}>{end}"
        assert name in ALL_EDGES or name in RARE, (
            f"{name} is an edge that the machine should not have"
        )
        self.edges[name] += 1

    def code(self, process: str, code: str) -> None:
        """Counts a refusal of a process."""
        self.codes[f"{'provider' if process.startswith('provider') else 'coordinator'}:{code}"] += 1

    def add(self, other: "Coverage") -> None:
        """Adds another run's counts."""
        self.edges.update(other.edges)
        self.codes.update(other.codes)
        self.facts.update(other.facts)

    def missing_edges(self) -> list[str]:
        """Declared edges that did not occur."""
        return sorted(ALL_EDGES - self.edges.keys())

    def missing_facts(self) -> list[str]:
        """Expected facts that did not occur."""
        return sorted(fact for fact in ALL_FACTS if not self.facts[fact])

    def missing_codes(self) -> list[str]:
        """Reachable codes that did not occur."""
        return sorted(ALL_CODES - self.codes.keys())


class Watched(Table[K, V]):
    """A table that remembers through which phases its rows went, even within one step."""

    moves: list[tuple[K, str, str]]
    phase_of: Callable[[V], str]

    @classmethod
    def watch(cls, table: Table[K, V], phase_of: Callable[[V], str]) -> "Watched[K, V]":
        """Turns a core's own table into a watched one; its behaviour stays the same."""
        table.__class__ = cls
        assert isinstance(table, cls)
        table.moves, table.phase_of = [], phase_of
        return table

    def __setitem__(self, key: K, value: V) -> None:
        before = self.get(key)
        start, end = "new" if before is None else self.phase_of(before), self.phase_of(value)
        if start != end:
            self.moves.append((key, start, end))
        super().__setitem__(key, value)

    def take(self) -> list[tuple[K, str, str]]:
        """The moves since the last call."""
        moves, self.moves = self.moves, []
        return moves


def phase_name(row: object) -> str:
    """The name of a row's phase; a decided job with a final verdict has one of its own."""
    phase = getattr(row, "phase")  # noqa: B009 - rows of four different tables
    return "Final" if getattr(phase, "is_final", False) else type(phase).__name__
