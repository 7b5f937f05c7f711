"""A submitted job: its history, its logs, its end."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from quorate.client.background_settlement import RECONNECT_SECONDS, BackgroundSettlement, is_over
from quorate.client.result import Result
from quorate.client.session import ClientSession, Notice, ignore_notice
from quorate.client.timeouts import TELL_SECONDS
from quorate.client.transfer import Progress, fetch_output, no_progress
from quorate.errors import (
    CancelledError,
    EvidenceError,
    NotVerifiedError,
    QuorateError,
    RefusedError,
    UnavailableError,
)
from quorate.job.quantities import format_amount, format_duration
from quorate.trust.charge_verification import Agreement
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import ExecutionEvidence
from quorate_protocol.messages.signed import Stop
from quorate_protocol.messages.views import JobEvent, RunView, SealedOutput
from quorate_protocol.units import ExitStatus, Hash32, Outcome, UnixSeconds
from quorate_runtime.process.crash_points import crash_point

POLL_SECONDS = 5.0
FIRST_EVENT_SECONDS = (
    10.0  # every run has one, and a busy coordinator needs a while for the first byte
)
HISTORY_SECONDS = 1.0
HISTORY_MAX = 4_096  # a coordinator keeps 256 lines; one that goes on and on is not read for ever
AWAY_SECONDS = 60.0  # longer than a coordinator takes to start again
LAST_EVENTS = frozenset({"verdict", "ended"})
T = TypeVar("T")


class Run:
    """One run of this client. Made by `Market.submit` and `Market.run`."""

    def __init__(
        self,
        client_session: ClientSession,
        background_settlement: BackgroundSettlement,
        job_id: Hash32,
        name: str,
    ) -> None:
        self._client_session = client_session
        self._background_settlement = background_settlement
        self.job_id = job_id
        self.name = name

    @property
    def id(self) -> str:
        """0x-hex of the job id."""
        return "0x" + self.job_id.hex()

    async def status(self) -> RunView:
        """What the coordinator says now; unverified."""
        return await self._client_session.api.run(self.job_id)

    async def events(self, after: int = 0) -> AsyncIterator[JobEvent]:
        """The run's history and then its news, until it is decided; survives broken connections,
        and a stream that says nothing more.
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
                is_long = (
                    self._client_session.clock.now() - heard_at > AWAY_SECONDS
                )  # one that accepts and says nothing fails slowly
                if failures > 2 * len(RECONNECT_SECONDS) or (is_long and failures > 1):
                    raise
            await self._client_session.clock.sleep(
                RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)]
            )

    async def _until_over(self, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """A stream's items; when none comes for a while the run's status is asked, so that a
        stream that fell silent ends with the run.
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
                    is_last = is_over(
                        await self.status()
                    )  # what was said at its end may still be on its way
        except StopAsyncIteration:  # not re-raised: the stream's ordinary end
            return
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await source.aclose()

    async def history(self) -> AsyncIterator[JobEvent]:
        """What has happened so far: the stream until it falls silent."""
        events, timeouts = self._client_session.api.events(self.job_id, 0), FIRST_EVENT_SECONDS
        try:
            for _ in range(HISTORY_MAX):
                yield await asyncio.wait_for(anext(events), timeouts)
                timeouts = HISTORY_SECONDS
        except (TimeoutError, StopAsyncIteration):  # not re-raised: that was the history
            return
        finally:
            await events.aclose()

    async def logs(self, follow: bool = False) -> AsyncIterator[bytes]:
        """Log text; never part of the result."""
        logs = self._client_session.api.logs(self.job_id, follow)
        async with aclosing(self._until_over(logs) if follow else logs) as chunks:
            async for chunk in chunks:
                yield chunk

    async def stop(self) -> None:
        """Ends the run now; its elapsed time is paid, and what it wrote so far may still become
        its result.
        """
        stop = Stop(self.job_id, UnixSeconds(int(self._client_session.clock.now())))
        await self._client_session.api.stop(
            seal(self._client_session.pins.domain, stop, self._client_session.profile.session.sign)
        )

    async def wait(self, waiting: Notice = ignore_notice) -> RunView:
        """The run once it is over. `waiting` is told once what it waits for, when it is not over
        within seconds.
        """
        news = self._background_settlement.news(self.job_id)
        began, has_told = self._client_session.clock.now(), False
        try:
            while True:
                news.clear()
                view = await self._status_after_all()
                if is_over(view):
                    return view
                if not has_told and self._client_session.clock.now() - began >= TELL_SECONDS:
                    has_told = True
                    waiting(self._waited_for(view))
                try:
                    await asyncio.wait_for(news.wait(), POLL_SECONDS)
                except TimeoutError:
                    # Not re-raised: events are a hint; asking again is what finds the end when one
                    # was lost.
                    continue
        finally:
            self._background_settlement.forget(self.job_id)

    def _waited_for(self, view: RunView) -> str:
        """State and bounds. Beyond these the client knows none: what a provider quoted for
        fetching is between it and the coordinator.
        """
        entry = self._client_session.entry(self.job_id)
        states = Counter(_word(item.phase) for item in view.executions)
        shown = (
            ", ".join(f"{count} {phase}" for phase, count in states.items()) or "no execution yet"
        )
        expiry = datetime.fromtimestamp(entry.order.expiry, UTC)
        longest = format_duration(job_spec.decode(entry.spec).max_duration)
        return (
            f"waiting for run {self.id[:14]}: {_word(view.phase)} (executions: {shown}). A "
            f"provider is looked for until"
            f" {expiry:%Y-%m-%d %H:%M:%S} UTC; one that accepted may take what it quoted for "
            f"fetching, and then {longest} (max_duration)"
        )

    async def _status_after_all(self) -> RunView:
        """The status, from a coordinator that may be starting again: the run does not end with
        it, so neither does waiting.
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
                        f"run {self.id[:14]} goes on: {error}. Asking again for {AWAY_SECONDS:g} s"
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
        """Waits, checks every claim, downloads and opens the output.

        NotVerifiedError when the run ended without an accepted result, CancelledError when this
        client's own stop ended it, EvidenceError when a claim does not hold. `destination` must
        not exist; by default a folder of the profile, which a second call finds filled.
        `waiting`: as of `wait`.
        """
        view = await self.wait(waiting)
        if view.verdict is None:
            await self._background_settlement.note_uncharged(view)
            raise NotVerifiedError(
                f"run {self.id[:14]} ended without a result; see `quorate events {self.id[:14]}`"
            )
        agreement = await self._background_settlement.settle(view)
        receipt = await asyncio.to_thread(self._keep_receipt, agreement)
        if agreement.verdict.outcome is not Outcome.ACCEPTED:
            raise self._without_result(agreement, receipt)
        output = destination or self._client_session.profile.outputs / self.job_id.hex()
        status, folder = await self._output(agreement, output, destination is None, progress)
        providers = tuple(item.assignment.message.provider for item in agreement.group)
        return Result(
            job_id=self.job_id,
            exit_status=status,
            output=folder,
            verdict=agreement.verdict,
            rule=agreement.rule,
            providers=providers,
            charged=agreement.charged,
            receipt=receipt,
            receipt_cid=agreement.cid,
        )

    def _without_result(self, agreement: Agreement, receipt: Path) -> QuorateError:
        run = self.id[:14]
        if agreement.is_stopped:
            return CancelledError(
                f"run {run}: you stopped it; its time cost {format_amount(agreement.charged)} "
                f"(receipt: {receipt})"
            )
        outcome = agreement.verdict.outcome.name.lower().replace("_", "-")
        return NotVerifiedError(
            f"run {run}: {outcome}: no result was accepted; see `quorate events {run}` (receipt: "
            f"{receipt})"
        )

    async def _output(
        self, agreement: Agreement, folder: Path, is_ours: bool, progress: Progress
    ) -> tuple[ExitStatus, Path]:
        reveal = agreement.group[0].reveal
        if reveal is None:
            raise EvidenceError("verdict: the accepted execution was not revealed")
        # An output appears whole or not at all, so a folder of ours that is there is complete.
        if is_ours and await asyncio.to_thread(folder.is_dir):
            return reveal.exit_status, folder
        spec = job_spec.decode(self._client_session.entry(self.job_id).spec)
        crash_point("client.before-fetch")
        await self._fetch_any(agreement.group, folder, spec.resources.output_bytes, progress)
        crash_point("client.after-fetch")
        return reveal.exit_status, folder

    async def _fetch_any(
        self, group: tuple[ExecutionEvidence, ...], folder: Path, bytes_max: int, progress: Progress
    ) -> None:
        """Every execution of the group opens to the same output: the first that the store still
        has will do.
        """
        failure: Exception | None = None
        for item in group:
            reveal = item.reveal
            assert reveal is not None, "members of the group are revealed"
            sealed = SealedOutput(
                item.commit.message.encrypted_output,
                reveal.salt,
                reveal.output_digest,
                reveal.exit_status,
            )
            try:
                return await fetch_output(
                    self._client_session.api, sealed, folder, bytes_max, progress
                )
            except (EvidenceError, RefusedError, UnavailableError) as error:
                # The next one is tried; the last failure is raised below.
                failure = error
        assert failure is not None, "a group is never empty"
        raise failure

    def _keep_receipt(self, agreement: Agreement) -> Path:
        folder = self._client_session.profile.receipts
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.job_id.hex()}.json"
        crash_point("client.before-receipt")
        part = path.with_name(path.name + ".part")
        part.write_bytes(agreement.receipt)
        part.replace(path)
        crash_point("client.after-receipt")
        return path


def _word(text: str) -> str:
    """A stranger's word on one line."""
    return " ".join(text.split())[:40]
