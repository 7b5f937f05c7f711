"""`quorate reputation`: what public logs say of providers, and what coordinators say."""

from pathlib import Path
from typing import Annotated, Any

import typer

from quorate.base.errors import UsageError
from quorate.base.exit_codes import ExitCode
from quorate.cli import rendering
from quorate.cli.context import Context, JsonFlag, context_of, emit, note, run_async
from quorate.cli.tables import table
from quorate.client import reputation_sources as sources
from quorate.client.base.profile import read_settings
from quorate.client.reputation_sources import Known, ReadLog, download
from quorate.job.quantities import parse_hex
from quorate_protocol.codec import canonical
from quorate_protocol.messages.views import ReputationView
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address
from quorate_runtime.http.urls import web_url

COLUMNS = ["PROVIDER", "LOG OF", "REVEALED", "TIME/QUOTE", "AUDITS", "FAULTS", "STRIKES", "K"]
NOT_PINNED = (
    "{source}: the key that signs this log is the log's own word; no profile here knows the "
    "coordinator"
)
GREW = "{source}: the log grew at each try, so the coordinator's own numbers were not compared"
UNKNOWN = "-"

Provider = Annotated[
    str, typer.Argument(help="Account of the provider, as 0x-hex; default: each that the log names")
]
Urls = Annotated[
    list[str] | None,
    typer.Option("--url", help="URL of a coordinator (default: the profile's); may be repeated."),
]
Logs = Annotated[
    list[Path] | None, typer.Option("--log", help="Path of a saved log; may be repeated.")
]
Save = Annotated[
    Path | None, typer.Option("--save", help="Path of the file that gets the downloaded log.")
]


def reputation(
    ctx: typer.Context,
    provider: Provider = "",
    url: Urls = None,
    log: Logs = None,
    save: Save = None,
    json: JsonFlag = False,
) -> None:
    """Computes reputations from the signed log of each coordinator, and compares them with its own
    numbers. With --log it needs the file alone.
    """
    context, wanted = context_of(ctx), _provider(provider)
    urls = _urls(context, url or [], bool(log))
    if save is not None and len(urls) != 1:
        raise UsageError("--save: name one coordinator, whose log is written")
    home = context.home_in_use()
    known = sources.known_of(home)
    read = [sources.read_file(path, known) for path in log or []]
    read += run_async(_downloads(urls, known, wanted, save))
    sources.check_one_log(read)
    shown = [wanted] if wanted else sorted({one for item in read for one in item.log.trusts})
    differences = [line for item in read for line in item.differences]
    if json:
        emit(_tree(read, shown))
    else:
        _print(read, shown)
    for item in read:
        _note(item)
    for line in differences:
        note(line)
    if differences:
        raise typer.Exit(int(ExitCode.INVALID_EVIDENCE))


async def _downloads(
    urls: list[str], known: Known | None, wanted: Address | None, save: Path | None
) -> list[ReadLog]:
    return [await download(url, known, wanted, save) for url in urls]


def _urls(context: Context, given: list[str], has_files: bool) -> list[str]:
    """Returns the coordinators to ask: those of the command line, else the profile's."""
    if not given:
        return [] if has_files else [read_settings(context.readable_home())["coordinator"]]
    try:
        return [web_url("--url", text, "http://127.0.0.1:7700") for text in given]
    except Refused as refused:
        raise UsageError(refused.detail) from refused


def _provider(text: str) -> Address | None:
    if not text:
        return None
    told = f"PROVIDER: {text[:64]!r} is no account; write 0x and 40 hex digits"
    return Address(parse_hex(text, 20, told))


def _tree(read: list[ReadLog], shown: list[Address]) -> dict[str, Any]:
    compared = [item for item in read if item.said is not None]
    return {
        "logs": [
            {
                "source": item.source,
                "coordinator": f"0x{item.log.head.coordinator.hex()}",
                "statementKey": f"0x{item.log.head.statement_key.hex()}",
                "lines": item.log.head.length,
                "root": f"0x{item.log.head.root.hex()}",
                "pinned": item.is_pinned,
                "acksChecked": item.acks,
                "compared": item.said is not None,
                "differences": list(item.differences),
                "providers": {
                    f"0x{one.hex()}": canonical.to_json(item.view(one))
                    for one in shown
                    if one in item.log.trusts
                },
                "imported": [canonical.to_json(view) for view in item.imported],
            }
            for item in read
        ],
        "equal": not any(item.differences for item in compared) if compared else None,
    }


def _print(read: list[ReadLog], shown: list[Address]) -> None:
    rows = [
        [f"0x{one.hex()}", rendering.short(item.log.head.coordinator), *_cells(item.view(one))]
        for one in shown
        for item in read
    ]
    for item in read:
        by = rendering.short(item.log.head.coordinator)
        rows += [
            [
                f"0x{found.provider.hex()}",
                f"{rendering.short(view.head.coordinator)} by {by}",
                *_cells(found.reputation),
            ]
            for view in item.imported
            if view.head is not None
            for found in view.providers
        ]
    table(COLUMNS, sorted(rows, key=lambda row: row[0]))


def _cells(view: ReputationView) -> list[str]:
    return [
        f"{view.answered}/{view.executions}",
        f"{view.took_seconds}/{view.quoted_seconds} s" if view.quoted_seconds else UNKNOWN,
        f"{view.audits_passed}/{view.checked}",
        str(view.checked - view.audits_passed),
        str(sum(len(trust.strikes) for trust in view.classes)),
        str(sum(trust.passed for trust in view.classes)),
    ]


def _note(item: ReadLog) -> None:
    for view in item.imported:
        if view.problem:
            note(f"{item.source}: its import of {view.url}: {view.problem}")
    if not item.is_pinned:
        note(NOT_PINNED.format(source=item.source))
    if item.said is not None and not item.differences:
        note(
            f"{item.source}: {item.log.head.length} lines are signed and whole; the coordinator's "
            f"own numbers of {len(item.said)} providers are the same"
        )
    elif item.said is None and item.source.startswith(("http://", "https://")):
        note(GREW.format(source=item.source))
