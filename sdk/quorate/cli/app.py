"""The `quorate` command: its options and subcommands, and the turning of errors into sentences and
exit codes.
"""

from typing import Any

import typer

from quorate.base.errors import QuorateError, RefusedError, UnavailableError, UsageError
from quorate.base.exit_codes import ExitCode
from quorate.cli.context import Context, emit, note
from quorate.cli.global_flags import Client, Devnet, Home, PasswordFile
from quorate.cli.missing_extras import explain_missing
from quorate.cli.os_errors import explain_os_error
from quorate.cli.parser_errors import explain_parser_error
from quorate.cli.plugins import PluginGroup, Version

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
    """Prints what may follow the words, one a line, for a shell."""
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
