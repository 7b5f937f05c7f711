"""Named crash points: tests ask a program to die by SIGKILL at an exact place, as a power cut
would.

The program's cli reads the environment once and hands the text to `configure`; without it a
point costs one comparison. `POINTS` is the list of all of them: a test compares it with the
source, and the crash matrix tries each.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

CRASH_VARIABLE = "QUORATE_CRASH_AT"


class Program(StrEnum):
    """What can be killed."""

    COORDINATOR = "coordinator"
    PROVIDER = "provider"
    CLIENT = "client"
    DEVNET = "devnet"


class Kind(StrEnum):
    """What a point's name is completed with: nothing, or the type of the event or effect at
    hand.
    """

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
    # every journal append: stepped in memory; durable and nobody told. Then the transaction that a
    # whole batch shares
    Point("actor.before-append", _DAEMONS, Kind.EVENT),
    Point("actor.after-append", _DAEMONS, Kind.EVENT),
    Point("journal.before-commit", _DAEMONS),
    Point("journal.after-commit", _DAEMONS),
    # every effect: due; done, but not marked
    Point("effect.before", _DAEMONS, Kind.EFFECT),
    Point("effect.after", _DAEMONS, Kind.EFFECT),
    # every transaction: nothing kept; signed and kept; with a node; in a deep block, but not noted;
    # noted
    Point("chain.before-sign", _SENDERS),
    Point("chain.before-send", _SENDERS),
    Point("chain.after-send", _SENDERS),
    Point("chain.after-receipt", _SENDERS),
    Point("chain.after-settle", _SENDERS),
    # every step of a container, or of the sandbox that stands for one
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
    # the small process that keeps a sandbox without an engine: it has its own copy of `crash_point`
    Point("supervisor.before-run", _PROVIDER),
    Point("supervisor.after-run", _PROVIDER),
    Point("supervisor.before-record", _PROVIDER),
    Point("supervisor.after-record", _PROVIDER),
    # a client's order, its witness, what it vouches for, and what it takes home
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
    # a devnet's beginning and end
    *_around("devnet", ("child", "keys", "genesis", "settings", "marker", "stop"), _DEVNET),
    *_around("wallet", ("send",), _DEVNET),
)


def all_points(
    program: Program, events: Sequence[str] = (), effects: Sequence[str] = ()
) -> tuple[str, ...]:
    """Every point of a program, in the order of `POINTS`; `events` and `effects` are the names
    of its core's types.
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


@dataclass(slots=True)
class _Armed:
    """One per process: there is one process to kill."""

    is_on: bool = False
    text: str = ""
    name: str = ""
    left: int = 0  # passes until the crash
    file: Path | None = None


_armed = _Armed()


def configure(text: str) -> None:
    """Arms `<name>` or `<name>:<n>` (die at the n-th pass, from 1); the empty text disarms.

    A name also stands for all points below it: `effect.before` for `effect.before.StartTask`.
    `@<file>` looks for such a text in a file at every pass, so that a program that runs can be
    armed; the file is removed just before the crash, so that it comes once.
    """
    _armed.file = Path(text[1:]) if text.startswith("@") else None
    _armed.is_on = bool(text)
    _arm("" if _armed.file else text)


def crash_point(name: str, of: object = None) -> None:
    """Dies here, with nothing flushed and nobody told, when this point is armed and due. `of`:
    the event or effect at hand.
    """
    if _armed.is_on:
        _pass(name if of is None else f"{name}.{type(of).__name__}")


def _pass(name: str) -> None:
    if _armed.file is not None:
        _look(_armed.file)
    if not _armed.name or not (name == _armed.name or name.startswith(_armed.name + ".")):
        return
    _armed.left -= 1
    if _armed.left == 0:
        if _armed.file is not None:
            _armed.file.unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)


def _look(file: Path) -> None:
    try:
        text = file.read_text()
    except FileNotFoundError:
        text = ""  # not armed now
    if text != _armed.text:
        _arm(text)


def _arm(text: str) -> None:
    name, _, count = text.partition(":")
    assert not count or (count.isdecimal() and int(count) > 0), (
        f"crash point {text!r}: the part after the colon is a number from 1"
    )
    _armed.text, _armed.name, _armed.left = text, name, int(count or 1)
