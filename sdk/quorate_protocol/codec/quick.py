"""Constructors and changed copies of frozen values, quickened.

`dataclass(frozen=True)` sets each field by `object.__setattr__`, which looks the name up and
walks the class; the slot's own setter does neither and takes half the time, and building values
is an eighth of a step. Signature, defaults and result stay. Whoever declares that values of a
type come by the thousand (tables of a core, events, effects, frames) calls `quicken` once.

Values of many fields begin as a draft: an object of a class with the same slots that is not
frozen. The interpreter stores into it without a call for each field, a tenth of a setter's time,
and then it becomes one of the frozen class, before anybody has it.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from quorate_protocol.codec.canonical import memo

T = TypeVar("T")
DRAFTED_MIN = 4  # fields: to change an object's class twice costs as much as so many setters
_set_class = object.__dict__["__class__"].__set__


def quicken(kind: Any) -> None:
    """Quickens a declared type and all that its values are made of."""
    _quicken(kind)


def with_changes(value: T, changes: dict[str, object]) -> T:
    """`dataclasses.replace(value, **changes)`, for changes that no checker knows: copies slot by
    slot, then sets what changes.
    """
    changed: T = _replacer(type(value))(value, changes)
    return changed


if TYPE_CHECKING:
    # To a checker the two are one, so that it knows the fields.
    from dataclasses import replace as replace  # noqa: PLC0414
else:

    def replace(value, /, **changes):
        """`dataclasses.replace`, in a quarter of its time."""
        return _replacer(type(value))(value, changes)


@memo
def _replacer(kind: Any) -> Callable[[Any, dict[str, object]], Any]:
    own = fields(kind)
    if (
        not hasattr(kind, "__slots__")
        or hasattr(kind, "__post_init__")
        or not all(f.init for f in own)
    ):
        return lambda value, changes: dataclasses.replace(value, **changes)
    setters = {f.name: getattr(kind, f.name).__set__ for f in own}
    names: dict[str, Any] = {f"set_{name}": each for name, each in setters.items()}
    names |= {"kind": kind, "new": object.__new__, "setters": setters, "draft": _draft_of(kind)}
    if names["draft"] is not None:
        made = [
            "    made = draft()",
            *(f"    made.{name} = value.{name}" for name in setters),
            "    made.__class__ = kind",
        ]
    else:
        made = [
            "    made = new(kind)",
            *(f"    set_{name}(made, value.{name})" for name in setters),
        ]
    lines = [
        "def copy(value, changes):",
        *made,
        "    for name, changed in changes.items():",
        "        setters[name](made, changed)",
        "    return made",
    ]
    exec(
        compile("\n".join(lines), f"<copy of {kind.__name__}>", "exec"), names
    )  # of our own declared types only
    run: Callable[[Any, dict[str, object]], Any] = names["copy"]
    return run


@memo
def _draft_of(kind: Any) -> type | None:
    """A class laid out alike that is not frozen; None where it would not pay, or where a base
    has a say in how fields are set.
    """
    if len(fields(kind)) < DRAFTED_MIN or kind.__bases__ != (object,):
        return None
    return type(f"{kind.__name__}Draft", (), {"__slots__": kind.__slots__})


@memo
def _quicken(kind: Any) -> None:
    waiting, seen = [kind], set[Any]()
    while waiting:
        one = waiting.pop()
        one = getattr(one, "__supertype__", one)
        if one in seen:
            continue
        seen.add(one)
        waiting += get_args(one)
        origin = getattr(one, "__origin__", one)
        if isinstance(origin, type) and is_dataclass(origin):
            waiting += get_type_hints(origin, include_extras=True).values()
            _replace_constructor(origin)


def _replace_constructor(kind: Any) -> None:
    """Leaves alone what is not frozen and slotted, what checks itself after it was made, and
    what sets fields in its own way.
    """
    own = fields(kind)
    is_plain = (
        kind.__dataclass_params__.frozen
        and hasattr(kind, "__slots__")
        and not hasattr(kind, "__post_init__")
    )
    if (
        not is_plain
        or not own
        or not all(f.init and not f.kw_only for f in own)
        or kind.__init__.__name__ == "quick_init"
    ):
        return
    draft = _draft_of(kind)
    names: dict[str, Any] = {
        "_missing": MISSING,
        "_set_class": _set_class,
        "_draft": draft,
        "_kind": kind,
    }
    arguments, lines = [], []
    for f in own:
        names[f"set_{f.name}"] = getattr(kind, f.name).__set__
        default, value = "", f.name
        if f.default is not MISSING:
            names[f"default_{f.name}"], default = f.default, f"=default_{f.name}"
        elif f.default_factory is not MISSING:
            names[f"default_{f.name}"], default = f.default_factory, "=_missing"
            value = f"default_{f.name}() if {f.name} is _missing else {f.name}"
        arguments.append(f.name + default)
        lines.append(
            f"    set_{f.name}(self, {value})" if draft is None else f"    self.{f.name} = {value}"
        )
    if draft is not None:
        lines = ["    _set_class(self, _draft)", *lines, "    self.__class__ = _kind"]
    text = "\n".join([f"def quick_init(self, {', '.join(arguments)}):", *lines])
    exec(
        compile(text, f"<constructor of {kind.__name__}>", "exec"), names
    )  # of our own declared types only
    init: Callable[..., None] = names["quick_init"]
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    kind.__init__ = init
