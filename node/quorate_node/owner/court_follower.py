"""Follows the court on chain and submits its events to the provider's core.

A file keeps the cursor (the last block read). It is written after the journal has the events. So an
event may be delivered twice, which changes nothing, but none is lost.
"""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from quorate_contracts import court_facts
from quorate_contracts.deploy import Contracts
from quorate_contracts.events import Event
from quorate_contracts.generated import court
from quorate_node.core import events
from quorate_node.core.events import EventSink
from quorate_protocol.codec import canonical
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Seconds
from quorate_runtime.chain import ChainClient, Cursor, LogBatch, LogFollower
from quorate_runtime.chain.follower import GENESIS, block_at
from quorate_runtime.process.log_throttle import LogThrottle

# How far back to read if there is no cursor file. Then this provider is new, and the jury of an
# older case cannot have been drawn from its slots.
LOOK_BACK_SECONDS = 7 * 86_400
POLL_SECONDS = 1.0
SAVE_EVERY_SECONDS = 10.0
RETRY_SECONDS = 2.0

log = logging.getLogger(__name__)


def translate(event: Event | None) -> events.Event | None:
    """None if the core needs none. Pure."""
    match event:
        case court.CaseOpened(execution, accused, filing, spec_hash, class_id=class_id):
            return events.ChainCaseOpened(
                execution=execution,
                case_id=court_facts.case_id(filing),
                accused=accused,
                spec_hash=spec_hash,
                pool=filing.pool,
                class_id=class_id,
                max_duration=Seconds(filing.duration),
                pay=filing.pay,
            )
        case court.JuryDrawn(execution, jury, vote_by):
            return events.ChainJuryDrawn(execution, jury, vote_by)
        case court.Voted(execution, juror, ballot):
            return events.ChainVoted(execution, events.Vote(juror, ballot))
        case court.RevealsOpen(execution, reveal_by):
            return events.ChainVotingEnded(execution, reveal_by)
        case court.Decided(execution):
            return events.ChainCaseDecided(execution)
        case _:
            return None


@dataclass(slots=True)
class CourtFollower:
    """Delivers the court's events to the actor while it runs."""

    client: ChainClient
    contracts: Contracts
    actor: EventSink
    clock: Clock
    cursor_file: Path
    _trouble: LogThrottle = field(init=False)

    def __post_init__(self) -> None:
        self._trouble = LogThrottle(log, self.clock)

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except (Unavailable, OSError) as error:
                self._trouble.failed(f"this node cannot follow the court: {error}")
                await self.clock.sleep(
                    max(RETRY_SECONDS, error.retry_after if isinstance(error, Unavailable) else 0.0)
                )

    async def _follow(self) -> None:
        cursor, start, saved_at = self._read_cursor(), GENESIS, 0.0
        if cursor is None:
            head = await self.client.head()
            start = await block_at(self.client, head, head.time - LOOK_BACK_SECONDS)
        follower = LogFollower(
            self.client,
            self.clock,
            [self.contracts.court.address],
            cursor=cursor,
            start=start,
            depth=self.contracts.deployment.constants().chain_depth,
            poll_seconds=POLL_SECONDS,
        )
        async for batch in follower.batches():
            # After a reorganisation the chain gives the logs again. A duty that came from a removed
            # block ends by its own deadline.
            if isinstance(batch, LogBatch):
                for raw_log in batch.logs:
                    event = translate(
                        self.contracts.event(raw_log.address, raw_log.topics, raw_log.data)
                    )
                    if event is not None:
                        await self.actor.submit(event)
            if (
                isinstance(batch, LogBatch) and batch.logs
            ) or self.clock.now() - saved_at >= SAVE_EVERY_SECONDS:
                self._save_cursor(batch.cursor)
                saved_at = self.clock.now()
            self._trouble.recovered("this node follows the court again")

    def _read_cursor(self) -> Cursor | None:
        try:
            return (
                canonical.decode(Cursor, self.cursor_file.read_bytes())
                if self.cursor_file.exists()
                else None
            )
        except Refused as refused:
            # Not re-raised: a power cut may empty the file. Reading an event twice changes nothing.
            log.warning(
                "%s is damaged (%s): this node reads the court's last %d days again",
                self.cursor_file,
                refused,
                LOOK_BACK_SECONDS // 86_400,
            )
            return None

    def _save_cursor(self, cursor: Cursor) -> None:
        part = self.cursor_file.with_suffix(".part")
        part.write_bytes(canonical.encode(cursor))
        os.replace(part, self.cursor_file)
