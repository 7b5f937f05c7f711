"""Loads each command of `quorate` when it is used.

Built-in commands come from a table, groups of other programs (`quorate node ...`) by entry point.
"""

from collections.abc import Callable
from copy import copy
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.main import get_command, get_group

from quorate.base.errors import UsageError
from quorate.cli.command_table import BY_NAME, PLUGINS, PROGRAMS, ROWS, Row
from quorate.cli.global_flags import CommandGroup, of_client, of_program
from quorate_runtime.process.command_table import Function, TableGroup, command_of, imported

GROUP = "quorate.commands"


def show_version(is_wanted: bool) -> None:
    if is_wanted:
        from quorate_runtime.version import version_line

        typer.echo(version_line())
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=show_version, is_eager=True, help="Print the version and exit."
    ),
]
"""The version option for every program. All come in one distribution and print the same version."""


def _found() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


class PluginGroup(CommandGroup):
    """Lists the built-in commands, then those of installed programs. A program that lacks packages
    does not break the rest.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [*BY_NAME, *sorted(_found().keys() - BY_NAME.keys())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in BY_NAME:
            return _built_in(BY_NAME[cmd_name])
        point = _found().get(cmd_name)
        return None if point is None else _load(point)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(row.section, row.name, row.summary) for row in ROWS if not row.is_hidden]
        for name in sorted(_found().keys() - BY_NAME.keys()):
            known = PLUGINS.get(name)
            told = self.get_command(ctx, name).get_short_help_str() if known is None else known
            rows.append((PROGRAMS, name, told))
        width = max(len(name) for _, name, _ in rows)
        for section in dict.fromkeys(section for section, _, _ in rows):
            with formatter.section(section):
                formatter.write_dl(
                    [(name.ljust(width), told) for of, name, told in rows if of == section]
                )


def _built_in(row: Row) -> Any:
    found = imported(row.target)
    if not isinstance(found, typer.Typer):
        return command_of(row.name, found, of_client, row.is_hidden)
    command: Any = get_group(_with_flags(found, of_client))
    command.name = row.name
    return command


def _with_flags(group: typer.Typer, wrapped: Callable[[Function], Function]) -> typer.Typer:
    """Returns a copy of a group whose commands take the flags of every command too."""
    made, made.info = copy(group), copy(group.info)
    made.info.cls, made.rich_markup_mode = CommandGroup, None
    made.registered_commands = [copy(info) for info in group.registered_commands]
    for info in made.registered_commands:
        assert info.callback is not None, "each command has its function"
        info.callback = wrapped(info.callback)
    return made


def _load(point: EntryPoint) -> Any:
    command: Any
    try:
        group: typer.Typer = point.load()
        table = getattr(group.info.cls, "table", None)
        made = _with_flags(group, partial(of_program, name=point.name))
        if table is not None:
            wrapped = staticmethod(partial(of_program, name=point.name))
            kind = (CommandGroup, TableGroup)
            made.info.cls = type(point.name, kind, {"table": table, "wrapped": wrapped})
        if table is not None or made.registered_callback is None:
            made.callback()(_program)
        command = get_group(made)
    except ImportError as error:
        # Not re-raised: only this group is unusable, and only if it is used.
        command = get_command(_placeholder(point.name, str(error)))
    command.name = point.name
    return command


def _program(version: Version = False) -> None: ...


def _placeholder(name: str, cause: str) -> typer.Typer:
    app = typer.Typer(help=f"(not installed: {cause})", add_completion=False)

    # One command that accepts any arguments: `quorate node init ...` must show the cause, not that
    # `init` is unknown.
    @app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def missing() -> None:
        raise UsageError(
            f"quorate {name} is not installed here ({cause}); run pip install 'quorate[{name}]'"
        )

    return app
