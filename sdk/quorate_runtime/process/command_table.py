"""A group of commands whose modules are imported when they are used: each start loads only one."""

import ast
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

Function = Callable[..., Any]


class TableGroup(TyperGroup):
    """The commands of a table: name -> MODULE:FUNCTION."""

    table: ClassVar[Mapping[str, str]] = {}

    @staticmethod
    def wrapped(function: Function) -> Function:
        """Returns what runs instead of a command's function."""
        return function

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        target = self.table.get(cmd_name)
        return None if target is None else command_of(cmd_name, imported(target), self.wrapped)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        limit = formatter.width - 6 - max(map(len, self.table))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, TyperCommand(name, help=_docstring(target)).get_short_help_str(limit))
                    for name, target in self.table.items()
                ]
            )


def _docstring(target: str) -> str | None:
    """Reads a function's docstring from the source, because an import would take long."""
    module, _, name = target.partition(":")
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, "the table names a module with a file"
    for item in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(item, ast.FunctionDef) and item.name == name:
            return ast.get_docstring(item)
    return None


def imported(target: str) -> Any:
    """Returns what MODULE:NAME names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def command_of(
    name: str, function: Function, wrapped: Callable[[Function], Function], is_hidden: bool = False
) -> Any:
    """Returns the parser's command of a function."""
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, hidden=is_hidden)(wrapped(function))
    command = get_command(alone)
    command.name = name
    return command


def program(name: str, help: str, table: Mapping[str, str]) -> typer.Typer:
    """Returns the application of a program with these commands."""
    kind = type(name, (TableGroup,), {"table": table})
    app = typer.Typer(cls=kind, help=help, no_args_is_help=True, add_completion=False)
    app.callback()(lambda: None)  # so that it is a group
    return app
