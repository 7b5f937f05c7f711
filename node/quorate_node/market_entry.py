"""Puts the provider on offer: registers and stakes it, then connects to its coordinators."""

import asyncio
import logging
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quorate_node import periodic
from quorate_node.assembly import Parts
from quorate_node.base.config import Config
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.core.debts import Debt
from quorate_node.market.coordinator_client import Coordinator
from quorate_node.market.coordinator_dialer import Dialer
from quorate_node.owner import stake_classes
from quorate_node.owner.key_rotation import Rotation
from quorate_node.owner.leaving import is_leaving
from quorate_node.owner.registration import (
    MARKER,
    RegistrationState,
    agree_on_network,
    check_coordinator,
    is_staked,
    missing,
    network_url,
    register,
    registration_state,
    slots_to_stake,
)
from quorate_node.owner.senders import owner_sender
from quorate_node.owner.stake_release import StakeRelease
from quorate_protocol.messages import frames
from quorate_protocol.messages.classes import CPUS
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Seconds, usd
from quorate_runtime.process.health import Board
from quorate_runtime.process.systemd_notify import Notifier

# Sends each coordinator, at each new connection, the newest that it signed for this provider.
#
# A coordinator knows that, unless its operator restored an old backup of its journal, or runs a
# second coordinator with the same keys. Then its own signature shows that its journal is behind,
# before it signs what contradicts it. It stops, and its operator looks for the newer journal,
# which has this provider's pay.

POLL_SECONDS = 0.5
SEND_SECONDS = Seconds(10)

log = logging.getLogger(__name__)
AgreeToStake = Callable[[str], Awaitable[bool]]
"""Shows a question to the owner, and returns the answer."""


async def agree_to_all(_question: str) -> bool:
    return True


@dataclass(slots=True)
class SignedEcho:
    """The task of the daemon that sends the newest voucher and the newest Assignment back."""

    debt: Callable[[Address], Debt]
    dialers: Mapping[Address, Dialer]
    clock: Clock
    # coordinator -> number of the connection at which they were sent
    _sent_at: dict[Address, int] = field(default_factory=dict)

    async def run(self) -> None:
        while True:
            for address, dialer in self.dialers.items():
                if dialer.connected() and self._sent_at.get(address) != dialer.connections:
                    await self._send(address, dialer)
            await self.clock.sleep(POLL_SECONDS)

    async def _send(self, coordinator: Address, dialer: Dialer) -> None:
        connection = dialer.connections
        for frame in shown(self.debt(coordinator)):
            try:
                await dialer.request(coordinator, frames.encode(frame), SEND_SECONDS)
            except Unavailable as error:
                # Not re-raised: the next round tries again.
                log.debug("0x%s did not get what it signed: %s", coordinator.hex(), error)
                return
            except Refused as refused:
                # Not re-raised: it is kept, and the chain takes a voucher.
                log.warning("0x%s refused what it signed: %s", coordinator.hex(), refused)
        self._sent_at[coordinator] = connection


def shown(debt: Debt) -> tuple[frames.Frame, ...]:
    voucher, assignment = debt.voucher, debt.assignment
    return (
        *([frames.VoucherSent(voucher)] if voucher else []),
        *([frames.AssignmentShown(assignment)] if assignment else []),
    )


RETRY_SECONDS = 5.0
PROBATION_SECONDS = 30.0  # between two looks whether the pay suffices for a stake slot
CONNECT_SECONDS, LOOK_SECONDS = 2.0, 0.05


