"""The flags that every command accepts, before its name or after it alike.

A group moves the flags that stand before a command's name behind that name. A command that does not
declare one of them gets it here, so each command's own parser reads them all.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from quorate.base.errors import UsageError
from quorate.cli.context import Context, from_environment

WITH_VALUE = ("--home", "--devnet", "--client", "--password-file", "--log-file")
WITHOUT_VALUE = ("--json", "--log-json")
Home = Annotated[Path | None, typer.Option("--home", help="Folder of the profile.")]
Devnet = Annotated[
    Path | None, typer.Option("--devnet", help="Path of a running devnet's devnet.json.")
]
Client = Annotated[
    str, typer.Option("--client", help="Name of the devnet's client (default: the first).")
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", help="File with the passphrase on its first line (mode 0600)."),
]
PROFILE: dict[str, tuple[Any, Any]] = {
    "home": (Home, None),
    "devnet": (Devnet, None),
    "client": (Client, ""),
    "password_file": (PasswordFile, None),
}
"""Name of the parameter -> (annotation, default) of the flags that choose a profile."""


class CommandGroup(TyperGroup):
    """A group of commands whose options may also stand before the command's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest: list[str] = super().parse_args(ctx, moved(list(args)))
        return rest

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command of the first word. Raises UsageError with the nearest names."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UsageError(self._unknown(ctx, args[0]))
        return super().resolve_command(ctx, args)

    def _unknown(self, ctx: Any, word: str) -> str:
        from difflib import get_close_matches

        near = get_close_matches(word, self.list_commands(ctx), n=2)
        group = ctx.command_path
        if not near:
            return f"{group} has no command {word[:40]!r}; see `{group} --help`"
        meant = " or ".join(f"`{group} {name}`" for name in near)
        return f"{group} has no command {word[:40]!r}; did you mean {meant}?"


def moved(words: list[str]) -> list[str]:
    """Returns the words with the leading global flags behind the first word that is no flag."""
    at = 0
    while at < len(words):
        name, equals, _ = words[at].partition("=")
        if name in WITHOUT_VALUE and not equals:
            at += 1
        elif name in WITH_VALUE:
            at += 1 if equals else 2
        else:
            break
    if 0 < at < len(words) and not words[at].startswith("-"):
        return [words[at], *words[:at], *words[at + 1 :]]
    return words


def of_client(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a command of the client that also takes the flags of a profile, and has a Context."""

    def call(given: dict[str, Any], ctx: typer.Context, values: dict[str, Any]) -> Any:
        ctx.obj = _context(ctx, **given)
        return function(**values)

    return _with(function, call)


def of_program(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a command of another program that takes the flags of a profile too.

    A passphrase that the command does not need is ignored. Any other flag that the command does
    not declare is refused.
    """

    def call(given: dict[str, Any], ctx: typer.Context, values: dict[str, Any]) -> Any:
        given.pop("password_file", None)
        for flag, value in given.items():
            if value:
                raise UsageError(
                    f"--{flag}: `{ctx.command_path}` does not use it; leave it out, or see "
                    f"`{ctx.command_path} --help`"
                )
        return function(**values)

    return _with(function, call, is_hidden=True, owner=name)


def _with(
    function: Callable[..., Any],
    call: Callable[[dict[str, Any], typer.Context, dict[str, Any]], Any],
    is_hidden: bool = False,
    owner: str = "",
) -> Callable[..., Any]:
    """Returns `function` with the flags that it lacks, which go to `call` by name."""
    known = inspect.signature(function, eval_str=True)
    declared, context_name = _declared(known), _context_name(known)
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=_shown(kind, is_hidden),
        )
        for name, (kind, default) in PROFILE.items()
        if f"--{name.replace('_', '-')}" not in declared
    ]
    own = list(known.parameters.values())
    if not context_name:
        first = inspect.Parameter.POSITIONAL_OR_KEYWORD
        own.insert(0, inspect.Parameter("typer_context", first, annotation=typer.Context))

    @wraps(function)
    def command(**values: Any) -> Any:
        given = {item.name: values.pop(item.name) for item in added}
        context = values[context_name] if context_name else values.pop("typer_context")
        return call(given, context, values)

    parameters = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own] + added
    command.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    del command.__wrapped__
    return command


def _declared(signature: inspect.Signature) -> set[str]:
    names = set()
    for item in signature.parameters.values():
        for info in get_args(item.annotation)[1:]:
            declared = getattr(info, "param_decls", None)
            names |= set(declared or (f"--{item.name.replace('_', '-')}",))
    return names


def _context_name(signature: inspect.Signature) -> str:
    parameters = signature.parameters.values()
    return next((item.name for item in parameters if item.annotation is typer.Context), "")


def _shown(kind: Any, is_hidden: bool) -> Any:
    from copy import copy

    base, info = get_args(kind)[0], copy(get_args(kind)[1])
    info.hidden = is_hidden
    return Annotated[base, info]


def _context(
    ctx: typer.Context,
    home: Path | None = None,
    devnet: Path | None = None,
    client: str = "",
    password_file: Path | None = None,
) -> Context:
    """Builds the context of a client's command. Raises UsageError for two profiles at once."""
    if devnet is not None and home is not None:
        raise UsageError("--home and --devnet both name a profile; give only one of them")
    context = from_environment(home, devnet, client, password_file)
    if client and context.devnet is None:
        raise UsageError("--client names a client of a devnet; add --devnet devnet/devnet.json")
    return context
