"""Command groups of other programs (`quorate node ...`), found by entry point and loaded only
when they are used.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from quorate.errors import UsageError

GROUP = "quorate.commands"


def show_version(is_wanted: bool) -> None:
    """Prints which Quorate this is and ends the command."""
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
"""For the callback of every program: all come in one distribution, so all answer the same."""


def _found() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


class PluginGroup(TyperGroup):
    """The built-in commands, then those of installed programs. One that lacks its packages says
    so instead of breaking the rest.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, built-in ones first."""
        own = super().list_commands(ctx)
        return [*own, *sorted(_found().keys() - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by name; None when nobody has it."""
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
        # Not re-raised: only this group is unusable, and only when somebody uses it.
        command = get_command(_placeholder(point.name, str(error)))
    command.name = point.name
    return command


def _program(version: Version = False) -> None:
    """Options of another program's group; its help is its own."""


def _placeholder(name: str, cause: str) -> typer.Typer:
    app = typer.Typer(help=f"(not installed: {cause})", add_completion=False)

    # One command that takes whatever follows it: `quorate node init ...` must tell the cause, not
    # that `init` is unknown.
    @app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def missing() -> None:
        raise UsageError(
            f"quorate {name} is not installed here ({cause}): pip install 'quorate[{name}]'"
        )

    return app
