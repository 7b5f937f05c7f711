"""Chooses the operator key that signs a message (PROTOCOL §2).

The key that was valid at an Assignment's acceptBy (inclusive) signs all messages of its lease, even
after a rotation. The current key signs offers, heartbeats, tokens and hellos. A coordinator learns
of a new key some blocks later. If it refuses one key, the provider tries the next. The chain knows
from when to when a key is valid. A file keeps what the chain said last, because the chain node may
not answer at the next start.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from quorate_node.base.provider_keys import SigningKeys
from quorate_protocol.codec import canonical
from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Signature, UnixSeconds
from quorate_runtime.files import write_atomic

FILE = "operator-keys.json"
FILE_BYTES_MAX = 64 * 1024
# The second code: the coordinator has the same message already, signed by another key.
OTHER_KEY = (Code.WRONG_SIGNER, Code.EQUIVOCATION)

T = TypeVar("T")


class KeyValidity(Struct, frozen=True):
    """The first and the last second in which the registry accepts a key (`Stakes.key_range`)."""

    key: Address
    since: UnixSeconds
    until: UnixSeconds


class KeyValidities(Struct, frozen=True):
    """The keys that the chain knows, oldest first."""

    keys: tuple[KeyValidity, ...] = ()


class OperatorKeys:
    """The operator keys of one provider. All code that signs asks here for the key."""

    def __init__(self, keys: SigningKeys, file: Path | None = None) -> None:
        """`file` keeps what the chain said. If it is None, nothing is kept."""
        self._signers = {signer.address: signer for signer in keys.operators()}
        self._file, self._is_owner_here = file, keys.owner is not None
        self.wanted = keys.operator
        self._known = self._of_own_keys(read_validities(file).keys if file else ())
        self._accepted: dict[Address, Address] = {}  # coordinator -> key that it accepted last
        # Coordinator -> number of hellos since it accepted a message.
        self._hellos: dict[Address, int] = {}

    # -------------------------------------------------------------------------------------- queries

    @property
    def signers(self) -> tuple[Signer, ...]:
        return tuple(self._signers.values())

    @property
    def current(self) -> Signer:
        """The current key: the newest that the chain knows, else the oldest of all."""
        return (
            self._signers[self._known[-1].key]
            if self._known
            else next(iter(self._signers.values()))
        )

    @property
    def is_changing(self) -> bool:
        return self.current is not self.wanted

    def valid_at(self, moment: UnixSeconds) -> Signer:
        """In the second of a rotation both keys are valid; returns the older one."""
        found = next((item.key for item in self._known if moment <= item.until), None)
        return self.current if found is None else self._signers[found]

    def named(self, key: Address) -> Signer:
        """Returns the current key if the named one is not here."""
        return self._signers.get(key, self.current)

    def validity(self, key: Address) -> KeyValidity | None:
        return next((item for item in self._known if item.key == key), None)

    def may_take_work(self, coordinator: Address) -> bool:
        """Whether one key can sign all messages of a lease that this coordinator assigns now. Not
        while the daemon is about to rotate: the old key would sign the Accept and the new one the
        Commit. Not until this coordinator has accepted the new key.
        """
        if self.is_changing and self._is_owner_here:
            return False
        return len(self._known) <= 1 or self._accepted.get(coordinator) == self.current.address

    # ------------------------------------------------------------------------------------- updating

    def learn(self, validities: Sequence[KeyValidity]) -> None:
        known = self._of_own_keys(validities)
        if known == self._known:
            return
        self._known = known
        if self._file is not None:
            write_validities(self._file, KeyValidities(known))

    def sign(self, digest: bytes) -> Signature:
        return self.current.sign(digest)

    def forget(self, key: Address) -> None:
        """Drops a key, which must not be the newest or the current one."""
        assert key not in (self.wanted.address, self.current.address), "it is in use"
        del self._signers[key]
        self.learn(self._known)

    def note_accepted(self, coordinator: Address, key: Address) -> None:
        self._accepted[coordinator] = key
        self._hellos[coordinator] = 0

    def _of_own_keys(self, validities: Sequence[KeyValidity]) -> tuple[KeyValidity, ...]:
        return tuple(
            sorted(
                (item for item in validities if item.since and item.key in self._signers),
                key=lambda item: item.since,
            )
        )

    # -------------------------------------------------------------------------------------- signing

    def for_moment(self, moment: UnixSeconds) -> tuple[Signer, ...]:
        """Returns the key that was valid then, and the others, newest first, for a coordinator that
        has not followed the chain that far.
        """
        return self._from(self.valid_at(moment).address)

    def for_coordinator(self, coordinator: Address) -> tuple[Signer, ...]:
        """Returns the key that this coordinator accepted last, then the others, newest first."""
        return self._from(self._accepted.get(coordinator, self.current.address))

    def for_announcements(self, coordinator: Address) -> tuple[Signer, ...]:
        """Puts the current key first, to see whether the coordinator has learnt of it."""
        return tuple(dict.fromkeys((self.current, *self.for_coordinator(coordinator))))

    def for_hello(self, coordinator: Address) -> Signer:
        """Returns the next key to try in a hello, until the coordinator accepts a message: a
        coordinator that refuses a hello only closes the connection.
        """
        order, count = self.for_coordinator(coordinator), self._hellos.get(coordinator, 0)
        self._hellos[coordinator] = count + 1
        return order[count % len(order)]

    def _from(self, first: Address) -> tuple[Signer, ...]:
        rest = (signer for key, signer in reversed(self._signers.items()) if key != first)
        return (self._signers[first], *rest) if first in self._signers else tuple(rest)


class HelloSigner:
    """Signs the hellos to one coordinator (`ports.Signer`). `address` is the last key it used."""

    def __init__(self, operator_keys: OperatorKeys, coordinator: Address) -> None:
        self._operator_keys, self._coordinator = operator_keys, coordinator
        self.address = operator_keys.current.address

    def sign(self, digest: bytes) -> Signature:
        """Signs with the next key to try."""
        signer = self._operator_keys.for_hello(self._coordinator)
        self.address = signer.address
        return signer.sign(digest)


async def send_under_any_key(
    signers: Sequence[Signer], send: Callable[[Signer], Awaitable[T]]
) -> T:
    """Tries each key in turn. Raises the first refusal if all keys are refused, others at once."""
    first: Refused | None = None
    for signer in signers:
        try:
            return await send(signer)
        except Refused as refused:
            if refused.code not in OTHER_KEY:
                raise
            first = first or refused  # raised below if every key is refused
    assert first is not None, "a provider has a key"
    raise first


def read_validities(file: Path) -> KeyValidities:
    return (
        canonical.decode(KeyValidities, file.read_bytes(), FILE_BYTES_MAX)
        if file.exists()
        else KeyValidities()
    )


def write_validities(file: Path, validities: KeyValidities) -> None:
    write_atomic(file, canonical.encode(validities))
