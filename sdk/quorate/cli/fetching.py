"""`quorate get`: one run or several, by names and wildcards."""

from pathlib import Path
from typing import Any

import typer

from quorate.base.errors import QuorateError, UsageError
from quorate.cli import attach
from quorate.cli.context import Context, emit, note
from quorate.cli.destinations import check_destination
from quorate.cli.run_state import fits
from quorate.client.market import Market
from quorate.client.run import Run

WILD = frozenset("*?[")
RUNS_MAX = 1_000


async def get_all(context: Context, words: list[str], output: Path | None, is_json: bool) -> None:
    """Gets each run and prints its result. Raises UsageError for a name without a run, and
    `typer.Exit` with the exit code of the first run that failed.
    """
    async with context.reading_market() as market:
        names, folder = _split(market, words, output)
        runs = await runs_named(market, names)
        check_destination(folder)
        if len(runs) == 1:
            wanted = folder or ordered_folder(market, runs[0])
            await attach.follow(context, runs[0], wanted, is_json)
            return
        exit_code, results = 0, []
        for run in runs:
            one = None if folder is None else folder / f"{run.name}-{run.job_id.hex()[:8]}"
            code, result = await _get_one(context, run, one, is_json)
            exit_code = exit_code or code
            results.append(result)
        if is_json:
            emit({"runs": results})
    raise typer.Exit(exit_code)


def ordered_folder(market: Market, run: Run) -> Path | None:
    """The folder that the order named, unless it is there already."""
    wanted = market.entry(run.job_id).outputs
    return None if wanted is None or wanted.exists() else wanted


def _split(market: Market, words: list[str], output: Path | None) -> tuple[list[str], Path | None]:
    """Returns (names of runs, directory). A last word that names no run is the directory."""
    if output is not None or len(words) < 2 or WILD & set(words[-1]):
        return words, output
    last = words[-1]
    if "/" not in last and any(fits(item.name, item.job_id, last) for item in market.entries()):
        return words, None
    return words[:-1], Path(last)


async def runs_named(market: Market, names: list[str]) -> list[Run]:
    """Returns this profile's runs of these names and wildcards, each once."""
    found: dict[bytes, Run] = {}
    for name in names:
        if WILD & set(name):
            ids = [item.job_id for item in market.entries() if fits(item.name, item.job_id, name)]
            if not ids:
                raise UsageError(f"run: {name[:80]!r} fits no run; see `quorate ps`")
            if len(ids) > RUNS_MAX:
                raise UsageError(f"run: {len(ids)} runs are named; at most {RUNS_MAX} at once")
            fitting = [await market.run(job_id) for job_id in ids]
        else:
            fitting = [await market.run(name)]
            market.entry(fitting[0].job_id)  # raises if another profile ordered it
        found |= {run.job_id: run for run in fitting}
    return list(found.values())


async def _get_one(
    context: Context, run: Run, folder: Path | None, is_json: bool
) -> tuple[int, dict[str, Any]]:
    """Returns (exit code, result or error as JSON). A run that failed does not end the others."""
    try:
        if folder is not None:
            folder.parent.mkdir(parents=True, exist_ok=True)
        return await attach.finished(context, run, folder, is_json)
    except QuorateError as error:
        # Not re-raised: the other runs are fetched too, and the exit code says that one failed.
        note(f"quorate: {error}")
        return int(error.exit_code), {"jobId": run.id, "error": str(error)}
