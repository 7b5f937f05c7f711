"""Fetches a DAG as CARs over HTTP from several sources and verifies it block by block. It can be
resumed.

Calls block: run them in a thread. One `http.client` response read into one buffer is as fast as the
loopback device and uses constant memory. A source that sends wrong data is dropped. A source that
is cut off, stalls or is busy is asked again from the walk's position. `fetch_order` decides who is
asked for what. Source: https://specs.ipfs.tech/http-gateways/trustless-gateway/.
"""

import http.client
import time
from collections.abc import Callable

from quorate_content.dag.car import Progress, read_car
from quorate_content.dag.cid import Cid
from quorate_content.dag.content_limits import (
    AbsentEverywhere,
    BadSource,
    Bounds,
    DiskFull,
    TruncatedSource,
)
from quorate_content.dag.disk_tree import TreeWriter
from quorate_content.dag.walk import DagWalk, TreePath
from quorate_content.store import fetch_order
from quorate_content.store.fetch_order import Answer, Source
from quorate_content.store.http_answer import AbsentHere, Body, car_answer, check_car, probe
from quorate_content.store.threads import StopSignal
from quorate_protocol.refusals import Unavailable

STALL_SECONDS = 10.0  # without a byte, or with too few of them
REASONS_SHOWN = 8
Tally = Callable[[str, int], None]
"""Called with a source's label and the bytes of files that it sent and that were verified."""


def fetch(
    root: Cid,
    sources: tuple[Source, ...],
    walk: DagWalk,
    writer: TreeWriter,
    bounds: Bounds,
    stop: StopSignal,
    progress: Progress | None = None,
    tally: Tally | None = None,
    stall_seconds: float | None = None,
) -> None:
    """Feeds the walk until it is complete. `Unavailable` says what each source did; `Refused` if
    the content breaks a rule.
    """
    stall = STALL_SECONDS if stall_seconds is None else stall_seconds
    _Fetch(
        root=root,
        sources=sources,
        walk=walk,
        writer=writer,
        bounds=bounds,
        stop=stop,
        progress=progress,
        tally=tally,
        stall_seconds=stall,
    ).run()


