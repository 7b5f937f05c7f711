"""The `quorate` command: its options and subcommands, and the turning of errors into sentences and
exit codes.
"""

import errno
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from quorate.base.errors import QuorateError, RefusedError, UnavailableError, UsageError
from quorate.base.exit_codes import ExitCode
from quorate.cli.context import Context, emit, note
from quorate.cli.global_flags import Client, Devnet, Home, PasswordFile
from quorate.cli.plugins import PluginGroup, Version

_NEGATIVE = re.compile(r"-[\d.]")  # the parser reads "-1.5" as the options -1, -. and -5
MONEY = frozenset({"amount", "price"})


def explain_parser_error(error: Exception) -> str:
    """Returns the sentence, or "" for an error of another kind.

    A group without a command prints its whole help instead, so it is none of these errors.
    """
    context: Any = getattr(error, "ctx", None)
    message = getattr(error, "format_message", None)
    if context is None or not callable(message) or type(error).__name__ == "NoArgsIsHelpError":
        return ""
    path = context.command_path
    option = getattr(error, "option_name", None)
    if type(error).__name__ != "NoSuchOption" or option is None:
        told = str(message()).strip().rstrip(".")
        return f"{told[:1].lower()}{told[1:]}; see `{path} --help`"
    field = _money_argument(context.command) if _NEGATIVE.fullmatch(str(option)) else ""
    if field:
        return f"{field}: an amount below zero is not possible; write one above zero, such as 1.25"
    known = [name for item in context.command.params for name in (*item.opts, *item.secondary_opts)]
    near = get_close_matches(option, [name for name in known if name.startswith("--")], n=1)
    hint = f"did you mean {near[0]}?" if near else f"see `{path} --help`"
    return f"{path} has no option {str(option)[:40]}; {hint}"


def _money_argument(command: Any) -> str:
    """Returns the name of the command's argument that is an amount of money, or ""."""
    arguments = (item.name for item in command.params if item.param_type_name == "argument")
    return next((name for name in arguments if name in MONEY), "")


FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
)
"""Errors about a named file. Other system errors count as bugs."""


def explain_os_error(error: BaseException) -> str:
    """Returns what is wrong with which file and what to type, or "" for other errors. Searches
    groups.
    """
    if isinstance(error, BaseExceptionGroup):
        return next((said for said in map(explain_os_error, error.exceptions) if said), "")
    if not isinstance(error, OSError):
        return ""
    name = "" if error.filename is None else str(error.filename)
    if error.errno in FULL:
        place = str(Path(name).parent) if name else "."
        return (
            f"the disk is full{f' ({name})' if name else ''}; check `df -h {place}`, free "
            "some space, and run the same command again"
        )
    if error.errno in CLOSED and name:
        return (
            f"{name}: {error.strerror}; check `ls -ld {Path(name).parent}`, or choose a "
            "folder that you may write (--home, --dir, --out)"
        )
    return ""


EXTRA_OF = {
    "docker": "node",
    "asyncssh": "rent",
    "mcp": "mcp",
    "pynvml": "node",
    "prometheus_client": "node",
    "sqlalchemy": "coordinator",
    "alembic": "coordinator",
    "aiosqlite": "coordinator",
    "greenlet": "coordinator",
    "asyncpg": "postgres",
    "eth": "devnet",
    "eth_tester": "devnet",
    "numpy": "attest",
    "libp2p": "p2p",
    "multiaddr": "p2p",
    "trio": "p2p",
    "cuda": "cuda12",
}
"""Package as it is imported -> the extra that installs it."""
PROGRAMS = ("node", "coordinator", "devnet")
SPECIAL = ("postgres", "p2p", "cuda12")
"""Extras that no program needs always, so a missing package of theirs names them."""


def explain_missing(error: ImportError, words: list[str]) -> str:
    """Returns what to install for a command line, or "" if the package is of no extra."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(package, "")
    if not extra:
        return ""
    program = next((word for word in words if word in PROGRAMS), "")
    wanted = program if program and extra not in SPECIAL else extra
    typed = f"quorate {program}" if program else "this command"
    return f"{typed} needs {package}, which is not installed; run pip install 'quorate[{wanted}]'"


app = typer.Typer(
    cls=PluginGroup,
    help="Decentralised GPU compute with verified results and receipts that anyone can check.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
    rich_markup_mode=None,
)


@app.callback()
def options(
    home: Home = None,
    devnet: Devnet = None,
    client: Client = "",
    password_file: PasswordFile = None,
    version: Version = False,
) -> None:
    """The options of every command, for the help. They may stand before or after its name."""


def answer(words: list[str]) -> int:
    """Runs one command line and returns its exit code. Lets KeyboardInterrupt and bugs through."""
    is_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    if words[:1] == ["__complete"]:
        return _complete(words[1:])
    try:
        returned: Any = app(args=words, prog_name="quorate", standalone_mode=False)
    except QuorateError as error:
        return _report(error, is_json)
    except BrokenPipeError:  # the reader of our output is gone, which is not our failure
        return ExitCode.OK
    except ImportError as error:
        told = explain_missing(error, words)
        if not told:
            raise
        return _report(UsageError(told), is_json)
    # sorted below; anything that is neither a parser error nor a refusal is raised again
    except Exception as error:  # noqa: BLE001
        return _foreign(error, is_json)
    return returned if isinstance(returned, int) else ExitCode.OK


def _complete(words: list[str]) -> int:
    from typer.main import get_command

    from quorate.cli.completion import candidates

    for candidate in candidates(get_command(app), words):
        typer.echo(candidate)
    return ExitCode.OK


def _report(error: QuorateError, is_json: bool) -> int:
    if is_json:
        code = (
            error.code
            if isinstance(error, RefusedError)
            else error.exit_code.name.lower().replace("_", "-")
        )
        emit({"error": {"code": code, "message": str(error)}, "exitCode": int(error.exit_code)})
    note(f"quorate: {error}")
    return error.exit_code


def _foreign(error: Exception, is_json: bool) -> int:
    """Handles errors of the command line parser and refusals from plugin commands. Anything else is
    a bug and is raised.
    """
    from quorate.base.errors import from_refused
    from quorate_protocol.refusals import Refused, Unavailable

    show, exit_code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if isinstance(error, Refused):
        return _report(from_refused(error), is_json)
    if isinstance(error, Unavailable):
        return _report(UnavailableError(str(error)), is_json)
    if type(error).__name__ == "Abort":
        return ExitCode.CANCELLED
    said = explain_os_error(error)
    if said:
        return _report(UnavailableError(said), is_json)
    told = explain_parser_error(error)
    if told:
        return _report(UsageError(told), is_json)
    if callable(show) and isinstance(exit_code, int):
        show()
        return exit_code
    if isinstance(exit_code, int):
        return exit_code
    raise error


__all__ = ["Context", "answer", "app"]
