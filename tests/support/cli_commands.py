"""Finds every command of `quorate`, of its groups and of the other programs."""

from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from quorate.cli.app import app


def commands() -> Iterator[tuple[str, Any]]:
    """Yields (the words after `quorate`, the parser's command) of each command that does a job."""
    yield from _below(get_command(app), "")


def without_json() -> list[str]:
    """Returns the commands that cannot print a JSON document."""
    return [
        words
        for words, command in commands()
        if not any("--json" in parameter.opts for parameter in command.params)
    ]


def _below(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(command, TyperGroup):
        yield words, command
        return
    context = command.make_context(words, [], resilient_parsing=True)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None, f"{words} {name} is listed"
        yield from _below(inner, f"{words} {name}".strip())
