"""Follows the contracts' logs and submits what they report to the core.

For money it reads the present tab or balance instead of the change, so a repeated note is harmless.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from quorate_contracts.calls import view
from quorate_contracts.court_facts import Outcome, case_id
from quorate_contracts.deploy import Contracts
from quorate_contracts.encodings import read_pair
from quorate_contracts.events import Event
from quorate_contracts.generated import court, escrow, stakes
from quorate_coordinator.chain.queries import RETRY_SECONDS, everything, tabs_of
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.stake_slot import FOREVER
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, BlockNumber, UnixSeconds
from quorate_runtime.actor.actor import Actor
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.follower import Checkpoint, Cursor, LogBatch, LogFollower, Reorganised

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ContractFollower:
    """Continues from the block in the core's state."""

    client: ChainClient
    contracts: Contracts
    coordinator: Address
    core: CoordinatorCore
    actor: Actor[ev.Event, Effect]
    clock: Clock
    witness: Callable[[float], None] = lambda seconds: None  # gets the time of each new block

    async def run(self) -> None:
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
        """Tries again while the chain node fails or answers nonsense: no block is skipped."""
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
        parts = self.client, self.contracts, self.coordinator
        await self.actor.submit(await everything(*parts, self.core.state))

    async def _batch(self, batch: LogBatch) -> None:
        notes: list[ev.ChainNote] = []
        moved = Moved()
        for entry in batch.logs:
            event = self.contracts.event(entry.address, entry.topics, entry.data)
            if event is None:
                continue
            moved.add(event, self.coordinator)
            note = note_of(event, entry.block)
            if isinstance(event, stakes.KeyRotated):
                note = await self._rotation(event)
            if isinstance(event, stakes.Unbonded):
                notes += await self._freed(event.account, batch.last.number)
            if note is not None:
                notes.append(note)
        if moved.is_any:
            notes += await self._money(moved, await self._newest_deep(batch.last.number))
        await self.actor.submit(
            ev.ChainAdvanced(
                batch.last.number, batch.last.hash, UnixSeconds(batch.last.time), tuple(notes)
            )
        )

    async def _money(self, moved: "Moved", at: BlockNumber) -> list[ev.ChainNote]:
        payees = set(moved.payees)
        if moved.is_payroll:  # its event does not name whom it paid
            payees |= self.core.state.payees.keys()
        parts = self.client, self.contracts, self.coordinator
        return await tabs_of(*parts, sorted(moved.payers), sorted(payees), at)

    async def _newest_deep(self, least: BlockNumber) -> BlockNumber:
        """The newest block that no reorganisation can replace.

        A node that is behind refuses a query at that number. At "latest" it would answer with a
        state older than the logs. An older block would not do, because nodes delete old states.
        """
        head = await self.client.head()
        return max(least, BlockNumber(head.number - self.core.rules.limits.chain_depth + 1))

    async def _freed(self, owner: Address, least: BlockNumber) -> list[ev.ChainSlotFreed]:
        found, at = [], await self._newest_deep(least)
        for pool, hosts in self.core.state.pool_slots.items():
            for slot in hosts.slots:
                if slot.owner == owner and slot.active_until != FOREVER:
                    place = self.contracts.stakes.slot(pool, slot.index)
                    now = await view(self.client, place, at)
                    if (now.owner, now.from_block) != (owner, slot.active_from):
                        found.append(ev.ChainSlotFreed(pool, slot.index))
        return found

    async def _rotation(self, event: stakes.KeyRotated) -> ev.ChainKeyRotated:
        """The contract's event does not have the time from which the key is valid."""
        since, _ = await view(
            self.client, self.contracts.stakes.key_range(event.account, event.key)
        )
        return ev.ChainKeyRotated(event.account, event.key, UnixSeconds(since))


@dataclass(slots=True)
class Moved:
    """What a batch of logs says of this coordinator's money."""

    payers: set[Address] = field(default_factory=set)  # clients whose tab for it changed
    payees: set[Address] = field(default_factory=set)  # accounts whose tab from it changed
    is_payroll: bool = False
    is_balance: bool = False

    @property
    def is_any(self) -> bool:
        return bool(self.payers or self.payees or self.is_payroll or self.is_balance)

    def add(self, event: Event, me: Address) -> None:
        match event:
            case (
                escrow.Locked(payer, payee)
                | escrow.Redeemed(payer, payee)
                | escrow.GivenBack(payer, payee)
                | escrow.Closing(payer, payee)
                | escrow.Closed(payer, payee)
            ):
                if payee == me:
                    self.payers.add(payer)
                if payer == me:
                    self.payees.add(payee)
            case escrow.Payroll(payer):
                self.is_payroll |= payer == me
            case escrow.Deposited(account) | escrow.Withdrawn(account) | escrow.LimitsSet(account):
                self.is_balance |= account == me
            case escrow.Paid(sender, receiver):
                self.is_balance |= me in (sender, receiver)
            case escrow.PaidMany(sender, pays):
                self.is_balance |= me in (sender, *(read_pair(word)[0] for word in pays))
            case _:
                pass


def note_of(event: Event, block: BlockNumber) -> ev.ChainNote | None:
    """None when the event means nothing here, or when the chain must be asked."""
    match event:
        case stakes.Registered():
            return ev.ChainProviderRegistered(
                event.account, event.operator_key, event.payout, event.network
            )
        case stakes.PayoutChanged():
            return ev.ChainPayoutChanged(event.account, event.payout)
        case stakes.NetworkChanged():
            return ev.ChainNetworkChanged(event.account, event.network)
        case stakes.Exited():
            return ev.ChainSlotsClosed(event.account, BlockNumber(block + 1))
        case stakes.Burned() if event.out_block:
            return ev.ChainSlotsClosed(event.account, event.out_block)
        case stakes.SlotOpened():
            return ev.ChainSlotOpened(event.pool, event.place, event.account, event.from_block)
        case stakes.SlotClosed():
            return ev.ChainSlotClosed(event.pool, event.place, event.until_block)
        case court.CaseOpened(execution, accused, filing):
            return ev.ChainCaseOpened(execution, filing.contradiction, accused, case_id(filing))
        case court.JuryDrawn(execution, jury):
            return ev.ChainJuryDrawn(execution, jury)
        case court.Decided(execution, outcome, taken):
            return ev.ChainCaseDecided(execution, outcome == Outcome.CONVICTED, taken)
        case _:
            return None
