"""Command groups of other programs (`quorate node ...`), found by entry point and loaded when
used.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from quorate.errors import UsageError

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


class PluginGroup(TyperGroup):
    """Lists the built-in commands, then those of installed programs. A program that lacks packages
    does not break the rest.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of the commands, built-in ones first."""
        own = super().list_commands(ctx)
        return [*own, *sorted(_found().keys() - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command by name, or None."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = _found().get(cmd_name)
        return None if point is None else _load(point)


def _load(point: EntryPoint) -> Any:
    try:
        group = point.load()
        if group.registered_callback is None:
            group.callback()(_program)
        command = get_command(group)
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
