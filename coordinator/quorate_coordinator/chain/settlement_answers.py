"""Answers announced settlements of jobs that this coordinator has paid (PROTOCOL 6.24).

Without an answer the provider would be paid twice, and this coordinator would bear it. The archive
has the entries of every provider's log of credits, from which an answer is proven.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

from quorate_contracts.bindings.settlement import Opening, Share, ShownCredit
from quorate_contracts.bindings.settlement_events import SettlementAnswered, SettlementOpened
from quorate_contracts.deploy import Contracts
from quorate_coordinator.chain.queries import LogCursor
from quorate_coordinator.chain.registration import ask
from quorate_coordinator.core.effects import CreditEntry
from quorate_coordinator.core.entities import EpochRecord
from quorate_coordinator.core.state import State
from quorate_protocol.crypto.merkle import FullLog, Inclusion, Log, credit_entry
from quorate_protocol.limits import USD, Limits
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules import epoch_tree
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender, Unfunded
from quorate_runtime.process.log_throttle import LogThrottle

SEND_SECONDS = 60.0
PAUSE_SECONDS_MAX = 60.0
LOOK_BACK_BLOCKS = 20_000  # an announcement waits for hours
LEAST = Amount(USD // 100)  # of pay that is not worth the gas of an answer

log = logging.getLogger(__name__)


Key = tuple[Hash32, int, tuple[tuple[Address, int], ...]]
"""What stays the same of an announcement: job, time, and its executions."""


class KnowsCredits(Protocol):
    """The archive, as far as it has the logs of credits."""

    def credit_of(self, assignment_id: Hash32) -> CreditEntry | None:
        """Returns the newest entry of an assignment."""

    def credits_of(self, owner: Address) -> list[CreditEntry]:
        """Returns a provider's log, in order."""


@dataclass(slots=True)
class SettlementAnswers:
    """One task of the service."""

    client: ChainClient
    contracts: Contracts
    coordinator: Address
    state: State
    sender: Sender
    limits: Limits
    clock: Clock
    archive: KnowsCredits
    _open: dict[Key, Opening] = field(default_factory=dict)
    _refused: set[tuple[Key, int]] = field(default_factory=set)  # shares that have no answer
    _logs: LogCursor = field(init=False)
    _trouble: LogThrottle = field(init=False)

    def __post_init__(self) -> None:
        """Begins to read logs as far back as an announcement may be."""
        self._trouble = LogThrottle(log, self.clock)
        where = self.contracts.settlement.address
        depth = self.limits.chain_depth
        self._logs = LogCursor(
            self.client, self.contracts, where, self.coordinator, LOOK_BACK_BLOCKS, depth
        )

    async def run(self) -> None:
        """Looks until cancelled."""
        pause = min(PAUSE_SECONDS_MAX, max(1.0, self.limits.settle_response / 10))
        while True:
            try:
                await self.look()
                self._trouble.recovered("announced settlements are answered again")
            except (Refused, Unavailable) as error:
                # Not re-raised: the chain is away, or its node has no logs that far back.
                self._trouble.failed(f"announced settlements wait: {error}")
            await self.clock.sleep(pause)

    async def look(self) -> None:
        """Answers every announcement of a job that a posted epoch pays."""
        for event in await self._logs.read():
            match event:
                case SettlementOpened(_, _, values) | SettlementAnswered(opening=values):
                    opening = Opening.of(values)
                    self._open[key_of(opening)] = opening
                case _:
                    pass
        head = await self.client.head()
        for key, opening in list(self._open.items()):
            if head.time > opening.ready_at + self.limits.settle_response:
                del self._open[key]
                self._refused = {each for each in self._refused if each[0] != key}
            else:
                await self._answer_first(key, opening)

    async def _answer_first(self, key: Key, opening: Opening) -> None:
        """Answers one share. That changes the announcement, so the next look reads its event, and
        answers another one.
        """
        for number, share in enumerate(opening.shares):
            if share.assignment_id == ZERO_HASH or (key, number) in self._refused:
                continue
            try:
                if await self._answer(opening, number, share):
                    return
            except Refused as refused:
                # Not re-raised: it was outvoted, executed or answered, or a leaf has no credit
                # left to show. The others are answered all the same.
                self._refused.add((key, number))
                told = f"0x{opening.job_id.hex()}, execution {share.index}"
                log.warning("the settlement of job %s is not answered: %s", told, refused)

    async def _answer(self, opening: Opening, number: int, share: Share) -> bool:
        """Answers one share if an epoch pays it. Returns whether it was answered now."""
        entry = await asyncio.to_thread(self.archive.credit_of, share.assignment_id)
        if entry is None or min(entry.pay, share.amount) < LEAST or entry.owner != share.provider:
            return False
        shown = await self._shown(entry)
        if shown is None:
            return False  # no posted epoch has it yet
        call = self.contracts.settlement.answer(opening, number, shown)
        try:
            await self.client.call(call.to, call.data)
            purpose = f"settlement-{share.assignment_id.hex()}-{opening.ready_at}"
            await self.sender.send(
                purpose, call.to, call.data, gas=call.gas, deadline_seconds=SEND_SECONDS
            )
        except Unfunded as error:
            log.error("the posting key needs coins to answer a settlement: %s", error)
            return False
        log.warning(
            "answered a settlement: epoch %d pays 0x%s for job 0x%s",
            shown.epoch,
            share.provider.hex(),
            opening.job_id.hex(),
        )
        return True

    async def _shown(self, entry: CreditEntry) -> ShownCredit | None:
        """Returns the proof of an entry in the newest epoch that has it and is not void. Raises
        Refused if the archive lacks entries, as after a restore from an old copy.
        """
        entries = await asyncio.to_thread(self.archive.credits_of, entry.owner)
        if [each.place for each in entries] != list(range(len(entries))):
            owner = entry.owner.hex()
            raise Refused(Code.UNKNOWN, f"the archive lacks entries of the credits of 0x{owner}")
        for record in sorted(self.state.epochs.values(), key=lambda it: -it.number):
            leaf = next((leaf for leaf in record.leaves if leaf.account == entry.owner), None)
            if leaf is None or not record.is_posted or not await self._is_valid(record):
                continue
            found = await asyncio.to_thread(prove, entries, entry.place, leaf.receipts_root)
            if found is not None:
                proof = epoch_tree.prove(record.leaves, entry.owner)
                return ShownCredit(record.number, *proof, entry.pay, found)
        return None

    async def _is_valid(self, record: EpochRecord) -> bool:
        query = self.contracts.epochs.epoch(self.coordinator, record.number)
        return (await ask(self.client, query)).root == record.root


def key_of(opening: Opening) -> Key:
    """Returns what no answer changes of an announcement."""
    shares = tuple((share.provider, share.index) for share in opening.shares)
    return opening.job_id, opening.ready_at, shares


def prove(entries: list[CreditEntry], place: int, root: Hash32) -> Inclusion | None:
    """Returns the proof of an entry in the log with this root, which may be shorter than `entries`.

    None if the log with this root does not have the entry.
    """
    hashes = [credit_entry(each.assignment_id, each.pay) for each in entries]
    grown = Log()
    for count, entry in enumerate(hashes, 1):
        grown = grown.append(entry)
        if count > place and grown.root() == root:
            return FullLog(hashes[:count]).prove(place)
    return None