@dataclass(frozen=True, slots=True)
class MarketEntry:
    """Registers and connects the provider at each start. `is_on_offer` is set when all is done."""

    parts: Parts
    config: Config
    keys: ProviderKeys
    clock: Clock
    board: Board
    notifier: Notifier
    url: str
    is_on_offer: asyncio.Event
    group: asyncio.TaskGroup
    agree: AgreeToStake
    _staking_later: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self) -> None:
        """While the owner leaves it stakes nothing. If registered before it connects first: it must
        reach the coordinators of its leases even without a chain node.
        """
        parts = self.parts
        was_registered = bool(_read(self._marker))
        may_stake = not is_leaving(self.config.home)
        if may_stake and not was_registered:
            await self._register()
        echo = SignedEcho(parts.core.debt, parts.dialers, self.clock)
        self.group.create_task(echo.run(), name="echo")
        is_any_connected = asyncio.Event()
        self.group.create_task(self._connect(is_any_connected), name="coordinators")
        await is_any_connected.wait()
        await self._until_connected()
        if may_stake and was_registered:
            await self._register()
        if may_stake:
            self.is_on_offer.set()
            self.notifier.status("on offer")
            takes_none = parts.core.takes_no_work
            log.info(
                "not on offer now: takes no jobs" if takes_none else "on offer: waiting for jobs"
            )
        else:
            log.info("leaving: finishes its jobs, and takes no more (`quorate node leave`)")
        await periodic.look_at_store(parts.core, parts.actor, parts.store.available_bytes)
        self._start_offering()

    def _start_offering(self) -> None:
        parts, clock = self.parts, self.clock
        rotation = Rotation(
            core=parts.core,
            ring=parts.operator_keys,
            keys=self.keys,
            client=parts.client,
            contracts=parts.contracts,
            announcements=parts.announcements,
            coordinators=parts.coordinators,
            board=self.board,
            config=self.config,
            clock=clock,
        )
        release = StakeRelease(
            core=parts.core,
            client=parts.client,
            contracts=parts.contracts,
            owner=self.keys.owner,
            home=self.config.home,
            cpu=(CPUS.id(), self.config.cpu_slots),
            clock=clock,
        )
        heartbeats = periodic.send_heartbeats(parts.core, parts.announcements, clock, self.board)
        offers = periodic.renew_offer(parts.core, parts.actor, parts.announcements, clock)
        room = parts.store.available_bytes
        store = periodic.watch_store(parts.core, parts.actor, room, clock)
        self.group.create_task(heartbeats, name="heartbeats")
        self.group.create_task(offers, name="offers")
        self.group.create_task(store, name="store")
        self.group.create_task(rotation.run(), name="rotation")
        self.group.create_task(release.run(), name="stake release")

    # --------------------------------------------------------------------------------- coordinators

    async def _until_connected(self) -> None:
        """The first offer is then taken at once, instead of seconds later."""
        limit = self.clock.now() + CONNECT_SECONDS
        while not self.parts.transports() and self.clock.now() < limit:
            await self.clock.sleep(LOOK_SECONDS)

    async def _connect(self, is_any_connected: asyncio.Event) -> None:
        """One that is away or unregistered keeps the provider from no other."""
        unchecked = dict(self.parts.coordinators)
        while unchecked:
            for address, coordinator in list(unchecked.items()):
                try:
                    await self._check(coordinator)
                except (Unavailable, Refused) as error:
                    # Not re-raised: the chain may come back, or the coordinator may register.
                    # Until then the provider signs nothing for this coordinator.
                    log.warning("coordinator %s is not served: %s", coordinator.url, error)
                    continue
                del unchecked[address]
                dialer = self.parts.dialers[address]
                self.group.create_task(dialer.run(), name=f"peer {coordinator.url}")
                is_any_connected.set()
            if unchecked:
                await self.clock.sleep(RETRY_SECONDS)

    async def _check(self, coordinator: Coordinator) -> None:
        """Once a statement key; a file lets a restart do without a chain node."""
        folder, key = self.config.path("coordinators"), coordinator.info.statement_key.hex()
        marker = folder / f"{coordinator.address.hex()}.checked"
        if _read(marker) == key:
            return
        await check_coordinator(self.parts.client, self.parts.contracts, coordinator.info)
        marker.write_text(key)

    # --------------------------------------------------------------------------------- registration

    @property
    def _marker(self) -> Path:
        return self.config.path(MARKER)

    async def _register(self) -> None:
        """Retries until the provider is registered and staked, and says what is missing."""
        told: tuple[str, ...] = ()
        while (problem := await self._try_to_register()) is not None:
            if problem != told:
                text = "; ".join(problem)
                self.board.put("stake", text)
                self.notifier.status(f"not on offer yet: {text}")
                for line in problem:
                    log.warning("not on offer yet: %s", line)
                if self.config.is_devnet and self.keys.owner is not None:
                    folder = shlex.quote(str(self.config.home))
                    log.warning("on a devnet: quorate devnet fund %s", folder)
                told = problem
            await self.clock.sleep(RETRY_SECONDS)

    async def _try_to_register(self) -> tuple[str, ...] | None:
        """Returns None if the provider is registered and staked, else what is missing."""
        wanted: Mapping[Hash32, int] = {
            slot.pool.id(): int(slot.count) for slot in self.parts.terms.slots
        }
        classes = " ".join(f"{pool.hex()} {count}" for pool, count in wanted.items())
        mark = (
            f"{self.parts.contracts.deployment.stakes.hex()} {self.keys.operator.address.hex()} "
            f"{classes}"
        )
        client, contracts = self.parts.client, self.parts.contracts
        try:
            now = await slots_to_stake(client, contracts, self.keys, self.config, wanted)
            found = await registration_state(client, contracts, self.keys, now)
        except Unavailable as error:
            # Not re-raised: a provider that was registered with the same slots most likely still
            # is. Any other provider tries again.
            return None if _read(self._marker) == mark else (str(error),)
        except Refused as error:
            return (str(error),)  # not re-raised: the caller shows it and tries again
        await self._ask_before_staking(found)
        try:
            lacking, registered = await self._look_and_stake(now)
        except (Unavailable, Refused) as error:
            return (str(error),)  # not re-raised: the caller shows it and tries again
        if lacking:
            return lacking
        if not now:
            self._stake_later()
            return None
        names = ", ".join(pool.hex()[:16] for pool in wanted)
        log.info("%s in pool %s", registered, names)
        self._marker.write_text(mark)
        stake_classes.remember(self.config.home, wanted)
        self.board.put("stake")
        return None

    async def _ask_before_staking(self, found: RegistrationState) -> None:
        """Stake moves only as far as the owner agreed. Raises Refused, which ends the daemon."""
        config = self.config
        is_agreed = config.probation or found.stake_after <= config.stake_agreed
        if not found.short or found.has_left or is_agreed or self.keys.owner is None:
            return
        names = {slot.pool.id(): str(slot.pool) for slot in self.parts.terms.slots}
        slots = ", ".join(f"{count} x {names[pool]}" for pool, count in found.short.items())
        question = (
            f"Stake {usd(found.stake_missing)} USD of 0x{self.keys.account.hex()} in slots of the "
            f"pools {slots}?"
        )
        if not await self.agree(question):
            flag = usd(found.stake_after).removesuffix(".00")
            raise Refused(
                Code.BAD_AMOUNT,
                f"nothing was staked. {question} Agree with `quorate node up --yes`, or for "
                f"services with `quorate node init --stake {flag}`",
            )

    def _stake_later(self) -> None:
        """Goes on offer on probation, and stakes once the owner's account holds enough."""
        self.board.put("stake")
        if self._staking_later:
            return
        self._staking_later.append(self.group.create_task(self._stake_earned(), name="probation"))
        log.info(
            "on probation: takes unverified jobs in one run slot; once they have paid for a "
            "stake slot, it is opened"
        )

    async def _stake_earned(self) -> None:
        while not is_staked(self.config) and not is_leaving(self.config.home):
            await self.clock.sleep(PROBATION_SECONDS)
            problem = await self._try_to_register()
            if problem is not None:
                log.warning("the first stake slot is not open yet: %s", "; ".join(problem))

    async def _look_and_stake(self, wanted: Mapping[Hash32, int]) -> tuple[tuple[str, ...], str]:
        """Returns (what is missing, how it is registered). Acts only with the owner's key."""
        client, contracts, keys = self.parts.client, self.parts.contracts, self.keys
        fees = await client.fees()
        found = await registration_state(client, contracts, keys, wanted)
        lacks = missing(found, keys, fees.base_fee_wei + fees.tip_wei)
        if any(item.is_blocking for item in lacks):
            return tuple(f"{item.what}: {item.remedy}" for item in lacks), ""
        was_ready = found.is_registered and not found.short
        observed = await self._observed()
        if self.parts.rented.egress is not None:
            self.parts.rented.egress.own.see(self.config.public_url, observed)
        if keys.owner is not None:
            url = network_url(self.config.public_url, observed, self.url)
            may_move = bool(self.config.public_url) or agree_on_network(
                observed, len(self.parts.coordinators)
            )
            home, deployment = self.config.home, contracts.deployment
            with owner_sender(home, client, keys.owner, self.clock, deployment) as sender:
                found = await register(client, contracts, keys, sender, wanted, url, may_move)
        return (), registered_text(was_ready, found.open_slots)

    async def _observed(self) -> list[str]:
        """As the coordinators that answer see this machine."""
        if self.config.public_url:
            return []
        seen = []
        for coordinator in self.parts.coordinators.values():
            try:
                seen.append(await coordinator.observed_address())
            except (Unavailable, Refused) as error:
                # Not re-raised: another coordinator may tell.
                log.info(
                    "%s does not say from where it sees this provider: %s", coordinator.url, error
                )
        return seen


def registered_text(was_ready: bool, open_slots: int) -> str:
    """`was_ready`: already before this start."""
    noun = "stake slot" if open_slots == 1 else "stake slots"
    return f"{'already registered' if was_ready else 'registered'}, {open_slots} {noun} open"


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
