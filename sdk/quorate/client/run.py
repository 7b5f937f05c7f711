"""A submitted job: its events, its logs and its result."""

import asyncio
import itertools
import shlex
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from quorate.base.errors import (
    CancelledError,
    EvidenceError,
    NotVerifiedError,
    QuorateError,
    RefusedError,
    UnavailableError,
    is_full_disk,
)
from quorate.client.background_settlement import RECONNECT_SECONDS, BackgroundSettlement, is_over
from quorate.client.base.result import Result
from quorate.client.base.session import ClientSession, Notice, ignore_notice
from quorate.client.base.timeouts import NOTICE_SECONDS
from quorate.client.base.transfer import Progress, fetch_output, no_progress, sealed_of
from quorate.job.quantities import format_amount, format_duration
from quorate.programs.result_differences import (
    describe_differences,
    early_warning,
    is_escalated,
    revealed,
)
from quorate.trust.charge_verification import CheckedVerdict
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import ExecutionEvidence
from quorate_protocol.messages.signed import Stop
from quorate_protocol.messages.views import JobEvent, RunView
from quorate_protocol.units import Amount, ExitStatus, Hash32, Outcome, UnixSeconds
from quorate_runtime.files import PUBLIC_MODE, write_atomic
from quorate_runtime.process.crash_points import crash_point

POLL_SECONDS = 5.0
FIRST_EVENT_SECONDS = 10.0  # every run has an event, but a busy coordinator may be slow to send it
HISTORY_SECONDS = 1.0
# a coordinator keeps 256 events; a stream that never ends must not be read for ever
HISTORY_MAX = 4_096
AWAY_SECONDS = 60.0  # longer than a coordinator takes to restart
LAST_EVENTS = frozenset({"verdict", "ended"})
STOPPED, WHY_MAX = "stopped by its client", 160
T = TypeVar("T")


