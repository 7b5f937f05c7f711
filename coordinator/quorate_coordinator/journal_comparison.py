"""Compares the journal with what others know, before and after the coordinator begins to sign.

With an old journal, such as a restored backup, it would sign messages that contradict its earlier
ones. So it ends if its journal is not the newest.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn

import aiohttp

from quorate_contracts.announced_coordinators import newest_announcement
from quorate_contracts.deploy import Contracts
from quorate_coordinator.base.config import RESTORED, TRANSACTIONS, Config
from quorate_coordinator.chain.queries import everything
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.jobs.retirement import ARCHIVED
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.storage import startup_checks
from quorate_coordinator.storage.archive import FileArchive
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address
from quorate_runtime.chain import ChainClient, Sender
from quorate_runtime.http.client_sessions import read_bounded
from quorate_runtime.p2p.multiaddrs import http_before

log = logging.getLogger(__name__)
COMPARE_SECONDS, COMPARE_RETRY_SECONDS = 5.0, 2.0
ANSWER_BYTES_MAX = 64 * 1024
ANSWER_SECONDS = 3.0
CHAIN_SECONDS = 10.0  # for the look-up of the own announcement


@dataclass(slots=True)
class JournalComparison:
    """One comparison after a start. `compared` is set once the chain has answered."""

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
        """`newest_at`: the second of its newest event. Raises JournalOlder or FileDamaged."""
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
        """The core hears of all tabs, then they are compared with what was signed."""
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
        self.config.path(RESTORED).unlink(missing_ok=True)
        self.may_be_older = False

    def show(self, what: str) -> None:
        """`what`: a message that this coordinator signed and that its state does not have."""
        if self.config.is_newest:
            log.error("the journal may not be the newest: %s", what)
        elif self.unknown.empty():
            self.unknown.put_nowait(what)

    async def end_when_older(self) -> NoReturn:
        """Raises `JournalOlder` once a provider has shown that the journal is not the newest."""
        raise startup_checks.journal_older(await self.unknown.get())


async def refuse_beside_a_copy(
    session: aiohttp.ClientSession,
    client: ChainClient,
    contracts: Contracts,
    coordinator: Address,
    own_urls: tuple[str, ...],
) -> None:
    """Refuses to start beside another process of the same account, as after a copy of the folder.
    Both would sign different debts, and lose money by it.

    Asks at the own URLs, and beside the addresses that were announced on chain, who serves. This
    process does not listen yet. Raises Refused if it is this coordinator; leaves out what does not
    answer.
    """
    announced = await _announced_urls(client, contracts, coordinator)
    urls = tuple(dict.fromkeys(url.rstrip("/") for url in (*own_urls, *announced) if url))
    for url, found in zip(
        urls, await asyncio.gather(*(_coordinator_at(session, url) for url in urls)), strict=True
    ):
        if found == coordinator:
            raise Refused(
                Code.BUSY,
                f"another process serves as coordinator 0x{coordinator.hex()} at {url}; stop it, "
                "or make a second coordinator with keys of its own: quorate coordinator init "
                "--home FOLDER",
            )


async def _announced_urls(
    client: ChainClient, contracts: Contracts, coordinator: Address
) -> tuple[str, ...]:
    try:
        async with asyncio.timeout(CHAIN_SECONDS):
            newest = await newest_announcement(client, contracts, coordinator)
    except (Refused, Unavailable, TimeoutError) as error:
        # Not re-raised: a coordinator that has worked starts without the chain.
        cause = str(error) or f"the chain did not answer within {CHAIN_SECONDS:g} s"
        log.warning("did not look on chain for another process with these keys: %s", cause)
        return ()
    return tuple(http_before(address) for address in newest.addresses) if newest else ()


async def _coordinator_at(session: aiohttp.ClientSession, url: str) -> Address | None:
    """The account of the coordinator that serves at a URL; None if none does."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    try:
        async with session.get(
            f"{url}/v1/info", timeout=timeout, allow_redirects=False
        ) as response:
            tree = json.loads(await read_bounded(response, ANSWER_BYTES_MAX))
            return Address(bytes.fromhex(tree["coordinator"].removeprefix("0x")))
    except (aiohttp.ClientError, OSError, Unavailable, ValueError, LookupError, TypeError):
        return None  # not re-raised: nobody serves there as a coordinator
    except AttributeError:  # not re-raised: the field is no text
        return None
