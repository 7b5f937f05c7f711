"""Answers the demands of `Challenges`: shows leaves that accounts ask for on chain (PROTOCOL §6).

A demand that nobody answers in time voids an epoch and costs a part of the bond. Each answer brings
the demander's bond to this coordinator. Nothing is stored: the chain knows which demands are open.
"""

import logging
from dataclasses import dataclass, field

from quorate_contracts.bindings.events import LeafDemanded
from quorate_contracts.deploy import Contracts
from quorate_coordinator.chain.queries import LogCursor
from quorate_coordinator.chain.registration import ask
from quorate_coordinator.core.entities import EpochRecord
from quorate_coordinator.core.state import State
from quorate_protocol.limits import Limits
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.rules import epoch_tree
from quorate_protocol.units import Address, Amount
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender, Unfunded
from quorate_runtime.process.log_throttle import LogThrottle

SEND_SECONDS = 60.0
PAUSE_SECONDS_MAX = 60.0
LOOK_BACK_BLOCKS = 20_000  # a demand is open for hours

log = logging.getLogger(__name__)


@dataclass(slots=True)
class DemandAnswers:
    """One task of the service."""

    client: ChainClient
    contracts: Contracts
    coordinator: Address
    state: State
    sender: Sender
    limits: Limits
    clock: Clock
    _open: dict[tuple[int, Address], None] = field(default_factory=dict)
    _logs: LogCursor = field(init=False)
    _trouble: LogThrottle = field(init=False)
    _unpaid: LogThrottle = field(init=False)

    def __post_init__(self) -> None:
        """Begins to read logs as far back as a demand may be."""
        self._trouble, self._unpaid = (LogThrottle(log, self.clock) for _ in range(2))
        where, depth = self.contracts.challenges.address, self.limits.chain_depth
        self._logs = LogCursor(
            self.client, self.contracts, where, self.coordinator, LOOK_BACK_BLOCKS, depth
        )

    async def run(self) -> None:
        """Looks until cancelled."""
        pause = min(PAUSE_SECONDS_MAX, max(1.0, self.limits.challenge_response / 10))
        while True:
            try:
                await self.look()
                self._trouble.recovered("demands on chain are answered again")
            except (Refused, Unavailable) as error:
                # Not re-raised: the chain is away, or the answer came first from another sender.
                self._trouble.failed(f"demands on chain wait: {error}")
            await self.clock.sleep(pause)

    async def look(self) -> None:
        """Answers what is open, and ends a demand for an epoch that is final."""
        head = await ask(self.client, self.contracts.epochs.head(self.coordinator))
        if head.demands:
            await self._read_logs()
        for number, account in list(self._open):
            await self._answer(number, account)
        await self._end_epoch_demand()

    async def _read_logs(self) -> None:
        for event in await self._logs.read():
            if isinstance(event, LeafDemanded):
                self._open[event.epoch, event.account] = None

    async def _answer(self, number: int, account: Address) -> None:
        challenges = self.contracts.challenges
        found = await ask(self.client, challenges.demand(self.coordinator, number, account))
        if not found.answer_by:
            del self._open[number, account]
            return
        record = await self._paying(number, account, found.due)
        if record is None:
            told = f"epoch {number}: 0x{account.hex()} demands {found.due}, and no epoch pays it"
            self._unpaid.failed(told)
            return
        leaf, proof = epoch_tree.prove(record.leaves, account)
        parts = self.coordinator, number, account, record.number
        call = challenges.answer(*parts, leaf, proof)
        try:
            await self.client.call(call.to, call.data)
            purpose = f"answer-{number}-{account.hex()}-{found.answer_by}"
            await self.sender.send(
                purpose, call.to, call.data, gas=call.gas, deadline_seconds=SEND_SECONDS
            )
        except Unfunded as error:
            log.error("the posting key needs coins to answer a demand: %s", error)
            return
        log.warning("answered 0x%s, who demanded its leaf of epoch %d", account.hex(), number)
        del self._open[number, account]

    async def _paying(self, number: int, account: Address, due: Amount) -> EpochRecord | None:
        """Returns the oldest epoch from `number` on that credits so much and is not void."""
        for record in sorted(self.state.epochs.values(), key=lambda record: record.number):
            pays = any(leaf.account == account and leaf.final >= due for leaf in record.leaves)
            if record.number >= number and record.is_posted and pays:
                query = self.contracts.epochs.epoch(self.coordinator, record.number)
                if (await ask(self.client, query)).root == record.root:
                    return record
        return None

    async def _end_epoch_demand(self) -> None:
        """Takes the bond of a demand for an epoch that is final. It frees this one's own bond."""
        challenges = self.contracts.challenges
        found = await ask(self.client, challenges.epoch_demand(self.coordinator))
        if not found.post_by:
            return
        call = challenges.close_epoch_demand(self.coordinator)
        try:
            await self.client.call(call.to, call.data)
        except Refused:
            return  # not re-raised: the epoch is not final yet
        purpose = f"epoch-demand-{found.epoch}-{found.post_by}"
        await self.sender.send(
            purpose, call.to, call.data, gas=call.gas, deadline_seconds=SEND_SECONDS
        )