class Run:
    """One run of this client. `Market.submit` and `Market.run` make it."""

    def __init__(
        self,
        client_session: ClientSession,
        background_settlement: BackgroundSettlement,
        job_id: Hash32,
        name: str,
        called: str = "",
    ) -> None:
        """`called` is what messages call it: what the user typed; else the beginning of its id."""
        self._client_session = client_session
        self._background_settlement = background_settlement
        self.job_id = job_id
        self.name = name
        self.called = called or self.id[:14]

    @property
    def id(self) -> str:
        """Returns the job id as 0x-hex."""
        return "0x" + self.job_id.hex()

    def __repr__(self) -> str:
        """Names the run by its whole id."""
        return f"<Run {self.id} name={self.name!r}>"

    async def status(self) -> RunView:
        """Returns the coordinator's present view of the run, unverified."""
        return await self._client_session.api.run(self.job_id)

    async def events(self, after: int = 0) -> AsyncIterator[JobEvent]:
        """Yields the run's past and new events until it is decided. Survives broken connections and
        silent streams.

        Raises UnavailableError if the coordinator stays away for too long.
        """
        failures, heard_at = 0, self._client_session.clock.now()
        while True:
            try:
                async with aclosing(
                    self._until_over(self._client_session.api.events(self.job_id, after))
                ) as events:
                    async for event in events:
                        failures, after, heard_at = 0, event.seq, self._client_session.clock.now()
                        yield event
                        if event.name in LAST_EVENTS:
                            return
                if is_over(await self.status()):
                    return
                heard_at = self._client_session.clock.now()
            except UnavailableError:
                failures += 1
                # A coordinator that accepts connections but says nothing fails slowly.
                is_long = self._client_session.clock.now() - heard_at > AWAY_SECONDS
                if failures > 2 * len(RECONNECT_SECONDS) or (is_long and failures > 1):
                    raise
            await self._client_session.clock.sleep(
                RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)]
            )

    async def _until_over(self, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Yields a stream's items. If none comes for a while, asks for the run's status, so that a
        silent stream ends with the run.
        """
        is_last = False
        waiting: asyncio.Future[T] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(anext(source))
                done, _ = await asyncio.wait({waiting}, timeout=POLL_SECONDS)
                if done:
                    item, waiting = await waiting, None
                    yield item
                elif is_last:
                    return
                else:
                    # Its last events may still be on their way.
                    is_last = is_over(await self.status())
        except StopAsyncIteration:  # not re-raised: the stream's ordinary end
            return
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await source.aclose()

    async def history(self) -> AsyncIterator[JobEvent]:
        """Yields the events so far. The history ends when the stream falls silent."""
        events, timeouts = self._client_session.api.events(self.job_id, 0), FIRST_EVENT_SECONDS
        try:
            for _ in range(HISTORY_MAX):
                yield await asyncio.wait_for(anext(events), timeouts)
                timeouts = HISTORY_SECONDS
        except (TimeoutError, StopAsyncIteration):  # not re-raised: the history ends here
            return
        finally:
            await events.aclose()

    async def logs(self, follow: bool = False) -> AsyncIterator[bytes]:
        """Yields log text in pieces. Logs are never part of the result."""
        logs = self._client_session.api.logs(self.job_id, follow)
        async with aclosing(self._until_over(logs) if follow else logs) as chunks:
            async for chunk in chunks:
                yield chunk

    async def stop(self) -> None:
        """Stops the run now. Its elapsed time is paid, and what it wrote so far may still become
        its result.
        """
        stop = Stop(self.job_id, UnixSeconds(int(self._client_session.clock.now())))
        await self._client_session.api.stop(
            seal(
                self._client_session.identity.domain,
                stop,
                self._client_session.profile.session.sign,
            )
        )

    async def wait(self, waiting: Notice = ignore_notice) -> RunView:
        """Waits until the run is over and returns its view. After a few seconds, it calls `waiting`
        once with a sentence that says what the run waits for.
        """
        news = self._background_settlement.news(self.job_id)
        began, has_told, has_warned = self._client_session.clock.now(), False, False
        try:
            while True:
                news.clear()
                view = await self._status_with_retries()
                if is_over(view):
                    return view
                if not has_warned and is_escalated(view):
                    has_warned = True
                    waiting(early_warning(self.called))
                if not has_told and self._client_session.clock.now() - began >= NOTICE_SECONDS:
                    has_told = True
                    waiting(self._describe_wait(view))
                try:
                    await asyncio.wait_for(news.wait(), POLL_SECONDS)
                except TimeoutError:
                    # Not re-raised: events are only a hint. Asking again finds the end even if an
                    # event was lost.
                    continue
        finally:
            self._background_settlement.forget(self.job_id)

    def _describe_wait(self, view: RunView) -> str:
        """Describes the run's state and time limits. How long a provider may fetch inputs is known
        only to the coordinator.
        """
        entry = self._client_session.entry(self.job_id)
        states = Counter(_one_word(item.phase) for item in view.executions)
        shown = (
            ", ".join(f"{count} {phase}" for phase, count in states.items()) or "no execution yet"
        )
        expiry = datetime.fromtimestamp(entry.order.expiry).astimezone()
        longest = format_duration(job_spec.decode(entry.spec).max_duration)
        return (
            f"waiting for run {self.called}: {_one_word(view.phase)} (executions: {shown}). "
            f"Providers are sought until {expiry:%Y-%m-%d %H:%M}, and a program runs for at most "
            f"{longest}"
        )

    async def _status_with_retries(self) -> RunView:
        """Returns the status, also while the coordinator restarts: its runs survive a restart, so
        waiting does too.
        """
        away_since: float | None = None
        for pause in itertools.chain(RECONNECT_SECONDS, itertools.repeat(RECONNECT_SECONDS[-1])):
            try:
                return await self.status()
            except UnavailableError as error:
                now = self._client_session.clock.now()
                if away_since is None:
                    away_since = now
                    self._client_session.notice(
                        f"run {self.called} continues, but {error}. Trying again for "
                        f"{AWAY_SECONDS:g} s"
                    )
                if now - away_since > AWAY_SECONDS:
                    raise
                await self._client_session.clock.sleep(pause)
        raise AssertionError("the pauses do not end")

    async def result(
        self,
        destination: Path | None = None,
        progress: Progress = no_progress,
        waiting: Notice = ignore_notice,
    ) -> Result:
        """Waits for the end, checks every claim, downloads the output and opens it.

        `destination` must not exist. The default is a folder of the profile, which a second call
        finds filled. `progress` gets (text, bytes done, bytes in all or 0); `waiting` as in `wait`.
        Raises NotVerifiedError if no result was accepted, CancelledError if this client stopped the
        run, EvidenceError if a claim does not hold.
        """
        view = await self.wait(waiting)
        if view.verdict is None:
            await self._background_settlement.note_uncharged(view)
            if view.rental is not None:
                ran = format_duration(view.rental.usage_ms // 1000)
                cost = self._client_session.entry(self.job_id).charged or Amount(0)
                raise CancelledError(
                    f"rental {self.called} is over: it ran for {ran} and cost "
                    f"{format_amount(cost)}; a rental has no output"
                )
            raise await self._unmatched()
        checked = await self._background_settlement.settle(view)
        receipt = await asyncio.to_thread(self._keep_receipt, checked)
        if checked.verdict.outcome is not Outcome.ACCEPTED:
            error = await self._without_result(checked, receipt, destination, progress)
            error.charged = checked.charged
            raise error
        output = destination or self._client_session.profile.outputs / self.job_id.hex()
        status, folder = await self._output(checked, output, destination is None, progress)
        providers = tuple(item.assignment.message.provider for item in checked.group)
        return Result(
            job_id=self.job_id,
            exit_status=status,
            output=folder,
            verdict=checked.verdict,
            rule=checked.rule,
            providers=providers,
            charged=checked.charged,
            receipt=receipt,
            receipt_cid=checked.cid,
            usage_ms=checked.group[0].commit.message.usage_ms,
        )

    async def why_ended(self) -> str:
        """Returns the last line of its history, in the coordinator's words; "" while it goes on."""
        why = ""
        with suppress(QuorateError):
            async for event in self.history():
                if event.name in LAST_EVENTS:
                    why = _one_word(event.text, WHY_MAX)
        return why

    async def _unmatched(self) -> QuorateError:
        """Says why a run ended before its program ran, by the last line of its history."""
        run, why = self.called, await self.why_ended()
        if STOPPED in why:
            return CancelledError(f"run {run}: you stopped it before it ran, and it cost nothing")
        return NotVerifiedError(
            f"run {run} ended without a result, and it cost nothing{': ' * bool(why)}{why}; see "
            f"`quorate events {run}`"
        )

    async def _without_result(
        self, checked: CheckedVerdict, receipt: Path, destination: Path | None, progress: Progress
    ) -> QuorateError:
        run = self.called
        if checked.is_stopped:
            return CancelledError(
                f"run {run}: you stopped it; its time cost {format_amount(checked.charged)} "
                f"(receipt: {receipt}). {await self._written_until(checked, destination, progress)}"
            )
        outcome = checked.verdict.outcome.name.lower().replace("_", "-")
        folder = self._client_session.profile.outputs / f"{self.job_id.hex()}-differs"
        said, found = await describe_differences(self._client_session, checked, folder)
        return NotVerifiedError(
            f"run {run}: {outcome}: no result was accepted. {_cost(checked.charged)} {said}See "
            f"`quorate events {run}` (receipt: {receipt})",
            found,
        )

    async def _written_until(
        self, checked: CheckedVerdict, destination: Path | None, progress: Progress
    ) -> str:
        """Fetches what a stopped program had written, which nobody checked. Says where it is."""
        found = revealed(checked)
        if not found:
            return ""
        folder = destination or self._client_session.profile.outputs / f"{self.job_id.hex()}-part"
        spec = job_spec.decode(self._client_session.entry(self.job_id).spec)
        try:
            if destination is not None or not await asyncio.to_thread(folder.is_dir):
                most = spec.resources.output_bytes
                await self._fetch_any(tuple(found[:1]), folder, most, progress)
        except (OSError, QuorateError) as error:
            return f"What it had written cannot be fetched: {error}"
        return f"What it had written is in {folder}, of one execution and not verified"

    async def _output(
        self, checked: CheckedVerdict, folder: Path, is_ours: bool, progress: Progress
    ) -> tuple[ExitStatus, Path]:
        reveal = checked.group[0].reveal
        if reveal is None:
            raise EvidenceError("verdict: the accepted execution was not revealed")
        # An output appears whole or not at all, so an existing folder of ours is complete.
        if is_ours and await asyncio.to_thread(folder.is_dir):
            return reveal.exit_status, folder
        spec = job_spec.decode(self._client_session.entry(self.job_id).spec)
        crash_point("client.before-fetch")
        try:
            await self._fetch_any(checked.group, folder, spec.resources.output_bytes, progress)
        except (OSError, UnavailableError) as error:
            if not is_full_disk(error):
                raise
            raise _disk_is_full(self.called, folder, is_ours) from error
        crash_point("client.after-fetch")
        return reveal.exit_status, folder

    async def _fetch_any(
        self, group: tuple[ExecutionEvidence, ...], folder: Path, bytes_max: int, progress: Progress
    ) -> None:
        """Downloads the output of the group's first execution, or the same from the first other one
        that the store still has. Within a tolerance others may have other outputs.
        """
        failure: Exception | None = None
        outputs = [sealed_of(item) for item in group]
        for sealed in outputs:
            if sealed.output_digest != outputs[0].output_digest:
                continue
            try:
                return await fetch_output(
                    self._client_session.api, sealed, folder, bytes_max, progress
                )
            except (EvidenceError, RefusedError, UnavailableError) as error:
                # The next execution is tried. The last failure is raised below.
                failure = error
        assert failure is not None, "a group is never empty"
        raise failure

    def _keep_receipt(self, checked: CheckedVerdict) -> Path:
        folder = self._client_session.profile.receipts
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.job_id.hex()}.json"
        crash_point("client.before-receipt")
        write_atomic(path, checked.receipt, PUBLIC_MODE)
        crash_point("client.after-receipt")
        return path


def _cost(charged: Amount) -> str:
    """Says what a run without an accepted result cost, and why."""
    if not charged:
        return "It cost nothing."
    return f"It cost {format_amount(charged)}: the providers that did the work are paid."


def _disk_is_full(run: str, folder: Path, is_ours: bool) -> UnavailableError:
    to = "" if is_ours else f" -o {shlex.quote(str(folder))}"
    place = shlex.quote(str(folder.absolute().parent))
    return UnavailableError(
        f"{folder}: the disk is full, the result is kept for you: free some space "
        f"(`df -h {place}`), then: quorate get {run}{to}"
    )


def _one_word(text: str, length: int = 40) -> str:
    """Puts a stranger's text on one line of at most `length` characters."""
    return " ".join(text.split())[:length]
