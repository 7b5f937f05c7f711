"""The `quorate` command: its options and subcommands, and the turning of errors into sentences and
exit codes.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from quorate.cli import jobs, market_history, offers, runs, setup
from quorate.cli.context import Context, emit, from_environment, note
from quorate.cli.data import data_app
from quorate.cli.os_errors import explain_os_error
from quorate.cli.plugins import PluginGroup, Version
from quorate.errors import QuorateError, RefusedError, UsageError
from quorate.exit_codes import ExitCode

app = typer.Typer(
    cls=PluginGroup,
    help="Decentralised GPU compute with verified results and receipts that anyone can check.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    ctx: typer.Context,
    home: Annotated[
        Path | None, typer.Option(help="Folder of the client profile.", rich_help_panel="Profile")
    ] = None,
    devnet: Annotated[
        Path | None,
        typer.Option(
            help="Path of a running devnet's devnet.json; uses its client.",
            rich_help_panel="Profile",
        ),
    ] = None,
    client: Annotated[
        str,
        typer.Option(
            help="Name of the devnet's client; default: the first.", rich_help_panel="Profile"
        ),
    ] = "",
    password_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the passphrase on its first line (mode 0600).",
            rich_help_panel="Profile",
        ),
    ] = None,
    version: Version = False,
) -> None:
    """Sets the options that all commands share."""
    if devnet is not None and home is not None:
        raise UsageError("--home and --devnet both name a profile; give only one of them")
    ctx.obj = from_environment(home, devnet, client, password_file)
    if client and ctx.obj.devnet is None:
        raise UsageError("--client names a client of a devnet; add --devnet devnet/devnet.json")


for _name, _command in (
    ("init", setup.init),
    ("deposit", setup.deposit),
    ("apply", jobs.apply),
    ("run", jobs.run),
    ("plan", jobs.plan),
    ("validate", jobs.validate),
    ("ps", runs.ps),
    ("logs", runs.logs),
    ("events", runs.events),
    ("describe", runs.describe),
    ("get", runs.get),
    ("stop", runs.stop),
    ("spend", runs.spend),
    ("offers", offers.offers),
    ("classes", setup.classes),
    ("market", market_history.market),
    ("verify", setup.verify),
    ("exit-codes", setup.exit_codes),
):
    app.command(_name)(_command)
app.command("offer", hidden=True)(offers.offers)
app.add_typer(setup.image_app, name="image")
app.add_typer(data_app, name="data")


def answer(words: list[str]) -> int:
    """Runs one command line and returns its exit code. Lets KeyboardInterrupt and bugs through."""
    is_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    try:
        returned: Any = app(args=words, prog_name="quorate", standalone_mode=False)
    except QuorateError as error:
        return _report(error, is_json)
    except BrokenPipeError:  # the reader of our output is gone, which is not our failure
        return ExitCode.OK
    # sorted below; anything that is neither a parser error nor a refusal is raised again
    except Exception as error:  # noqa: BLE001
        return _foreign(error)
    return returned if isinstance(returned, int) else ExitCode.OK


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


def _foreign(error: Exception) -> int:
    """Handles errors of the command line parser and refusals from plugin commands. Anything else is
    a bug and is raised.
    """
    from quorate.errors import from_refused
    from quorate_protocol.refusals import Refused, Unavailable

    show, exit_code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if isinstance(error, Refused):
        return _report(from_refused(error), False)
    if isinstance(error, Unavailable):
        note(f"quorate: {error}")
        return ExitCode.UNAVAILABLE
    if type(error).__name__ == "Abort":
        return ExitCode.CANCELLED
    said = explain_os_error(error)
    if said:
        note(f"quorate: {said}")
        return ExitCode.UNAVAILABLE
    if callable(show) and isinstance(exit_code, int):
        show()
        return exit_code
    if isinstance(exit_code, int):
        return exit_code
    raise error


__all__ = ["Context", "answer", "app"]
