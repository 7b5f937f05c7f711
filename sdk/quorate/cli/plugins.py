"""Loads each command of `quorate` when it is used.

Built-in commands come from a table, groups of other programs (`quorate node ...`) by entry point.
"""

from copy import copy
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.main import get_command, get_group

from quorate.base.errors import UsageError
from quorate.cli.command_table import BY_NAME, PLUGINS, PROGRAMS, ROWS, Row
from quorate.cli.global_flags import CommandGroup, of_client, of_program

GROUP = "quorate.commands"


def show_version(is_wanted: bool) -> None:
    """Prints the version and ends the command."""
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
        """Returns the names of the commands, built-in ones first."""
        return [*BY_NAME, *sorted(_found().keys() - BY_NAME.keys())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command by name, or None. It imports the command's module."""
        if cmd_name in BY_NAME:
            return _built_in(BY_NAME[cmd_name])
        point = _found().get(cmd_name)
        return None if point is None else _load(point)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands by section, and imports none of this distribution's."""
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
    """Returns the parser's command of a row of the table."""
    module, _, name = row.target.partition(":")
    found = getattr(import_module(module), name)
    if isinstance(found, typer.Typer):
        command: Any = get_group(_with_flags(found))
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(row.name, hidden=row.is_hidden)(of_client(found))
        command = get_command(alone)
    command.name = row.name
    return command


def _with_flags(group: typer.Typer, program: str = "") -> typer.Typer:
    """Returns a copy of a group whose commands take the flags of every command too."""
    made, made.info = copy(group), copy(group.info)
    made.info.cls, made.rich_markup_mode = CommandGroup, None
    made.registered_commands, made.registered_groups = [], []
    for info in group.registered_commands:
        assert info.callback is not None, "each command has its function"
        one = copy(info)
        function = info.callback
        one.callback = of_program(function, program) if program else of_client(function)
        made.registered_commands.append(one)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None, "each inner group is a typer application"
        one_group = copy(inner)
        one_group.typer_instance = _with_flags(inner.typer_instance, program)
        one_group.cls = CommandGroup
        made.registered_groups.append(one_group)
    return made


def _load(point: EntryPoint) -> Any:
    command: Any
    try:
        group = _with_flags(point.load(), point.name)
        if group.registered_callback is None:
            group.callback()(_program)
        command = get_group(group)
    except ImportError as error:
        # Not re-raised: only this group is unusable, and only if it is used.
        command = get_command(_placeholder(point.name, str(error)))
    command.name = point.name
    return command


def _program(version: Version = False) -> None:
    """Options of another program's group, which has its own help."""


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
