"""Shell completion: `quorate completion SHELL` prints a script, which asks `quorate __complete`.

The answers come from the command table, the parser and the profile's ledger. Nothing asks the
network or a key.
"""

import re
import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from quorate.base.errors import QuorateError
from quorate.cli.context import JsonFlag, emit, from_environment
from quorate.cli.global_flags import WITH_VALUE, moved

ASK = "__complete"
NAMES_MAX = 100
PLAIN_NAME = re.compile(r"[\w.:@%+-]+")  # what a shell takes without quotes
SCRIPTS = {
    "bash": f"""_quorate() {{
    local words
    words="$(quorate {ASK} "${{COMP_WORDS[@]:1:COMP_CWORD-1}}" 2>/dev/null)"
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _quorate quorate
""",
    "zsh": f"""#compdef quorate
_quorate() {{
    local -a found
    found=("${{(@f)$(quorate {ASK} "${{(@)words[2,CURRENT-1]}}" 2>/dev/null)}}")
    compadd -a found || _files
}}
compdef _quorate quorate
""",
    "fish": f"complete -c quorate -a '(quorate {ASK} (commandline -opc)[2..-1] 2>/dev/null)'\n",
}


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Your shell.")],
    json: JsonFlag = False,
) -> None:
    """Prints a script that completes commands, options and names of runs.

    For bash: quorate completion bash > ~/.local/share/bash-completion/completions/quorate
    """
    if json:
        emit({"shell": shell, "script": SCRIPTS[shell]})
    else:
        typer.echo(SCRIPTS[shell], nl=False)


def candidates(root: Any, words: list[str]) -> list[str]:
    command, rest = root, moved(words)
    context = root.make_context("quorate", [], resilient_parsing=True)
    while isinstance(command, TyperGroup) and rest:
        word, rest = rest[0], rest[1:]
        if word.startswith("-"):
            rest = rest[1:] if word in WITH_VALUE else rest
            continue
        inner = command.get_command(context, word)
        if inner is None:
            return []
        command, rest = inner, moved(rest)
        context = inner.make_context(word, [], parent=context, resilient_parsing=True)
    if isinstance(command, TyperGroup):
        shown = [name for name in command.list_commands(context) if not name.startswith("_")]
        return [*shown, *_options(command)]
    if words and words[-1] in WITH_VALUE:
        return []  # the shell completes a path
    runs = any(str(item.metavar).startswith("RUN") for item in command.params)
    return [*_options(command), *(_run_names(words) if runs else [])]


def _options(command: Any) -> list[str]:
    options = (item for item in command.params if item.param_type_name == "option")
    visible = (item for item in options if not getattr(item, "hidden", False))
    return sorted({name for item in visible for name in item.opts if name.startswith("--")})


def _run_names(words: list[str]) -> list[str]:
    """Returns the names of the profile's newest runs. An unreadable ledger has none."""
    given = dict(pairwise(words))
    home, devnet = given.get("--home"), given.get("--devnet")
    try:
        context = from_environment(
            Path(home) if home else None,
            Path(devnet) if devnet else None,
            given.get("--client", ""),
            None,
        )
        path = context.home_in_use() / "ledger.sqlite"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as ledger:
            rows = ledger.execute(
                "SELECT DISTINCT name FROM orders ORDER BY rowid DESC LIMIT ?", (NAMES_MAX,)
            ).fetchall()
        ledger.close()
    except (sqlite3.Error, OSError, QuorateError):
        return []  # not re-raised: a shell has no place for errors while a user types
    return [name for (name,) in rows if PLAIN_NAME.fullmatch(name)]
