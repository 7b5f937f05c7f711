"""Names of hosts that a rental may reach, as its spec asks and its owner allows (PROTOCOL 12.29).

A name is `huggingface.co`, `*.hf.co` for every host below it, or `*` for every public host.
"""

import re
from collections.abc import Collection

NAMES_MAX = 16
NAME_MAX = 100
EVERY_HOST = "*"
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
# The last label has a letter in front, so no form of an IP address is a name: 127.1, 0x7f.1.
_HOST = re.compile(rf"(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?")
# Names that a home or company network answers by itself.
_PRIVATE_ENDINGS = (".local", ".localhost", ".internal", ".home.arpa", ".lan", ".home", ".corp")
_EXAMPLE = "write huggingface.co, *.hf.co, or * for every public host"


def is_host(name: str) -> bool:
    """Whether it is a public host's name: lower case, no address, no dot at the end."""
    return (
        len(name) <= NAME_MAX
        and _HOST.fullmatch(name) is not None
        and not name.endswith(_PRIVATE_ENDINGS)
    )


def fault_of(names: tuple[str, ...]) -> str:
    """What is wrong with a list of names; "" if nothing is."""
    if len(names) > NAMES_MAX or list(names) != sorted(set(names)):
        return f"at most {NAMES_MAX} names, sorted, none twice"
    wrong = [name for name in names if name != EVERY_HOST and not is_host(name.removeprefix("*."))]
    return f"{wrong[0][:80]!r} is no name of a public host; {_EXAMPLE}" if wrong else ""


def wider(name: str) -> tuple[str, ...]:
    """The name, and those that stand for it and more: `*.b.org` and `*.org` for `a.b.org`."""
    parts = name.split(".")
    return (name, *("*." + ".".join(parts[first:]) for first in range(1, len(parts))))


def covers(allowed: Collection[str], name: str) -> bool:
    """Whether a host, or all hosts that a name stands for, are among the allowed ones."""
    return EVERY_HOST in allowed or any(one in allowed for one in wider(name))


def lacking(allowed: Collection[str], asked: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in asked if not covers(allowed, name))
