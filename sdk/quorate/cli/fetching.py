"""`quorate get`: one run or several, by names and wildcards."""

from pathlib import Path
from typing import Any

import typer

from quorate.base.errors import QuorateError, UsageError
from quorate.cli import attach
from quorate.cli.context import Context, emit, note
from quorate.cli.run_state import fits
from quorate.client.base.client_ledger import OrderRecord
from quorate.client.market import Market

WILD = frozenset("*?[")
RUNS_MAX = 1_000


async def get_all(context: Context, words: list[str], output: Path | None, is_json: bool) -> None:
    """Gets each run and prints its result. Raises UsageError for a name without a run, and
    `typer.Exit` with the exit code of the first run that failed.
    """
    async with context.reading_market() as market:
        names, folder = _split(market, words, output)
        entries = await _entries(market, names)
        if folder is not None and folder.exists():
            raise UsageError(f"{folder} already exists; give a new directory for the output")
        if len(entries) == 1:
            await _get(context, market, entries[0], folder, is_json)
            return
        exit_code, results = 0, []
        for entry in entries:
            one = None if folder is None else folder / f"{entry.name}-{entry.job_id.hex()[:8]}"
            code, result = await _get_one(context, market, entry, one, is_json)
            exit_code = exit_code or code
            results.append(result)
        if is_json:
            emit({"runs": results})
    raise typer.Exit(exit_code)


def _split(market: Market, words: list[str], output: Path | None) -> tuple[list[str], Path | None]:
    """Returns (names of runs, directory). A last word that names no run is the directory."""
    if output is not None or len(words) < 2 or WILD & set(words[-1]):
        return words, output
    last = words[-1]
    if "/" not in last and any(fits(item.name, item.job_id, last) for item in market.entries()):
        return words, None
    return words[:-1], Path(last)


async def _entries(market: Market, names: list[str]) -> list[OrderRecord]:
    """Returns this profile's records of the named runs, each once."""
    found: dict[bytes, OrderRecord] = {}
    for name in names:
        if WILD & set(name):
            fitting = [item for item in market.entries() if fits(item.name, item.job_id, name)]
            if not fitting:
                raise UsageError(f"run: {name[:80]!r} fits no run; see `quorate ps`")
        else:
            fitting = [market.entry((await market.run(name)).job_id)]
        found |= {item.job_id: item for item in fitting}
    if len(found) > RUNS_MAX:
        raise UsageError(f"run: {len(found)} runs are named; at most {RUNS_MAX} at once")
    return list(found.values())


async def _get(
    context: Context, market: Market, entry: OrderRecord, folder: Path | None, is_json: bool
) -> None:
    run = await market.run(entry.job_id)
    wanted = folder or entry.outputs
    await attach.follow(
        context, run, None if wanted is None or wanted.exists() else wanted, is_json
    )


async def _get_one(
    context: Context, market: Market, entry: OrderRecord, folder: Path | None, is_json: bool
) -> tuple[int, dict[str, Any]]:
    """Returns (exit code, result or error as JSON). A run that failed does not end the others."""
    name = f"0x{entry.job_id.hex()}"
    try:
        run = await market.run(entry.job_id)
        if folder is not None:
            folder.parent.mkdir(parents=True, exist_ok=True)
        return await attach.finished(context, run, folder, is_json)
    except QuorateError as error:
        # Not re-raised: the other runs are fetched too, and the exit code says that one failed.
        note(f"quorate: {error}")
        return int(error.exit_code), {"jobId": name, "error": str(error)}
