"""Where runs go that have left the state: a port, and its form in memory for tests.
`adapters/archive_file.py` keeps them on disk.

It is the only place that has them, so it is no projection: nothing rebuilds it. What is old
enough goes (`adapters/retention.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quorate_coordinator.core.records.archived_run import ArchivedRun
from quorate_protocol.codec import packed
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, share_bps

Row = Mapping[str, str | int | None]
RUNS_PER_LOOK = (
    512  # of one client, that a stream which comes back after a long time catches up with
)


@dataclass(frozen=True, slots=True)
class Readers:
    """Who may read a sealed output, and of which lease it is."""

    lease: Hash32
    provider: Address
    client: Address


class RunArchive(Protocol):
    """Runs that are over. Look-ups are short and come from the thread of the event loop; `keep`
    may come from another one.
    """

    def keep(self, runs: Sequence[ArchivedRun]) -> None:
        """Writes them, all or none; they are durable when it returns. A run that is there
        already is replaced.
        """

    def run(self, job_id: Hash32) -> ArchivedRun | None:
        """One run."""

    def runs_of(self, client: Address, limit: int) -> list[ArchivedRun]:
        """A client's newest."""

    def runs_after(self, client: Address, line: int) -> list[ArchivedRun]:
        """A client's runs with a line after `line`, those with the newest, at most
        `RUNS_PER_LOOK`.
        """

    def newest_line(self, client: Address) -> int:
        """Sequence number of the newest line of a client's runs; 0 when there are none."""

    def since(self, line: int, limit: int) -> list[tuple[int, Row]]:
        """(newest line, row for the tables that people query) of runs whose newest line is after
        `line`, the oldest first.
        """

    def readers(self, output: Hash32) -> Readers | None:
        """Of the ciphertext with this digest."""

    def count(self) -> int:
        """How many runs it was given, those counted that it has let go of since."""

    def used_bytes(self) -> int:
        """What it takes on the disk."""

    def over_before(
        self, moment: int, after: "Place", limit: int
    ) -> "list[tuple[Place, ArchivedRun]]":
        """Runs that were over before a moment, from a place on, the oldest first. May be called
        from another thread.
        """

    def forget(self, runs: Sequence[ArchivedRun], stored: frozenset[Hash32]) -> None:
        """Lets go of these for good; but who may read the outputs that are `stored` still stays
        known. As `keep`.
        """

    def forgotten_outputs(self, after: Hash32, limit: int) -> list[Hash32]:
        """Outputs of runs that were let go of, in order, those after one. May be called from
        another thread.
        """

    def forget_outputs(self, outputs: Sequence[Hash32]) -> None:
        """Nobody has these any more. As `keep`."""

    @property
    def problem(self) -> str:
        """Why it cannot be used, for people; "" when it can."""

    def close(self) -> None:
        """Lets go of what it has open."""


Place = tuple[int, Hash32]
"""(second in which a run was over, its job): the order in which runs go."""
START: Place = (0, ZERO_HASH)


