"""Elements of a job array: every combination of a sweep's values, with every seed.

An element reaches the program in two ways: as environment variables, and wherever a word of the
command has the key in braces, such as `--lr={lr}`.
"""

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from quorate.base.errors import UsageError

if TYPE_CHECKING:
    from quorate.job.job import Job

ELEMENTS_MAX = 10_000
SEED = "seed"
NAME_MAX = 63
Element = Mapping[str, str]
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,63})\}", re.ASCII)

_WHOLE = re.compile(r"(?:-{1,2}[A-Za-z0-9_-]+=)?\{([A-Za-z_][A-Za-z0-9_]{0,63})\}", re.ASCII)


def check_sweep(sweep: Mapping[str, Sequence[str | int]], seeds: int, taken: Iterable[str]) -> None:
    """Raises UsageError for a key that is no variable, is taken, or has no values."""
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 0 <= seeds <= ELEMENTS_MAX:
        raise UsageError(f"seeds: {str(seeds)[:64]!r} is not a number from 0 to {ELEMENTS_MAX}")
    for key, values in sweep.items():
        if not _KEY.fullmatch(key):
            raise UsageError(
                f"sweep: {key[:64]!r} cannot name a variable; write letters, digits and _"
            )
        if isinstance(values, str) or not values or len(set(map(str, values))) != len(values):
            raise UsageError(f"sweep.{key}: write a list of different values, such as [0.1, 0.01]")
    names = [*sweep, *([SEED] if seeds else [])]
    clash = sorted(set(names) & set(taken)) or [name for name in names if names.count(name) > 1]
    if clash:
        raise UsageError(f"sweep: {clash[0]} is set twice; env and seeds set variables too")
    count = max(1, seeds)
    for values in sweep.values():
        count *= len(values)
    if count > ELEMENTS_MAX:
        raise UsageError(f"sweep: it has {count} elements; at most {ELEMENTS_MAX} are allowed")


def elements(sweep: Mapping[str, Sequence[str | int]], seeds: int) -> list[Element]:
    """Returns all combinations; the last key changes fastest, and the seeds 0, 1, ... fastest."""
    axes = [[(key, str(value)) for value in values] for key, values in sweep.items()]
    if seeds:
        axes.append([(SEED, str(number)) for number in range(seeds)])
    return [dict(pairs) for pairs in itertools.product(*axes)] if axes else []


def label(element: Element) -> str:
    """Returns "lr=0.1,seed=0", which names the element's folder. A slash becomes a hyphen."""
    text = ",".join(f"{key}={value}" for key, value in element.items())
    plain = re.sub(r"[^A-Za-z0-9=,._+-]", "-", text)
    return plain if len(plain) <= 200 else f"{plain[:180]}-{_short_hash(text)}"


def element_job(job: "Job", element: Element, count: int = 0) -> "Job":
    """Returns the job of one element. With a `count` its budget is that part of the job's.

    UsageError if a word has a key in braces that is nearly one of the element's.
    """
    if isinstance(job.command, str):
        command: Sequence[str] | str = _filled(job.command, element)
    else:
        command = tuple(_filled(word, element) for word in job.command)
    budget = job.budget_amount()
    return replace(
        job,
        name=_name(job.name, element) if count else job.name,
        command=command,
        args=tuple(_filled(word, element) for word in job.args),
        env={**job.env, **element},
        sweep={},
        seeds=0,
        budget=_dollars(budget // count) if count and budget is not None else job.budget,
    )


def _filled(text: str, element: Element) -> str:
    # A whole word in braces is a key; other braces may be the program's own.
    is_whole = _WHOLE.fullmatch(text) is not None
    for key in _PLACEHOLDER.findall(text):
        near = get_close_matches(key, element, n=1, cutoff=0.4 if is_whole else 0.7)
        if key not in element and (near or is_whole):
            remedy = f"did you mean {{{near[0]}}}?" if near else f"its keys: {', '.join(element)}"
            raise UsageError(f"sweep: {{{key}}} is no key of it; {remedy}")
    return _PLACEHOLDER.sub(lambda found: element.get(found[1], found[0]), text)


def _name(name: str, element: Element) -> str:
    """Returns a run's name that tells elements apart: "train-lr-0-1-seed-0"."""
    text = "-".join([name, *(f"{key}-{value}" for key, value in element.items())]).lower()
    plain = re.sub(r"[^a-z0-9]+", "-", text).strip("-")
    return plain if len(plain) <= NAME_MAX else f"{plain[:50].strip('-')}-{_short_hash(text)}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _dollars(micro: int) -> str:
    if not micro:
        raise UsageError("budget: it is less than a millionth of a dollar for each element")
    return f"{micro // 10**6}.{micro % 10**6:06d}"
