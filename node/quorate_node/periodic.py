"""Loops of the daemon: ticks, heartbeats, offers, status, claims. Each is one task of its group."""

import logging
import random
from collections.abc import Callable, Mapping

from quorate_contracts.deploy import Contracts
from quorate_node.chain.calls import ask
from quorate_node.chain.jury_and_claims import JuryService
from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.messaging.announcements import Announcements
from quorate_node.messaging.coordinator_client import Coordinator
from quorate_node.messaging.frame_handler import EventSink
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Amount, Sequence
from quorate_runtime.chain import ChainClient
from quorate_runtime.process.health import Board
from quorate_runtime.process.log_throttle import LogThrottle

TICK_SECONDS = 0.25
STATUS_SECONDS = 2.0
MONEY_SECONDS_MAX = 600.0

log = logging.getLogger(__name__)


async def tick(core: ProviderCore, actor: EventSink, clock: Clock) -> None:
    """Submits a Tick when something is due, and only then: every event is journaled."""
    while True:
        if core.next_due() <= clock.now():
            await actor.submit(events.Tick())
        await clock.sleep(TICK_SECONDS)


async def send_heartbeats(
    core: ProviderCore, announcements: Announcements, clock: Clock, board: Board | None = None
) -> None:
    """Sends heartbeats with the free run slots. While the disk is full, no slot is free."""
    while True:
        await announcements.send_heartbeat(
            core.offered(has_disk_space=board is None or not board.has("disk"))
        )
        await clock.sleep(core.terms.limits.heartbeat_every)


async def renew_offer(core: ProviderCore, actor: EventSink, clock: Clock) -> None:
    """Publishes a new offer now, and again after a third of its lifetime.

    The interval varies by a fifth, so that the offers of many providers do not come at once.
    """
    while True:
        await actor.submit(events.OfferDue())
        await clock.sleep(core.terms.limits.offer_ttl / 3 * random.uniform(0.8, 1.2))


async def write_status(write: Callable[[], None], clock: Clock) -> None:
    """Writes the status file, for people and scripts that read it while the daemon is busy."""
    trouble = LogThrottle(log, clock)
    while True:
        try:
            write()
            trouble.recovered("the status file is written again")
        except OSError as error:
            # Not re-raised: the disk may have space again soon, and no decision depends on this
            # file.
            trouble.failed(f"the status file cannot be written: {error}")
        await clock.sleep(STATUS_SECONDS)


class ClaimSender:
    """Looks for final epochs that credit more than was claimed."""

    def __init__(
        self,
        core: ProviderCore,
        actor: EventSink,
        coordinators: Mapping[Address, Coordinator],
        jury_service: JuryService,
        client: ChainClient,
        contracts: Contracts,
        claim_least: Amount,
        clock: Clock,
    ) -> None:
        self._core, self._actor, self._coordinators, self._jury_service = (
            core,
            actor,
            coordinators,
            jury_service,
        )
        self._client, self._contracts, self._least, self._clock = (
            client,
            contracts,
            claim_least,
            clock,
        )
        self._seen: dict[Address, int] = {}
        self._final: dict[Address, Amount] = {}  # credit in the newest final epoch
        self._owed_since: dict[
            Address, float
        ] = {}  # when credit was first seen that nobody has claimed

    async def run(self) -> None:
        """Until cancelled; whoever is away is asked again."""
        pause = min(MONEY_SECONDS_MAX, max(1.0, self._core.terms.limits.epoch_every / 4))
        while True:
            for coordinator in self._coordinators.values():
                try:
                    await self.look(coordinator)
                except Unavailable as error:
                    log.info("claims wait: %s", error)
                except Refused as refused:
                    # No leaf yet is the usual case; a proof that leads elsewhere is the
                    # coordinator's fault and said loudly.
                    level = logging.ERROR if refused.code is Code.BAD_AMOUNT else logging.DEBUG
                    log.log(level, "no claim against 0x%s: %s", coordinator.address.hex(), refused)
            await self._clock.sleep(pause)

    async def look(self, coordinator: Coordinator) -> None:
        """One coordinator: what the chain has paid, then its newest final epoch."""
        address, provider = coordinator.address, self._core.terms.provider
        paid = await ask(self._client, self._contracts.epochs.claimed(address, provider))
        if paid > (self._core.claimed.get(address) or 0):
            await self._actor.submit(events.ClaimConfirmed(address, paid))
        view = await self._jury_service.newest_proof(coordinator, self._seen.get(address, 0))
        if view is not None:
            self._check_statement(address, view.epoch, view.leaf.final)
            self._seen[address], self._final[address] = view.epoch, view.leaf.final
        await self._claim_if_left(address, paid)

    async def _claim_if_left(self, coordinator: Address, paid: Amount) -> None:
        """The coordinator claims for everybody, cheaply; what it leaves lying is claimed here."""
        final, now = self._final.get(coordinator, Amount(0)), self._clock.now()
        if final < paid + self._least:
            self._owed_since.pop(coordinator, None)
            return
        limits = self._core.terms.limits
        if (
            now - self._owed_since.setdefault(coordinator, now)
            >= limits.epoch_every * limits.claim_every_epochs
        ):
            await self._actor.submit(
                events.ChainEpochFinal(coordinator, Sequence(self._seen[coordinator]), final)
            )
            self._owed_since[coordinator] = now

    def _check_statement(self, coordinator: Address, epoch: int, final: Amount) -> None:
        signed = self._core.statements.get(coordinator)
        if signed is not None and signed.message.epoch < epoch and signed.message.final > final:
            log.error(
                "0x%s signed a statement of %d in epoch %d, but epoch %d credits %d: challenge it",
                coordinator.hex(),
                signed.message.final,
                signed.message.epoch,
                epoch,
                final,
            )
