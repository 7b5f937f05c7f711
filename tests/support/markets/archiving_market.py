"""The scripted market with an archive, for tests of finished jobs. The archive can be down."""

from quorate_coordinator.core.archived_run import ArchivedRun, archived
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import ArchiveRuns, Effect
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.units import Hash32
from support.markets.scripted_market import Market, Party
from support.memory_archive import MemoryArchive, RunArchive


class ArchivingMarket(Market):
    """A market whose archive can be down."""

    def __init__(self, *parties: Party, archive: RunArchive | None = None) -> None:
        self.archive = archive or MemoryArchive()
        self.is_archive_down = False
        self.waiting: list[ArchiveRuns] = []
        self.history: RunReader | None = None
        super().__init__(*parties)
        self.history = RunReader(self.core.state, self.archive)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, ArchiveRuns):
            self.waiting.append(effect)
            if not self.is_archive_down:
                self.perform_archive()
        else:
            super()._perform(effect)

    def write(self) -> list[ArchiveRuns]:
        """Performs the first half of the effect: writes the runs into the archive."""
        for effect in self.waiting:
            jobs = (self.core.state.jobs.get(job_id) for job_id in effect.jobs)
            runs = [archived(self.core.state, job) for job in jobs if job is not None]
            self.archive.keep(runs)
            if self.history is not None:
                self.history.kept(runs)
        return self.waiting

    def perform_archive(self) -> None:
        """Performs the whole effect: writes the runs, then tells the core."""
        done, self.waiting = self.write(), []
        for effect in done:
            self.send(ev.RunsArchived(effect.jobs))

    def until_archived(self, *job_ids: Hash32, seconds: int = 200) -> None:
        """Beats (lets seconds pass) until the state has none of these jobs."""
        for _ in range(seconds):
            if not any(job_id in self.core.state.jobs for job_id in job_ids):
                return
            self.beat()
        raise AssertionError([self.core.state.jobs.get(job_id) for job_id in job_ids])


def archived_runs(count: int) -> list[ArchivedRun]:
    """Returns `count` archived runs of two clients in turn, as a market produced them."""
    market = ArchivingMarket(*[Party(number) for number in range(5)])
    jobs = [market.order(number % 2, number + 1) for number in range(count)]
    market.until_archived(*jobs)
    return [run for run in map(market.archive.run, jobs) if run is not None]
