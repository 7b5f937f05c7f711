"""Derives flags from an operator's settings, which are the fields of a struct.

`Annotated[int, Option("What it does", "--flag")] = 5` says all that there is to say of a setting.
The settings file has the same fields.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar, get_origin, get_type_hints

import typer
from msgspec import Struct
from msgspec.structs import fields, replace

from quorate_protocol.codec.declared_types import camel
from quorate_protocol.refusals import Code, Refused

S = TypeVar("S", bound=Struct)
Command = Callable[..., None]
TYPED = ("COMMANDLINE", "ENVIRONMENT")


class Option(NamedTuple):
    """What is to be said of a setting. A tuple has a flag that is repeated."""

    help: str = ""
    flag: str = ""  # several with spaces between; "" = as the field is called
    least: int = 0
    most: int | None = None  # of a number, or of a tuple's length; None = no bounds
    # From (a text or a list of texts, the flag) to the value; None = typer reads it.
    read: Callable[[Any, str], object] | None = None
    show: Callable[[Any], str] = lambda _: ""  # the default as the text that `read` reads
    is_repeated: bool = False  # although it is one value
    is_range_shown: bool = True
    is_hidden: bool = False
    flag_of: str = ""  # the field whose flag sets this one too
    after: str = ""  # the field whose flag comes before this one; "" = the field before
    environment: str = ""  # the variable that stands for the flag; "" = none


def options(kind: type[Struct], base: type[Struct] = Struct) -> dict[str, Option]:
    """Returns the options of a struct by the names of their fields, without those of `base`,
    in the order of the flags.
    """
    inherited = getattr(base, "__struct_fields__", ())
    found = {
        name: item
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if name not in inherited
        for item in getattr(hint, "__metadata__", ())
        if isinstance(item, Option)
    }
    names = list(found)
    for name, option in found.items():
        if option.after:
            names.remove(name)
            names.insert(names.index(option.after) + 1, name)
    return {name: found[name] for name in names}


def with_flags(
    kind: type[Struct], base: type[Struct] = Struct, names: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """Gives a command the flags of a struct instead of its parameter `**typed`: all, or those of
    the fields `names` in that order.

    They come before the parameters that it takes by name only.
    """

    def decorate(command: Command) -> Command:
        own = list(inspect.signature(command).parameters.values())
        before = [item for item in own if item.kind is item.POSITIONAL_OR_KEYWORD]
        after = [item for item in own if item.kind is item.KEYWORD_ONLY]
        flags = {flag.name: flag for flag in _parameters(kind, base)}
        signature = inspect.Signature([*before, *(flags[name] for name in names or flags), *after])
        command.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it
        return command

    return decorate


def _parameters(kind: type[Struct], base: type[Struct]) -> Iterable[inspect.Parameter]:
    hints, defaults = get_type_hints(kind), {field.name: field.default for field in fields(kind)}
    for name, option in options(kind, base).items():
        if option.flag_of:
            continue
        taken, default = getattr(hints[name], "__supertype__", hints[name]), defaults[name]
        if option.is_repeated or get_origin(taken) is tuple:
            taken, default = list[str] | None, None
        elif option.read:
            taken, default = str, option.show(default)
        has_range = taken is int and option.most is not None and option.is_range_shown
        flag = typer.Option(
            *option.flag.split(),
            help=option.help,
            min=option.least if has_range else None,
            max=option.most if has_range else None,
            hidden=option.is_hidden,
            envvar=option.environment or None,
            show_envvar=False,
        )
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[taken, flag]
        )


def _flag(name: str, option: Option) -> str:
    return (option.flag or "--" + name.replace("_", "-")).split()[0]


def read_flags(
    kind: type[Struct], typed: dict[str, Any], base: type[Struct] = Struct
) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(kind)}
    values = {}
    for name, option in options(kind, base).items():
        value = typed[option.flag_of or name]
        if option.read and value in (None, [], option.show(defaults[name])):
            value = defaults[name]
        elif option.read:
            value = option.read(value, _flag(name, option))
        values[name] = value
    return values


def typed_words(kind: type[Struct], typed: dict[str, Any]) -> list[str]:
    """Returns the words of a command line that say what was typed."""
    words = []
    for name, option in options(kind).items():
        flag, value = _flag(name, option), typed[name]
        if isinstance(value, bool):
            words += [flag] * value
        else:
            values = value if isinstance(value, list) else [value]
            words += [f"{flag}={item}" for item in values if item is not None]
    return words


def named_fields(ctx: typer.Context, kind: type[Struct]) -> set[str]:
    """Returns the fields whose flags the user typed, and the other parameters that were typed."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    typed = {name for name, source in sources.items() if source and source.name in TYPED}
    return typed | {name for name, option in options(kind).items() if option.flag_of in typed}


def with_named(kept: S, typed: S, named: Iterable[str]) -> S:
    names = set(named)
    return replace(
        kept, **{name: getattr(typed, name) for name in kept.__struct_fields__ if name in names}
    )


def check_bounds(settings: Struct) -> None:
    """Raises Refused, which names the field, for a value out of its bounds."""
    for name, option in options(type(settings)).items():
        value = getattr(settings, name)
        size = len(value) if isinstance(value, tuple) else value
        if option.most is not None and not option.least <= size <= option.most:
            told = f"{size} is not between {option.least} and {option.most}"
            raise Refused(Code.MALFORMED, f"{camel(name)}: {told}")
