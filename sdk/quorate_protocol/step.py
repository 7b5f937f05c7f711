"""The shape of every machine that an actor drives: inputs in, effects out."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from quorate_protocol.units import Hash32, UnixSeconds

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)
F = TypeVar("F")
F_co = TypeVar("F_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Input(Generic[E]):
    """One event with the moment and the 32 random bytes that the shell journaled beside it, so that replay decides the same."""

    at: UnixSeconds
    random: Hash32
    event: E


@dataclass(frozen=True, slots=True)
class Outcome(Generic[F_co]):
    """What a step decided: effects for the outbox, and the reply that is given once both are durable."""

    effects: tuple[F_co, ...] = ()
    reply: object = None


class Effect(Protocol):
    """Data that orders something of the world. Same `key`: the same order. Same `lane`: in order; lanes run side by side."""

    @property
    def key(self) -> str:
        """Idempotency key."""

    @property
    def lane(self) -> str:
        """Name of the queue."""


class Core(Protocol[E_contra, F_co]):
    """A pure machine with state. `step` raises Refused and has then changed nothing."""

    def step(self, item: Input[E_contra]) -> Outcome[F_co]:  # type: ignore[misc]
        """Decides one event."""

    def snapshot(self) -> bytes:
        """Canonical bytes of the whole state."""

    def restore(self, data: bytes) -> None:
        """Replaces the state by a snapshot."""
