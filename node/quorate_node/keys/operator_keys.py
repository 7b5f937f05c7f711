"""Which operator key signs what (PROTOCOL §2): a rotated key still answers for what was assigned
while it was valid.

Messages of a lease go under the key that was valid at the Assignment's acceptBy, inclusive;
offers, heartbeats, tokens and hellos under the key of today, which each coordinator learns of a
few blocks later. So a coordinator that refuses one key is shown the next. The chain says since
when a key is valid and until when; what it said last is kept in a file, because it may be away
at the next start.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from quorate_node.keys.provider_keys import ProviderKeys
from quorate_protocol.codec import canonical
from quorate_protocol.ports import Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Signature, UnixSeconds

FILE = "operator-keys.json"
FILE_BYTES_MAX = 64 * 1024
OTHER_KEY = (
    Code.WRONG_SIGNER,
    Code.EQUIVOCATION,
)  # the second: it has the same message, under the other key

T = TypeVar("T")


class Validity(Struct, frozen=True):
    """What the registry says of a key: its first and its last second (`Stakes.key_range`)."""

    key: Address
    since: UnixSeconds
    until: UnixSeconds


class Validities(Struct, frozen=True):
    """The file: keys that the chain knows, oldest first."""

    keys: tuple[Validity, ...] = ()


class OperatorKeys:
    """The operator keys of one provider. One task of the daemon tells it what the chain says;
    everybody who signs asks it.
    """

    def __init__(self, keys: ProviderKeys, file: Path | None = None) -> None:
        """`file` keeps what was learnt; None = it is forgotten."""
        self._signers = {signer.address: signer for signer in keys.operators()}
        self._file, self._is_owner_here = file, keys.owner is not None
        self.wanted = keys.operator
        self._known = self._of_mine(read_validities(file).keys if file else ())
        self._taken: dict[Address, Address] = {}  # by coordinator, the key that it took last
        self._greetings: dict[Address, int] = {}  # by coordinator, hellos since it took something

    # ---------------------------------------------------------------------------------------- which

    @property
    def signers(self) -> tuple[Signer, ...]:
        """All keys, oldest first."""
        return tuple(self._signers.values())

    @property
    def current(self) -> Signer:
        """The key of today: the newest that the chain is known to know, else the oldest there
        is.
        """
        return (
            self._signers[self._known[-1].key]
            if self._known
            else next(iter(self._signers.values()))
        )

    @property
    def is_changing(self) -> bool:
        """The chain is still to learn of the newest key."""
        return self.current is not self.wanted

    def valid_at(self, moment: UnixSeconds) -> Signer:
        """The key that answers for a moment; of two in the second of a rotation the older."""
        found = next((item.key for item in self._known if moment <= item.until), None)
        return self.current if found is None else self._signers[found]

    def named(self, key: Address) -> Signer:
        """The signer of a key that the chain names; of today for one that is not here."""
        return self._signers.get(key, self.current)

    def validity(self, key: Address) -> Validity | None:
        """What the chain said of a key; None when it has never known it."""
        return next((item for item in self._known if item.key == key), None)

    def may_take_work(self, coordinator: Address) -> bool:
        """Whether what this coordinator assigns now can be answered under one and the same key
        to the end.

        Not while a rotation is to come that the daemon makes itself: what is accepted before it
        would have to be committed to after it. And not before this coordinator has heard of it.
        """
        if self.is_changing and self._is_owner_here:
            return False
        return len(self._known) <= 1 or self._taken.get(coordinator) == self.current.address

    # ------------------------------------------------------------------------------------- learning

    def learn(self, validities: Sequence[Validity]) -> None:
        """What the chain says now, of any of the keys; kept when it is new."""
        known = self._of_mine(validities)
        if known == self._known:
            return
        self._known = known
        if self._file is not None:
            write_validities(self._file, Validities(known))

    def forget(self, key: Address) -> None:
        """A key that is gone from the keystore. Never the newest, never that of today."""
        assert key not in (self.wanted.address, self.current.address), "it is in use"
        del self._signers[key]
        self.learn(self._known)

    def heard(self, coordinator: Address, key: Address) -> None:
        """A coordinator took something under this key."""
        self._taken[coordinator] = key
        self._greetings[coordinator] = 0

    def _of_mine(self, validities: Sequence[Validity]) -> tuple[Validity, ...]:
        return tuple(
            sorted(
                (item for item in validities if item.since and item.key in self._signers),
                key=lambda item: item.since,
            )
        )

    # -------------------------------------------------------------------------------------- signing

    def for_moment(self, moment: UnixSeconds) -> tuple[Signer, ...]:
        """The key that answers for a moment first, then the others, newest first, for who has
        followed the chain less far.
        """
        return self._from(self.valid_at(moment).address)

    def for_today(self, coordinator: Address) -> tuple[Signer, ...]:
        """The key that this coordinator took last first, then the others, newest first."""
        return self._from(self._taken.get(coordinator, self.current.address))

    def to_announce(self, coordinator: Address) -> tuple[Signer, ...]:
        """The key of today first: how it is found out that a coordinator has learnt of it. Then
        as `for_today`.
        """
        return tuple(dict.fromkeys((self.current, *self.for_today(coordinator))))

    def to_greet(self, coordinator: Address) -> Signer:
        """One after the other as long as nothing is taken, because a refused hello only shows as
        a connection that ends.
        """
        order, count = self.for_today(coordinator), self._greetings.get(coordinator, 0)
        self._greetings[coordinator] = count + 1
        return order[count % len(order)]

    def _from(self, first: Address) -> tuple[Signer, ...]:
        rest = (signer for key, signer in reversed(self._signers.items()) if key != first)
        return (self._signers[first], *rest) if first in self._signers else tuple(rest)


class Speaker:
    """`ports.Signer` of the hellos to one coordinator: `address` is the key that signed last."""

    def __init__(self, ring: OperatorKeys, coordinator: Address) -> None:
        self._ring, self._coordinator = ring, coordinator
        self.address = ring.current.address

    def sign(self, digest: bytes) -> Signature:
        """With the key whose turn it is."""
        signer = self._ring.to_greet(self._coordinator)
        self.address = signer.address
        return signer.sign(digest)


async def under_any(signers: Sequence[Signer], send: Callable[[Signer], Awaitable[T]]) -> T:
    """Sends under the first key that is not refused for being another one than wanted; Refused
    as the first was.
    """
    first: Refused | None = None
    for signer in signers:
        try:
            return await send(signer)
        except Refused as refused:
            if refused.code not in OTHER_KEY:
                raise
            first = first or refused  # raised below, when no other key is taken either
    assert first is not None, "a provider has a key"
    raise first


def read_validities(file: Path) -> Validities:
    """What was kept; nothing before the first rotation was looked for."""
    return (
        canonical.decode(Validities, file.read_bytes(), FILE_BYTES_MAX)
        if file.exists()
        else Validities()
    )


def write_validities(file: Path, validities: Validities) -> None:
    """Whole or not at all."""
    part = file.with_suffix(".part")
    part.write_bytes(canonical.encode(validities))
    os.replace(part, file)
