"""Compares the journal with what others know, before and after the coordinator begins to sign.

With an old journal, such as a restored backup, this coordinator would sign messages that contradict
its earlier ones. So it ends if it finds that its journal is not the newest.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn

from quorate_contracts.deploy import Contracts
from quorate_coordinator.base.config import RESTORED, TRANSACTIONS, Config
from quorate_coordinator.chain.queries import everything
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.jobs.retirement import ARCHIVED
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.storage import startup_checks
from quorate_coordinator.storage.archive import FileArchive
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_runtime.chain import ChainClient, Sender

log = logging.getLogger(__name__)
COMPARE_SECONDS, COMPARE_RETRY_SECONDS = 5.0, 2.0


@dataclass(slots=True)
class JournalComparison:
    """One comparison after a start. `compared` is set once the chain has answered, or need not
    answer.
    """

    config: Config
    core: CoordinatorCore
    archive: FileArchive
    contracts: Contracts
    client: ChainClient
    sender: Sender
    clock: Clock
    submit: Callable[[ev.Event], Awaitable[object]]
    compared: asyncio.Event = field(default_factory=asyncio.Event)
    unknown: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """What a provider showed with our signature and our state does not have."""
    may_be_older: bool = False  # wait for what providers show, and take no orders until then

    async def check_files(self, newest_at: int) -> None:
        """Compares the journal with the other files. `newest_at` is the second of its newest event.
        Raises JournalOlder or FileDamaged.
        """
        config, state = self.config, self.core.state
        is_restored = config.path(RESTORED).exists()
        parts = state.own, newest_at, self.clock.now()
        self.may_be_older = is_restored or startup_checks.may_be_older(*parts)
        self._compare_archive()
        path = config.path(TRANSACTIONS)
        if startup_checks.may_start_empty(path, state, config.begin_anew):
            await startup_checks.check_nothing_is_under_way(self.client, self.sender.address, path)
        startup_checks.check_sends(path, state, config.begin_anew)
        if not config.is_newest:
            startup_checks.check_archive(state, self.archive)

    def _compare_archive(self) -> None:
        wanted = self.core.state.counters.get(ARCHIVED) or 0
        try:
            there = self.archive.count()
        except Unavailable:
            return  # not re-raised: `health` says what is wrong with it
        if there < wanted:
            log.error(
                "the archive has %d of %d finished runs: it is older than the journal. "
                "Bring back its newest backup",
                there,
                wanted,
            )

    async def compare_with_chain(self) -> None:
        """Tells the core what the chain has of all tabs, as soon as it answers.

        Then compares it with what the journal knows to be signed.
        """
        core = self.core
        parts = self.client, self.contracts, core.rules.coordinator, core.state
        while True:
            try:
                await self.submit(await everything(*parts))
                break
            except Unavailable as error:
                # Not re-raised: nothing can be paid before the chain answers.
                log.warning("the journal is not compared with the chain yet: %s", error)
                await self.clock.sleep(COMPARE_RETRY_SECONDS)
        if not self.config.is_newest:
            startup_checks.check_paid(core.state)
        self.compared.set()

    async def wait(self) -> None:
        """Waits before the first tick, because only ticks sign sums.

        The chain has a moment to show what it paid, unless it does not answer. After a longer time
        without events, as with a restored backup, providers also have a moment to show newer
        vouchers.
        """
        # It does not wait for a chain that does not answer: then nothing can be paid, and
        # deadlines must still be applied.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMPARE_SECONDS):
                await self.compared.wait()
        if self.may_be_older:
            pause = startup_checks.HEARTBEATS_AWAITED * self.core.rules.limits.heartbeat_every
            await self.clock.sleep(pause)

    def trust(self) -> None:
        """Forgets that the home was restored, once its journal has been compared."""
        self.config.path(RESTORED).unlink(missing_ok=True)
        self.may_be_older = False

    def show(self, what: str) -> None:
        """Records evidence that a provider has shown: a message that this coordinator signed and
        that its state does not have.
        """
        if self.config.is_newest:
            log.error("the journal may not be the newest: %s", what)
        elif self.unknown.empty():
            self.unknown.put_nowait(what)

    async def end_when_older(self) -> NoReturn:
        """Raises `JournalOlder` once a provider has shown that the journal is not the newest."""
        raise startup_checks.journal_older(await self.unknown.get())