class _Fetch:
    """One fetch: the queue of sources, and what they said."""

    def __init__(
        self,
        root: Cid,
        sources: tuple[Source, ...],
        walk: DagWalk,
        writer: TreeWriter,
        bounds: Bounds,
        stop: StopSignal,
        progress: Progress | None,
        tally: Tally | None,
        stall_seconds: float,
    ) -> None:
        self._root, self._walk, self._writer, self._bounds = root, walk, writer, bounds
        self._stop, self._progress, self._tally = stop, progress, tally
        self._stall_seconds = stall_seconds
        self._turns = fetch_order.first_turns(sources)
        self._may_come = not sources  # some source failed, and may have the content later
        self._reasons: dict[str, str] = {}  # what each source said last, by its label
        self._blocks_before = walk.blocks_done
        self._find_by = time.monotonic() + fetch_order.FIND_SECONDS

    def run(self) -> None:
        while self._needs_a_source():
            self._stop.check()
            if not self._turns or (self._is_finding and self._find_seconds <= 0):
                raise self._nobody_has_it()
            turn = self._turns[0]
            if turn.needs_probe:
                self._probe(turn.source)
            else:
                self._read(turn)

    def _needs_a_source(self) -> bool:
        while (expected := self._walk.expected) is not None:
            block = self._writer.known(expected)
            if block is None:
                return True
            self._walk.feed(block)
        return False

    @property
    def _is_finding(self) -> bool:
        return self._walk.blocks_done == self._blocks_before

    @property
    def _find_seconds(self) -> float:
        return self._find_by - time.monotonic()

    def _nobody_has_it(self) -> Unavailable:
        kind = Unavailable if self._may_come or self._turns else AbsentEverywhere
        said = [f"{label}: {text}" for label, text in self._reasons.items()]
        asked = {turn.source.label for turn in self._turns} - self._reasons.keys()
        said += [f"{label}: not asked, the time was over" for label in sorted(asked)]
        return kind(
            f"no source had {self._root}: {'; '.join(said[-REASONS_SHOWN:]) or 'none was given'}",
            retry_after=30.0,
        )

    def _probe(self, source: Source) -> None:
        seconds = fetch_order.answer_seconds(self._turns, self._find_seconds)
        try:
            answer = probe(source, self._root, self._stop, seconds)
            if answer is Answer.NOT_AT_HAND:
                self._reasons[source.label] = "it does not have it at hand"
        except TimeoutError:
            # The source does not know probes and searches already.
            self._stop.check()
            answer, self._reasons[source.label] = Answer.NOT_AT_HAND, "no answer to a probe"
        except (TruncatedSource, OSError, http.client.HTTPException) as error:
            # The source may still answer the request itself.
            self._stop.check()
            answer, self._reasons[source.label] = Answer.NOT_AT_HAND, str(error)
        except BadSource as error:
            answer, self._reasons[source.label] = Answer.USELESS, error.detail
        self._turns = fetch_order.after(self._turns, answer)

    def _read(self, turn: fetch_order.Turn) -> None:
        walk, source = self._walk, turn.source
        blocks, bytes_done, pause = walk.blocks_done, walk.bytes_done, 0.2
        self._pause(turn.pause_seconds)
        wanted = fetch_order.next_request(
            self._root, walk, turn.serves_roots_only, turn.sends_again
        )
        answer = Answer.HAS
        try:
            self._receive(source, wanted)
        except DiskFull:
            raise
        except (TruncatedSource, Unavailable, OSError, http.client.HTTPException) as error:
            self._stop.check()
            is_cut = isinstance(error, TruncatedSource)
            answer, self._may_come = Answer.CUT if is_cut else Answer.FAILED, True
            if isinstance(error, Unavailable):
                pause = error.retry_after
            elif walk.blocks_done > blocks:
                pause = 0.0
            self._reasons[source.label] = str(error) or type(error).__name__
        except BadSource as error:
            # This source lacks the content or sent wrong data. Verified blocks stay,
            # and the other sources may be right.
            self._may_come |= walk.blocks_done > self._blocks_before
            is_entry = isinstance(error, AbsentHere) and wanted.cid != self._root
            answer = Answer.ROOTS_ONLY if is_entry else Answer.USELESS
            self._reasons[source.label] = error.detail
        finally:
            if self._tally is not None and walk.bytes_done > bytes_done:
                self._tally(source.label, walk.bytes_done - bytes_done)
        self._turns = fetch_order.after(self._turns, answer, walk.blocks_done > blocks, pause)

    def _pause(self, seconds: float) -> None:
        left = self._find_seconds
        self._stop.wait(min(seconds, max(0.0, left)) if self._is_finding else seconds)

    def _receive(self, source: Source, wanted: fetch_order.CarRequest) -> None:
        seconds = self._stall_seconds
        if self._is_finding:
            seconds = min(seconds, fetch_order.answer_seconds(self._turns, self._find_seconds))
        with car_answer(
            source,
            f"{wanted.cid}?{wanted.query}",
            self._stop,
            seconds,
            self._stall_seconds,
            may_drip=len(self._turns) == 1,
        ) as response:
            receive(
                response,
                self._walk,
                self._bounds,
                self._stop,
                self._writer,
                self._step,
                wanted.within,
            )

    def _step(self, bytes_done: int) -> None:
        self._stop.check()
        if self._progress is not None:
            self._progress(bytes_done)


def receive(
    response: http.client.HTTPResponse,
    walk: DagWalk,
    bounds: Bounds,
    stop: StopSignal,
    writer: TreeWriter | None = None,
    progress: Progress | None = None,
    within: TreePath = (),
) -> None:
    """Feeds the walk from one answer, until the entry at `within` is complete. `writer` supplies
    blocks that came before.
    """
    check_car(response)
    known, seen = (writer.known, writer.seen) if writer is not None else (None, None)
    read_car(Body(response, stop), walk, bounds, known, seen, progress, within)
