"""What a watcher keeps from one run to the next: evidence, open demands, and what it did.

The evidence is the newest Statement for each epoch and the newest leaves, by coordinator. A copy of
the file lets a second watcher work on another machine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from quorate_protocol.codec import canonical
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.epoch_tree import Leaf, Proof
from quorate_protocol.units import Address, Amount, UnixSeconds, usd
from quorate_protocol.values import replace
from quorate_runtime.files import file_lock, write_atomic

FILE, LOCK_FILE = "watch.json", "watch.lock"
LOCKED_SECONDS = 2.0
SENT = "sent"
FILE_BYTES_MAX = 16 << 20
ACTIONS_MAX = 1_000
STATEMENTS_MAX, LEAVES_MAX, DEMANDS_MAX = 16, 8, 64  # by coordinator
COORDINATORS_MAX = 256


class ShownLeaf(Struct, frozen=True):
    """An account's leaf in an epoch, with a proof that led to the root on chain."""

    epoch: int
    leaf: Leaf
    proof: Proof


class Waiting(Struct, frozen=True):
    """A fact that the watcher has seen since a time: the epoch `number` lacks a `kind`."""

    kind: str
    number: int
    since: UnixSeconds


class Action(Struct, frozen=True):
    """One transaction of the watcher. `amount` is what was missing or taken, in token units."""

    at: UnixSeconds
    coordinator: Address
    what: str  # the name of the contract's function
    epoch: int
    amount: Amount
    outcome: str = SENT  # or why the chain refused it

    def line(self) -> str:
        """Returns the action in words."""
        of = f" of epoch {self.epoch}" if self.epoch else ""
        amount = f", {usd(self.amount)} USD" if self.amount else ""
        who = f"0x{self.coordinator.hex()}"
        return f"{self.what}{of} of coordinator {who}{amount}: {self.outcome}"


class Watched(Struct, frozen=True):
    """What is kept of one coordinator. `demands` are epochs whose leaf this watcher demanded."""

    coordinator: Address
    statements: tuple[Envelope[Statement], ...] = ()  # the newest of each epoch, oldest first
    leaves: tuple[ShownLeaf, ...] = ()  # oldest first
    demands: tuple[int, ...] = ()
    waiting: tuple[Waiting, ...] = ()

    def with_statement(self, signed: Envelope[Statement]) -> "Watched":
        """Returns it with one more Statement. An older one of the same epoch is replaced."""
        same = [item for item in self.statements if item.message.epoch == signed.message.epoch]
        if any(item.message.seq >= signed.message.seq for item in same):
            return self
        others = tuple(item for item in self.statements if item not in same)
        ordered = sorted((*others, signed), key=lambda item: item.message.epoch)
        return replace(self, statements=tuple(ordered[-STATEMENTS_MAX:]))

    def with_leaf(self, shown: ShownLeaf) -> "Watched":
        """Returns it with the leaf of one more epoch."""
        others = tuple(item for item in self.leaves if item.epoch != shown.epoch)
        ordered = sorted((*others, shown), key=lambda item: item.epoch)
        return replace(self, leaves=tuple(ordered[-LEAVES_MAX:]))

    def due(self, epoch: int) -> Envelope[Statement] | None:
        """Returns the newest Statement that this epoch must pay, or None."""
        found = [item for item in self.statements if item.message.epoch <= epoch]
        return max(found, key=lambda item: (item.message.final, item.message.seq), default=None)

    def newest(self) -> Envelope[Statement] | None:
        """Returns the Statement that promises most, or None."""
        return self.due(1 << 63)


class WatchState(Struct, frozen=True):
    """The whole file."""

    account: Address
    watched: tuple[Watched, ...] = ()
    actions: tuple[Action, ...] = ()  # oldest first

    def of(self, coordinator: Address) -> Watched:
        """Returns what is kept of a coordinator."""
        found = (item for item in self.watched if item.coordinator == coordinator)
        return next(found, Watched(coordinator))

    def with_watched(self, changed: Watched) -> "WatchState":
        """Returns the state with one coordinator changed."""
        others = tuple(item for item in self.watched if item.coordinator != changed.coordinator)
        return replace(self, watched=(*others, changed)[-COORDINATORS_MAX:])

    def with_action(self, action: Action) -> "WatchState":
        """Returns the state with one more action."""
        return replace(self, actions=(*self.actions, action)[-ACTIONS_MAX:])


def read_watch(home: Path, account: Address | None) -> WatchState:
    """Returns what a watcher of this account kept in a folder; an empty state if there is no file.

    Raises Refused if the file is damaged or of another account. Without an account, the file says
    it, and Refused is raised if there is no file.
    """
    path = home / FILE
    if not path.exists():
        if account is None:
            raise Refused(Code.UNKNOWN, f"there is no {path}: give --account ADDRESS")
        return WatchState(account)
    try:
        found = canonical.decode(WatchState, path.read_bytes(), FILE_BYTES_MAX)
    except Refused as refused:
        raise Refused(
            Code.MALFORMED,
            f"{path} is damaged ({refused.detail}): move it away; the evidence in it is lost",
        ) from refused
    if account is not None and found.account != account:
        raise Refused(
            Code.NOT_YOURS, f"{path} is of account 0x{found.account.hex()}: give another --home"
        )
    return found


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Lets one watcher at a time work in a folder. Raises Unavailable if another one does."""
    busy = f"another watcher works in {home}, such as a provider's daemon: copy {FILE} elsewhere"
    with file_lock(home / LOCK_FILE, busy, LOCKED_SECONDS):
        yield


def write_watch(home: Path, state: WatchState) -> None:
    """Replaces the file atomically. Raises OSError as the system does."""
    write_atomic(home / FILE, canonical.encode(state), 0o600)
