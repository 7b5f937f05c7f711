"""All crash points of the programs. A test compares them with the source; crash tests try each."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Program(StrEnum):
    """The programs that tests kill."""

    COORDINATOR = "coordinator"
    PROVIDER = "provider"
    CLIENT = "client"
    DEVNET = "devnet"


class Kind(StrEnum):
    """What completes a point's name: nothing, or the type of the event or effect."""

    NONE = ""
    EVENT = "event"
    EFFECT = "effect"


@dataclass(frozen=True, slots=True)
class Point:
    """One place in the source, or one for each type of event or effect."""

    name: str
    programs: tuple[Program, ...]
    kind: Kind = Kind.NONE


def _around(place: str, steps: Sequence[str], programs: tuple[Program, ...]) -> tuple[Point, ...]:
    return tuple(
        Point(f"{place}.{when}-{step}", programs) for step in steps for when in ("before", "after")
    )


_DAEMONS = (Program.COORDINATOR, Program.PROVIDER)
_PROVIDER, _CLIENT, _DEVNET = (Program.PROVIDER,), (Program.CLIENT,), (Program.DEVNET,)
_SENDERS = (*_DAEMONS, Program.CLIENT)

POINTS: tuple[Point, ...] = (
    # Every journal append: applied in memory; durable, but not answered yet. Then the transaction
    # that a whole batch shares.
    Point("actor.before-append", _DAEMONS, Kind.EVENT),
    Point("actor.after-append", _DAEMONS, Kind.EVENT),
    Point("journal.before-commit", _DAEMONS),
    Point("journal.after-commit", _DAEMONS),
    # Every effect: about to be performed; performed, but not marked.
    Point("effect.before", _DAEMONS, Kind.EFFECT),
    Point("effect.after", _DAEMONS, Kind.EFFECT),
    # Every transaction: not stored yet; signed and stored; sent to a node; in a deep block, but not
    # recorded; recorded.
    Point("chain.before-sign", _SENDERS),
    Point("chain.before-send", _SENDERS),
    Point("chain.after-send", _SENDERS),
    Point("chain.after-receipt", _SENDERS),
    Point("chain.after-settle", _SENDERS),
    # Every step of a container, or of the sandbox that replaces it.
    *_around("container", ("create", "start", "collect", "remove"), _PROVIDER),
    *(
        Point(f"{step}.{when}", _PROVIDER)
        for step in ("mount", "unmount")
        for when in ("before", "after")
    ),
    Point("output.after-collect", _PROVIDER),
    Point("output.before-seal", _PROVIDER),
    Point("output.before-store", _PROVIDER),
    Point("output.after-store", _PROVIDER),
    # The supervisor of a sandbox without an engine; it has its own `crash_point`.
    Point("supervisor.before-run", _PROVIDER),
    Point("supervisor.after-run", _PROVIDER),
    Point("supervisor.before-record", _PROVIDER),
    Point("supervisor.after-record", _PROVIDER),
    # A client's order, its witness, its vouchers, and what it fetches.
    *_around(
        "client",
        (
            "upload",
            "record",
            "send",
            "ack",
            "witness",
            "settle",
            "draft",
            "voucher",
            "receipt",
            "fetch",
        ),
        _CLIENT,
    ),
    Point("client.after-fund", _CLIENT),  # an order's own escrow is on chain, the order not sent
    # The start and end of a devnet.
    *_around("devnet", ("child", "keys", "genesis", "settings", "marker", "stop"), _DEVNET),
    *_around("wallet", ("send",), _DEVNET),
)


def all_points(
    program: Program, events: Sequence[str] = (), effects: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns every point of a program, in the order of `POINTS`. `events` and `effects` are the
    names of its core's types.
    """
    ends: dict[Kind, Sequence[str]] = {
        Kind.EVENT: [f".{name}" for name in events],
        Kind.EFFECT: [f".{name}" for name in effects],
    }
    return tuple(
        point.name + end
        for point in POINTS
        if program in point.programs
        for end in ends.get(point.kind, ("",))
    )
