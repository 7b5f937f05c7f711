"""What every state machine of a daemon looks like from outside: one input goes in, effects and a
reply come out.

A core decides and never awaits; `quorate_runtime.actor.actor` feeds it, writes down what it
decided, and only then lets it happen.
"""

from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from quorate_protocol.units import Hash32, UnixSeconds

E = TypeVar("E", covariant=True)
F = TypeVar("F", covariant=True)
E_contra = TypeVar("E_contra", contravariant=True)


class Input(Struct, Generic[E], frozen=True):
    """One event with everything that a pure step may not fetch itself. It is journaled whole, so
    replay sees the same.
    """

    at: UnixSeconds  # never falls from one input to the next
    random: Hash32  # fresh and secret; a core derives all its randomness from it
    event: E


class Outcome(Struct, Generic[F], frozen=True):
    """What one step decided. The reply reaches the submitter, and the effects are performed,
    once both are durable.
    """

    effects: tuple[F, ...] = ()
    reply: object = None


class Effect(Protocol):
    """An order to the shell. It is performed at least once; whoever performs it makes repeating
    it harmless.
    """

    @property
    def key(self) -> str:
        """Idempotency key: one that was journaled is not queued again as long as the journal
        keeps its event (10,000 more at least).
        """

    @property
    def lane(self) -> str:
        """Effects of one lane are performed in order, one after the other; lanes run side by
        side.
        """


class Core(Protocol[E_contra, F]):
    """One state machine: one writer, no IO."""

    def step(self, item: Input[E_contra]) -> Outcome[F]:
        """Decides. Raises `Refused` and has then changed nothing; anything else it raises is a
        bug that ends the daemon.
        """

    def snapshot(self) -> bytes:
        """The whole state; the same state gives the same bytes."""

    def restore(self, data: bytes) -> None:
        """Replaces the state by that of a snapshot."""
