"""Follows the contracts' logs and submits what they report to the core.

For allocations it reads the present amount instead of the change, so a repeated note is harmless.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from quorate_contracts.bindings import events as logs
from quorate_contracts.deploy import Contracts
from quorate_coordinator.chain.queries import (
    RETRY_SECONDS,
    allocation_of,
    backers,
    everything,
    view,
)
from quorate_coordinator.core import events as ev
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.effects import Effect
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.rules.audit_draw import FOREVER
from quorate_protocol.units import Address, BlockNumber, Nonce, UnixSeconds
from quorate_runtime.actor.actor import Actor
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.follower import Checkpoint, Cursor, LogBatch, LogFollower, Reorganised

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ContractFollower:
    """One task of the service. It continues from the block in the core's state."""

    client: ChainClient
    contracts: Contracts
    coordinator: Address
    core: CoordinatorCore
    actor: Actor[ev.Event, Effect]
    clock: Clock
    witness: Callable[[float], None] = lambda seconds: None  # gets the time of each new block

    async def run(self) -> None:
        """Follows until cancelled."""
        first: BlockNumber | None = None  # it may have any age
        trail = tuple(
            Checkpoint(number, digest) for number, digest in self.core.state.blocks.items()
        )
        start = BlockNumber(self.contracts.deployment.start_block)
        addresses = tuple(self.contracts.deployment.names())
        depth = self.core.rules.limits.chain_depth
        follower = LogFollower(
            self.client,
            self.clock,
            addresses,
            cursor=Cursor(trail),
            start=start,
            depth=depth,
            poll_seconds=0.5,
        )
        async for item in follower.batches():
            if isinstance(item, Reorganised):
                await self._until_taken(
                    partial(self._reorganised, item), f"what stands after block {item.kept}"
                )
            else:
                first = item.head.number if first is None else first
                if item.head.number > first:
                    self.witness(item.head.time)
                await self._until_taken(
                    partial(self._batch, item), f"blocks {item.first} to {item.last.number}"
                )

    async def _until_taken(self, take: Callable[[], Awaitable[None]], what: str) -> None:
        """Calls `take` again while the chain node fails or answers nonsense. So no block is
        skipped, and the task does not end.
        """
        while True:
            try:
                await take()
            except (Refused, Unavailable) as error:
                log.warning("%s: waits for the chain: %s", what, error)
                await self.clock.sleep(
                    error.retry_after if isinstance(error, Unavailable) else RETRY_SECONDS
                )
            else:
                return

    async def _reorganised(self, notice: Reorganised) -> None:
        await self.actor.submit(ev.ChainReorganised(notice.kept or BlockNumber(0)))
        asked = await everything(
            self.client, self.contracts, self.coordinator, backers(self.core.state)
        )
        await self.actor.submit(asked)

    async def _batch(self, batch: LogBatch) -> None:
        notes: list[ev.ChainNote] = []
        changed: dict[Address, None] = {}
        for entry in batch.logs:
            event = self.contracts.event(entry.address, entry.topics, entry.data)
            if (
                isinstance(event, logs.Allocated | logs.ReleaseRequested | logs.Released)
                and event.coordinator == self.coordinator
            ):
                changed[event.client] = None
            note = note_of(event, self.coordinator, entry.block) if event is not None else None
            if isinstance(event, logs.KeyRotated):
                note = await self._rotation(event)
            if isinstance(event, logs.Unbonded):
                notes += await self._freed(event.account, batch.last.number)
            if note is not None:
                notes.append(note)
        at = await self._newest_deep(batch.last.number) if changed else batch.last.number
        for client in changed:
            notes.append(
                await allocation_of(self.client, self.contracts, client, self.coordinator, at)
            )
        await self.actor.submit(
            ev.ChainAdvanced(
                batch.last.number, batch.last.hash, UnixSeconds(batch.last.time), tuple(notes)
            )
        )

    async def _newest_deep(self, least: BlockNumber) -> BlockNumber:
        """Returns the number of the newest block that no reorganisation can replace.

        A node that is behind refuses a query at that number. At "latest" it would answer with a
        state older than the logs. An older block would not do, because nodes delete old states.
        """
        head = await self.client.head()
        return max(least, BlockNumber(head.number - self.core.rules.limits.chain_depth + 1))

    async def _freed(self, owner: Address, least: BlockNumber) -> list[ev.ChainSlotFreed]:
        """Returns the closed slots of an owner that the chain does not list now. The contract's
        event names none.
        """
        found, at = [], await self._newest_deep(least)
        for host_class, hosts in self.core.state.hosts.items():
            for slot in hosts.slots:
                if slot.owner == owner and slot.active_until != FOREVER:
                    place = self.contracts.stakes.slot(host_class, slot.index)
                    now = await view(self.client, place, at)
                    if (now.owner, now.from_block) != (owner, slot.active_from):
                        found.append(ev.ChainSlotFreed(host_class, slot.index))
        return found

    async def _rotation(self, event: logs.KeyRotated) -> ev.ChainKeyRotated:
        """Returns a key rotation with the time from which the key is valid. The contract's event
        does not have that time, so it queries the contract.
        """
        query = self.contracts.stakes.key_range(event.account, event.key)
        since, _ = query.decode(await self.client.call(query.to, query.data))
        return ev.ChainKeyRotated(event.account, event.key, since)


def note_of(event: logs.Event, coordinator: Address, block: BlockNumber) -> ev.ChainNote | None:
    """Returns what a contract event of a block means for this coordinator; None when it means
    nothing.
    """
    match event:
        case logs.Registered():
            return ev.ChainProviderRegistered(
                event.account, event.index, event.operator_key, event.payout, event.network
            )
        case logs.CoordinatorRegistered() | logs.ClientEnrolled():
            return ev.ChainAccountIndexed(event.account, event.index)
        case logs.PayoutChanged():
            return ev.ChainPayoutChanged(event.account, event.payout)
        case logs.NetworkChanged():
            return ev.ChainNetworkChanged(event.account, event.network)
        case logs.Exited():
            return ev.ChainSlotsClosed(event.account, BlockNumber(block + 1))
        case logs.Fined() if event.out_block:
            return ev.ChainSlotsClosed(event.account, event.out_block)
        case logs.SlotOpened():
            return ev.ChainSlotOpened(
                event.host_class, event.place, event.account, event.from_block
            )
        case logs.SlotClosed():
            return ev.ChainSlotClosed(event.host_class, event.place, event.until_block)
        case logs.Slashed():
            return ev.ChainProviderSlashed(event.account, event.amount, event.out_block)
        case logs.EpochPosted() if event.coordinator == coordinator:
            return ev.ChainEpochPosted(event.epoch, event.root)
        case logs.CaseOpened():
            named = tuple(item for item in event.assignment_hashes if item != bytes(32))
            others = tuple(item for item in event.contradictions if item != bytes(32))
            return ev.ChainCaseOpened(Nonce(event.case_id), event.accused, named, others)
        case logs.JuryDrawn():
            return ev.ChainJuryDrawn(Nonce(event.case_id), event.jurors)
        case logs.Decided():
            return ev.ChainCaseDecided(Nonce(event.case_id), event.convicted, event.slashed)
        case _:
            return None
