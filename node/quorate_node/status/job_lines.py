"""Writes a log line for each job that is taken, finished, paid or not paid, and counts the income.

It reads the core after its steps. So no step waits for it, and a replay writes nothing.
"""

import logging
from datetime import UTC, datetime
from pathlib import Path

from quorate_node.core.debts import pay_of
from quorate_node.core.phases import (
    FAULTED,
    Committed,
    Declined,
    Done,
    Execution,
    Lapsed,
    Over,
    Receipted,
    Revealed,
)
from quorate_node.core.provider_core import ProviderCore
from quorate_node.machine.nvml_probe import GpuWatch
from quorate_node.status.income import (
    Income,
    read_income,
    with_earned,
    with_energy,
    with_job,
    without_forgotten,
    write_income,
)
from quorate_protocol.messages.ports import Clock
from quorate_protocol.rules.receipts.repeat_batch import is_repeat
from quorate_protocol.units import EXIT_MEMORY_KILL, EXIT_TIMEOUT, ExitStatus, Outcome, usd
from quorate_runtime.process.log_throttle import LogThrottle

LOOK_SECONDS = 0.5
SAVE_SECONDS = 5.0
FORGET_EVERY_LOOKS = 120
STOPPED = "stopped by the client"

log = logging.getLogger(__name__)


class JobLines:
    """The task of the daemon that tells the owner about jobs."""

    def __init__(
        self, core: ProviderCore, home: Path, clock: Clock, gpu_watch: GpuWatch | None = None
    ) -> None:
        """Older jobs get no line, but are counted once."""
        self._core, self._home, self._clock = core, home, clock
        self.income = read_income(home)
        self._saved: Income | None = self.income
        self._counted = set(self.income.counted)
        self._changed = core.executions.follow()
        self._taken = set(self._changed)
        self._finished = {
            lease for lease in self._taken if core.executions[lease].commit() is not None
        }
        self._gpu_watch, self._millijoules = gpu_watch, 0
        self._trouble = LogThrottle(log, clock)

    async def run(self) -> None:
        looks, saved_at = 0, self._clock.now()
        while True:
            looks += 1
            self.look()
            if looks % FORGET_EVERY_LOOKS == 0:
                self.income = without_forgotten(self.income, self._core.executions)
                self._counted = set(self.income.counted)
            if self._clock.now() - saved_at >= SAVE_SECONDS:
                self._save()
                saved_at = self._clock.now()
            await self._clock.sleep(LOOK_SECONDS)

    def look(self) -> None:
        changed = sorted(self._changed)
        self._changed.clear()
        for lease in changed:
            found = self._core.executions.get(lease)
            if found is None:
                self._taken.discard(lease)
                self._finished.discard(lease)
            else:
                self._tell(found)
        for coordinator, debt in self._core.debts.items():
            self.income = with_earned(self.income, self._day(), coordinator, debt.earned)
        manners = self._gpu_watch.manners if self._gpu_watch else None
        if manners is not None and manners.millijoules > self._millijoules:
            more, self._millijoules = manners.millijoules - self._millijoules, manners.millijoules
            self.income = with_energy(self.income, self._day(), more)

    def _tell(self, found: Execution) -> None:
        lease, phase = found.assignment_hash, found.phase
        if isinstance(phase, Declined):
            # Without the lease's name, so that equal reasons are folded into one line a minute.
            log.info("declined a job: %s", phase.text)
            return
        if lease not in self._taken and lease not in self._counted:
            self._taken.add(lease)
            log.info("%s", taken_line(found))
        if isinstance(phase, Committed | Receipted | Revealed | Done):
            if lease not in self._finished and lease not in self._counted:
                log.info("%s", finished_line(found))
            self._finished.add(lease)
        if isinstance(phase, Done | Lapsed | Over) and lease not in self._counted:
            self._end(found)

    def _end(self, found: Execution) -> None:
        lease, why = found.assignment_hash, found.unpaid()
        self._counted.add(lease)
        self.income = with_job(self.income, self._day(), lease, is_paid=not why)
        if why == FAULTED:
            return  # the frame handler logs it, also if the verdict comes long afterwards
        if why:
            level = logging.INFO if why.startswith(STOPPED) else logging.WARNING
            log.log(level, "%s is not paid: %s", _name(found), why)
        else:
            log.info("%s", paid_line(found))

    def _day(self) -> str:
        return datetime.fromtimestamp(self._clock.now(), UTC).date().isoformat()

    def _save(self) -> None:
        if self.income == self._saved:
            return
        try:
            write_income(self._home, self.income)
            self._saved = self.income
            self._trouble.recovered("the daemon writes the income again")
        except OSError as error:
            # Not re-raised: the disk may have space again soon, and no payment depends on it.
            self._trouble.failed(f"the income cannot be written: {error}")

    def close(self) -> None:
        """Looks once more and writes the file, at the daemon's end."""
        self.look()
        self._save()


def taken_line(found: Execution) -> str:
    message = found.assignment.message
    gpus = f" on {len(found.gpus)} GPUs" if found.gpus else ""
    whose = f", from coordinator 0x{found.coordinator.hex()}" if found.is_rental else ""
    return (
        f"{_name(found)} taken{gpus}: {found.spec.image[:200]}, "
        f"{usd(message.price_per_hour)} USD an hour, {message.max_duration} s at most{whose}"
    )


def finished_line(found: Execution) -> str:
    """The line about a job whose result was committed. Its pay depends on the verdict."""
    commit, phase = found.commit(), found.phase
    assert commit is not None, "only committed jobs are finished"
    how = (
        f" ({exit_text(phase.reveal.exit_status)})"
        if isinstance(phase, Committed | Receipted | Revealed)
        else ""
    )
    return f"{_name(found)} finished after {commit.usage_ms / 1000:.1f} s{how}"


def paid_line(found: Execution) -> str:
    phase = found.phase
    if isinstance(phase, Over):
        rented = f"was rented for {phase.usage_ms / 1000:.0f} s"
        return f"{_name(found)} {rented}: {phase.why}"
    assert isinstance(phase, Done), "an execution without a verdict is not paid"
    outcome = phase.verdict.message.outcome
    if outcome is not Outcome.ACCEPTED:
        name = outcome.name.lower().replace("_", "-")
        return f"{_name(found)} ended as {name}: its receipt tells what it pays"
    if phase.commit_set is not None and is_repeat(phase.commit_set.message):
        return (
            f"{_name(found)} repeated a job, to confirm a fault: the coordinator's audit fund pays"
        )
    return f"{_name(found)} paid: {usd(pay_of(found))} USD"


def exit_text(status: ExitStatus) -> str:
    return {EXIT_TIMEOUT: "stopped at its time limit", EXIT_MEMORY_KILL: "out of memory"}.get(
        status, f"exit {status}"
    )


def _name(found: Execution) -> str:
    """A rental in full, so that the log answers an abuse report."""
    lease = found.assignment_hash.hex()
    return f"rental 0x{lease}" if found.is_rental else f"job 0x{lease[:12]}"
