"""The simulated chain's blocks, and how a reorganisation replaces the newest of them.

A replaced block's transactions come again, each sender's in its order, in any of the new blocks or
later. Only blocks of less than the confirmed depth are replaced, and no program reads those.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from quorate_coordinator.core.model import events as ev
from quorate_node.core import events as node_events
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import Limits
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import BlockNumber, UnixSeconds
from sim.process import Again, Finish
from sim.schedule import Schedule

LATE_SECONDS = 30
REVERT_CHANCE = 0.25  # chance that a coordinator's transaction is first refused for good
MOODY = ("payroll-", "redeem-", "locks-", "case-")


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one account did."""

    sender: str
    act: Callable[[], None]  # raises Refused if the chain does not take it
    refused: Callable[[Refused], None]  # called if it cannot come again
    may_wait: bool = True  # whether it may come again later


@dataclass(slots=True)
class Block:
    """What one block changed, as programs read it."""

    time: UnixSeconds
    # Copies of all balances before it, and the blocks of earlier purposes.
    before: tuple[object, dict[str, int]]
    notes: list[ev.ChainNote] = field(default_factory=list)  # for coordinators
    news: list[node_events.Event] = field(default_factory=list)  # for providers
    transactions: list[Transaction] = field(default_factory=list)


def spread(gone: list[list[Transaction]], blocks: int, random: Random) -> list[list[Transaction]]:
    """Puts the transactions of replaced blocks into these blocks or later ones, in any order of
    senders; late ones into the last place.
    """
    found: list[list[Transaction]] = [[] for _ in range(blocks)]
    first: dict[str, int] = {}
    for place, transactions in enumerate(gone):
        for each in transactions:
            least = max(place, first.get(each.sender, 0))
            first[each.sender] = random.randrange(least, blocks)
            found[first[each.sender] if each.may_wait else place].append(each)
    return found