@dataclass(slots=True)
class MemoryArchive:
    """As the one on disk, without a disk."""

    by_id: dict[Hash32, ArchivedRun] = field(default_factory=dict)
    outputs: dict[Hash32, Readers] = field(default_factory=dict)
    left: dict[Hash32, None] = field(default_factory=dict)  # outputs of runs that have gone
    gone: int = 0
    problem: str = ""

    def keep(self, runs: Sequence[ArchivedRun]) -> None:
        """As `RunArchive`."""
        for run in runs:
            self.by_id[run.run.job_id] = run
            for digest, readers in readers_of(run):
                self.outputs.setdefault(digest, readers)  # the first keeps it

    def run(self, job_id: Hash32) -> ArchivedRun | None:
        """As `RunArchive`."""
        return self.by_id.get(job_id)

    def runs_of(self, client: Address, limit: int) -> list[ArchivedRun]:
        """As `RunArchive`."""
        mine = (run for run in self.by_id.values() if run.run.client == client)
        return sorted(mine, key=lambda run: (run.run.created_at, run.last_line), reverse=True)[
            :limit
        ]

    def runs_after(self, client: Address, line: int) -> list[ArchivedRun]:
        """As `RunArchive`."""
        mine = (
            run for run in self.by_id.values() if run.run.client == client and run.last_line > line
        )
        return sorted(mine, key=lambda run: run.last_line, reverse=True)[:RUNS_PER_LOOK]

    def newest_line(self, client: Address) -> int:
        """As `RunArchive`."""
        return max(
            (run.last_line for run in self.by_id.values() if run.run.client == client), default=0
        )

    def since(self, line: int, limit: int) -> list[tuple[int, Row]]:
        """As `RunArchive`."""
        found = sorted(
            (run for run in self.by_id.values() if run.last_line > line),
            key=lambda run: run.last_line,
        )
        return [(run.last_line, row_of(run)) for run in found[:limit]]

    def readers(self, output: Hash32) -> Readers | None:
        """As `RunArchive`."""
        return self.outputs.get(output)

    def count(self) -> int:
        """As `RunArchive`."""
        return len(self.by_id) + self.gone

    def used_bytes(self) -> int:
        """As `RunArchive`: what the texts would take."""
        return sum(len(packed.encode(run)) for run in self.by_id.values())

    def over_before(self, moment: int, after: Place, limit: int) -> list[tuple[Place, ArchivedRun]]:
        """As `RunArchive`."""
        found = ((place_of(run), run) for run in self.by_id.values())
        return sorted(
            (item for item in found if after < item[0] < (moment, ZERO_HASH)),
            key=lambda item: item[0],
        )[:limit]

    def forget(self, runs: Sequence[ArchivedRun], stored: frozenset[Hash32]) -> None:
        """As `RunArchive`."""
        for run in runs:
            self.gone += self.by_id.pop(run.run.job_id, None) is not None
            for digest, _ in readers_of(run):
                if digest in stored:
                    self.left[digest] = None
                else:
                    self.outputs.pop(digest, None)

    def forgotten_outputs(self, after: Hash32, limit: int) -> list[Hash32]:
        """As `RunArchive`."""
        return sorted(digest for digest in self.left if digest > after)[:limit]

    def forget_outputs(self, outputs: Sequence[Hash32]) -> None:
        """As `RunArchive`."""
        for digest in outputs:
            if self.left.pop(digest, "") is None:
                del self.outputs[digest]

    def close(self) -> None:
        """As `RunArchive`."""


def place_of(over: ArchivedRun) -> Place:
    """When a run was over: the second of its newest line."""
    return (over.lines[-1].at if over.lines else over.run.created_at), over.run.job_id


def row_of(over: ArchivedRun) -> Row:
    """The run's row in the SQL tables, made once, when the run is archived.
    `reporting.rows.run_row` makes the same of a run in the state.
    """
    run = over.run
    outcome = run.verdict.message.outcome.name.lower() if run.verdict is not None else None
    is_stopped = any(line.name == "stopped" for line in over.lines)
    ending = "" if run.phase != "ended" else "stopped" if is_stopped else "unmatched"
    published = [execution for execution in run.executions if execution.role != "unknown"]
    return {
        "job_id": run.job_id.hex(),
        "client": run.client.hex(),
        "name": run.name,
        "host_class": over.ack.message.host_class.hex(),
        "phase": run.phase,
        "rule": run.rule.name.lower(),
        "outcome": outcome,
        "ending": outcome or ending,
        "executions": len(published),
        "audits": max(0, len(published) - 1),
        "outvoted": sum(not execution.agreed for execution in published)
        if outcome == "accepted"
        else 0,
        "charged": run.charged,
        "fee": _fee_of(over),
        "created_at": run.created_at,
        "receipt_cid": run.receipt_cid,
    }


def _fee_of(over: ArchivedRun) -> Amount:
    """The coordinator's fee. Runs archived before it was kept have it by the rule of settlement."""
    if over.fee is not None:
        return over.fee
    pays = sum(execution.pay or 0 for execution in over.run.executions)
    return share_bps(Amount(pays), over.ack.message.fee_bps)


def readers_of(run: ArchivedRun) -> Iterator[tuple[Hash32, Readers]]:
    """(ciphertext, who may read it) of every output that was committed to."""
    for lease in run.leases:
        if lease.output is not None:
            yield lease.output, Readers(lease.hash, lease.provider, run.run.client)
