"""The state of a watcher, and how it sends and records one transaction."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from quorate_contracts.bindings.calls import Call, Query
from quorate_contracts.deploy import Contracts
from quorate_contracts.watch.watch_file import (
    SENT,
    Action,
    Waiting,
    Watched,
    WatchState,
    read_watch,
    write_watch,
)
from quorate_protocol.limits import Limits
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Amount, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.chain.client import ChainClient

T = TypeVar("T")
log = logging.getLogger(__name__)


class Send(Protocol):
    """Sends the watcher's transactions under a key that pays the gas and the bonds."""

    def address(self) -> Address:
        """Returns the account that sends."""

    async def prepare(self, bond: Amount) -> None:
        """Gets tokens for a bond ready, so that the next call is sooner in a block. As `send`."""

    async def send(self, purpose: str, call: Call, bond: Amount) -> None:
        """Sends a call once per purpose. The contract takes `bond` tokens from the sender.

        Raises Refused if the contract refuses it or the sender lacks money, Unavailable if the
        chain does not answer.
        """


@dataclass(frozen=True, slots=True)
class Deed:
    """One transaction to send. `missing` and `bond` are in token units."""

    coordinator: Address
    what: str  # the name of the contract's function
    epoch: int
    missing: Amount
    call: Call
    bond: Amount = Amount(0)


@dataclass(slots=True)
class Acting:
    """One account's watcher, as far as it keeps state and sends. `told` hears of each action."""

    account: Address
    client: ChainClient
    contracts: Contracts
    sender: Send
    clock: Clock
    home: Path
    told: Callable[[Action], None] = lambda action: None
    state: WatchState = field(init=False)

    def __post_init__(self) -> None:
        """Reads what an earlier run kept. Raises Refused if the file is damaged."""
        self.state = read_watch(self.home, self.account)

    @property
    def limits(self) -> Limits:
        """The limits of the deployment."""
        return self.contracts.deployment.constants()

    async def ask(self, query: Query[T]) -> T:
        """Returns the answer of a contract's view function at the newest block."""
        return query.decode(await self.client.call(query.to, query.data))

    async def chain_time(self) -> int:
        """Returns the time of the newest block."""
        return (await self.client.head()).time

    async def act(self, deed: Deed) -> None:
        """Sends one transaction and records it. Raises Refused and Unavailable as `Send` does."""
        at = UnixSeconds(int(self.clock.now()))
        action = Action(at, deed.coordinator, deed.what, deed.epoch, deed.missing)
        purpose = f"watch-{deed.what}-{deed.coordinator.hex()}-{deed.epoch}-{self._times(deed)}"
        try:
            await self.sender.send(purpose, deed.call, deed.bond)
        except Refused as refused:
            self._record(replace(action, outcome=f"refused: {refused.detail[:200]}"))
            raise
        self._record(action)

    def _times(self, deed: Deed) -> int:
        """How often it was done before, so that each time has its own purpose."""
        named = deed.coordinator, deed.what, SENT
        return sum(
            (item.coordinator, item.what, item.outcome) == named for item in self.state.actions
        )

    def _record(self, action: Action) -> None:
        last = next(reversed(self.state.actions), None)
        if last is not None and replace(last, at=action.at) == action:
            return  # the same refusal again
        self.state = self.state.with_action(action)
        write_watch(self.home, self.state)
        log.warning("watch: %s", action.line())
        self.told(action)

    def keep(self, changed: Watched) -> None:
        """Stores what is known of a coordinator, if it changed."""
        if self.state.of(changed.coordinator) != changed:
            self.state = self.state.with_watched(changed)
            write_watch(self.home, self.state)

    def has_waited(self, coordinator: Address, kind: str, number: int, seconds: float) -> bool:
        """Whether a fact was first seen at least so long ago. One number of each kind is kept."""
        now, kept = UnixSeconds(int(self.clock.now())), self.state.of(coordinator)
        found = next((item for item in kept.waiting if item.kind == kind), None)
        if found is not None and found.number == number:
            return now - found.since >= seconds
        others = tuple(item for item in kept.waiting if item.kind != kind)
        self.keep(replace(kept, waiting=(*others, Waiting(kind, number, now))))
        return False