class Blocks:
    """Blocks, one a second, and who has read them. A subclass keeps the balances."""

    def __init__(self, schedule: Schedule, random: Random, limits: Limits) -> None:
        self.schedule, self.random, self.limits = schedule, random, limits
        self.blocks: list[Block] = [Block(schedule.now, (None, {}))]
        self.is_moody = self.has_jams = True
        self.replaced = 0  # blocks so far
        self._pending = Block(schedule.now, (None, {}))
        self._replaying: UnixSeconds | None = None  # time of the block that replaces another
        self._seen: dict[str, int] = {}  # reader -> news it has read
        self._news: list[node_events.Event] = []  # of blocks that nothing can replace
        self._news_until = 0
        self._mined: dict[str, int] = {}  # purpose -> number of its block
        self._refused: dict[str, Refused] = {}

    def copies(self) -> object:
        """Copies of all balances."""
        raise NotImplementedError

    def take_back(self, copies: object) -> None:
        """Makes these copies the balances. They are used once."""
        raise NotImplementedError

    def advance(self) -> None:
        """Does what is due at a new block's time."""
        raise NotImplementedError

    def check(self) -> None:
        """Asserts that the balances hold every invariant."""
        raise NotImplementedError

    @property
    def height(self) -> int:
        """Number of the newest block."""
        return len(self.blocks)

    @property
    def confirmed(self) -> int:
        """Number of the newest block that nothing can replace. Programs read no later one."""
        return max(1, self.height - self.limits.chain_depth + 1)

    @property
    def now(self) -> UnixSeconds:
        """Time of the block that is being made."""
        return self.schedule.now if self._replaying is None else self._replaying

    def mine(self) -> None:
        """Adds one block, with what its time changes."""
        self.advance()
        self._pending.time = self.now
        self.blocks.append(self._pending)
        self._pending = Block(self.now, self._before())
        self.check()

    def reorganise(self, count: int) -> None:
        """Replaces the newest blocks. Their transactions come again, in these or in the next."""
        count = min(count, self.height - self.confirmed, self.height - 2)
        gone = self.blocks[self.height - count :]
        if not gone:
            return
        del self.blocks[self.height - count :]
        self.replaced += count
        again = [block.transactions for block in [*gone, self._pending]]
        copies, self._mined = gone[0].before
        self.take_back(copies)
        parts = spread(again, count + 2, self.random)
        for block, part in zip(gone, parts, strict=False):
            self._replaying = block.time
            self._pending = Block(block.time, self._before())
            self._replay(part)
            self.mine()
        self._replaying = None
        self._replay(parts[-2])
        self.check()
        for each in parts[-1]:
            again, longest = partial(self._replay, [each]), LATE_SECONDS if self.is_moody else 1
            self.schedule.after(self.random.uniform(1, longest), again)

    def _before(self) -> tuple[object, dict[str, int]]:
        return (self.copies(), dict(self._mined)) if self.limits.chain_depth > 1 else (None, {})

    def _replay(self, transactions: list[Transaction]) -> None:
        for each in transactions:
            try:
                self._do(each)
            except Refused as refused:
                each.refused(refused)

    def do(
        self, sender: str, act: Callable[[], None], may_wait: bool = True, insists: bool = False
    ) -> None:
        """Acts in the block that is being made, and again if that is replaced. Raises Refused.

        With `insists` an act that is refused the second time is tried again each second.
        """

        def refused(_: Refused) -> None:
            if insists:
                self.schedule.after(1, lambda: self._replay([transaction]))

        transaction = Transaction(sender, act, refused, may_wait)
        self._do(transaction)

    def _do(self, transaction: Transaction) -> None:
        transaction.act()
        self._pending.transactions.append(transaction)

    def note(self, *notes: ev.ChainNote) -> None:
        """Queues an event for coordinators, in the next block."""
        self._pending.notes.extend(notes)

    def tell(self, event: node_events.Event) -> None:
        """Queues an event for providers, in the next block."""
        self._pending.news.append(event)

    def notes_after(self, block: int) -> ev.ChainAdvanced | None:
        """Everything that happened after a block, as one batch."""
        end = self.confirmed
        if block >= end:
            return None
        notes = tuple(note for item in self.blocks[block:end] for note in item.notes)
        digest = hash_tuple("block", end)
        return ev.ChainAdvanced(BlockNumber(end), digest, self.blocks[end - 1].time, notes)

    def news_for(self, reader: str) -> list[node_events.Event]:
        """Events that a provider has not read yet."""
        for block in self.blocks[self._news_until : self.confirmed]:
            self._news.extend(block.news)
        self._news_until = self.confirmed
        return self._news[self._seen.get(reader, 0) :]

    def took(self, reader: str) -> None:
        """Notes that the provider read one more event."""
        self._seen[reader] = self._seen.get(reader, 0) + 1

    # --------------------------------------------------------------------------------- transactions

    def transact(self, sender: str, purpose: str, act: Callable[[], None], finish: Finish) -> None:
        """Executes a transaction once per purpose, some time later; repeats get the same result.

        The sender hears of it once no reorganisation can take it back.
        """

        def mined() -> None:
            act()
            self._mined[purpose] = self.height + 1

        def refused(refused: Refused) -> None:
            self._refused[purpose] = refused

        def execute() -> None:
            if purpose not in self._mined and purpose not in self._refused:
                if self.is_moody and self.random.random() < 0.05:
                    finish(Again(1.0))
                    return
                try:
                    if (
                        self.is_moody
                        and purpose.startswith(MOODY)
                        and self.random.random() < REVERT_CHANCE
                    ):
                        raise Refused(Code.CHAIN, "reverted")
                    self._do(Transaction(sender, mined, refused))
                except Refused as reason:
                    refused(reason)
            self._finish(purpose, finish)

        longest = (
            90
            if "SendVote" in purpose
            else 30
            if self.is_moody and purpose.startswith(MOODY)
            else 0
        )
        is_jammed = self.has_jams and longest > 0 and self.random.random() < 0.25
        self.schedule.after(
            self.random.uniform(5, longest) if is_jammed else self.random.uniform(0.3, 2.5), execute
        )

    def _finish(self, purpose: str, finish: Finish) -> None:
        block = self._mined.get(purpose)
        if purpose in self._refused:
            finish(self._refused[purpose])
        elif block is not None and (block <= self.confirmed or self.limits.chain_depth == 1):
            finish(None)
        else:
            self.schedule.after(1, lambda: self._finish(purpose, finish))
