"""Refuses a field of a job that has the wrong type, with the field's name and what to write."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.base.errors import UsageError
from quorate_protocol.messages.job_spec import Resources

if TYPE_CHECKING:
    from quorate.job.job import Job

Check = Callable[[object], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_path(value: object) -> bool:
    return isinstance(value, str | Path)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_quantity(value: object) -> bool:
    return _is_text(value) or _is_whole(value)


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    """Accepts a list or tuple; a lone text is none, because it would count as its letters."""
    return lambda value: (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(map(check, value))
    )


def _or_list_of(check: Check) -> Check:
    return lambda value: check(value) or _list_of(check)(value)


def _mapping_of(check: Check) -> Check:
    return lambda value: (
        isinstance(value, Mapping) and all(map(_is_text, value)) and all(map(check, value.values()))
    )


def _is_resources(value: object) -> bool:
    return isinstance(value, Resources) or _mapping_of(_is_quantity)(value)


_TEXT, _FLAG = (_is_text, "text"), (_is_flag, "True or False")
_TYPES: dict[str, tuple[Check, str]] = {
    "image": (_is_path, "a name or path"),
    "build": (_maybe(_is_path), "the path of a Dockerfile or of its folder"),
    "command": (_or_list_of(_is_text), "a list of words, or one text for the shell"),
    "args": (_list_of(_is_text), "a list of words"),
    "entrypoint": (_maybe(_list_of(_is_text)), "a list of words"),
    "file": (_or_list_of(_is_path), "a path or a list of paths"),
    "workdir": (_maybe(_is_path), "the path of a folder"),
    "requirements": (_or_list_of(_is_path), "the path of a file, or a list of requirements"),
    "python": _TEXT,
    "name": _TEXT,
    "inputs": (_mapping_of(_is_path), "a mapping of mounts to paths, CIDs or sources"),
    "input_sizes": (_mapping_of(_is_quantity), 'a mapping of mounts to sizes such as "1GB"'),
    "env": (_mapping_of(_is_text), 'a mapping of names to texts, such as {"LR": "0.1"}'),
    "working_dir": _TEXT,
    "sandbox": _TEXT,
    "attestation": _TEXT,
    "determinism": _TEXT,
    "compare": _TEXT,
    "include": (_list_of(_is_text), "a list of patterns"),
    "pool": _TEXT,
    "resources": (_is_resources, 'a mapping such as {"cpu": 2, "memory": "8GB"}'),
    "type": _TEXT,
    "home": (_is_path, "the path of a folder, or the name of a kept home"),
    "access": (_list_of(_is_text), "a list of public SSH keys"),
    "verify": _TEXT,
    "speed": _TEXT,
    "max_executions": (_is_whole, "a whole number"),
    "max_fee_bps": (_is_whole, "a whole number"),
    "accept_unverified": _FLAG,
    "accept_unwitnessed": _FLAG,
    "outputs": (_maybe(lambda value: isinstance(value, Path)), "a Path"),
    "source": _TEXT,
    "ipfs_gateway": _TEXT,
    "s3_endpoint": _TEXT,
    "gateways": (_list_of(_is_text), "a list of URLs"),
    "public": _FLAG,
    "spot": _FLAG,
    "egress": (_list_of(_is_text), "a list of host names"),
    "sweep": (lambda value: isinstance(value, Mapping), "a mapping of names to lists of values"),
}
"""Field of `Job` -> check and what to write. Money, duration and seeds have checks of their own."""


def check_types(job: "Job") -> None:
    """Raises UsageError for the first field of a wrong type."""
    for name, (check, wanted) in _TYPES.items():
        value = getattr(job, name)
        if not check(value):
            raise UsageError(f"{name}: write {wanted}, not {_described(value)}")


def _described(value: object) -> str:
    """Names the type; in a collection, that of the first item."""
    kind = type(value).__name__
    items = list(value.items() if isinstance(value, Mapping) else ()) or (
        list(value) if isinstance(value, list | tuple) else []
    )
    if not items:
        return kind
    inner = items[0][1] if isinstance(value, Mapping) else items[0]
    return f"{kind} with {type(inner).__name__}"
