"""The port of every state machine of a daemon: one input goes in, effects and a reply come out.

A core decides and never awaits. `quorate_runtime.actor.actor` calls it, journals the event with its
effects, and then replies and performs the effects.
"""

from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from quorate_protocol.units import Hash32, UnixSeconds

E = TypeVar("E", covariant=True)
F = TypeVar("F", covariant=True)
E_contra = TypeVar("E_contra", contravariant=True)


class Input(Struct, Generic[E], frozen=True):
    """One event, with the time and the random value that a pure step may not fetch itself. The
    journal keeps all three, so replay gives the core the same input.
    """

    at: UnixSeconds  # never falls from one input to the next
    random: Hash32  # new and secret; a core derives all its random values from it
    event: E


class StepOutcome(Struct, Generic[F], frozen=True):
    """What one step decided. Once both are durable, the submitter gets the reply, and the shell
    performs the effects.
    """

    effects: tuple[F, ...] = ()
    reply: object = None


class Effect(Protocol):
    """An action for the shell to perform. Performing it twice must do no harm."""

    @property
    def key(self) -> str:
        """Idempotency key. The outbox does not queue a journaled key again while the journal
        keeps its event, which is at least 10,000 further events.
        """

    @property
    def lane(self) -> str:
        """Name of the lane. The outbox performs the effects of one lane one after the other. Lanes
        do not wait for each other.
        """


class Core(Protocol[E_contra, F]):
    """One state machine. It has one caller, and does no input or output."""

    def step(self, item: Input[E_contra]) -> StepOutcome[F]:
        """Decides what the event changes. When it raises `Refused`, it has changed nothing. Any
        other exception is a bug and ends the daemon.
        """

    def snapshot(self) -> bytes:
        """Returns the whole state. Equal states give equal bytes."""

    def restore(self, data: bytes) -> None: ...
