"""Writes what a sweep found: `results.csv`, and a plot of the first metric.

Metrics are numbers that each program leaves in `/outputs/metrics.json`, or prints as its last line
of JSON. They come from strangers' machines, so they are bounded, and bad ones count as none.
"""

import csv
import json
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorate.cli.context import note
from quorate.job.quantities import format_amount

METRICS_FILE, METRICS_BYTES_MAX, METRICS_MAX = "metrics.json", 64 * 1024, 64
LINES_MAX = 100  # of a log's end in which JSON is looked for
CSV, PLOT = "results.csv", "results.png"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{0,63}", re.ASCII)
Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One run of a sweep. `exit_code` and `seconds` are None without a result."""

    params: Mapping[str, str]
    state: str
    exit_code: int | None = None
    charged: int = 0
    seconds: float | None = None
    metrics: Metrics = field(default_factory=dict)


def metrics_of(output: Path, log_end: str) -> Metrics:
    """Returns the metrics of one run, from its file or else from its log."""
    found = _numbers(_read(output / METRICS_FILE))
    if found:
        return found
    for line in reversed(log_end.splitlines()[-LINES_MAX:]):
        if line.lstrip().startswith("{") and (found := _numbers(line)):
            return found
    return {}


def write_results(folder: Path, rows: Sequence[SweepRow]) -> None:
    """Writes table and plot. What cannot be written is said, and changes no result."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_csv(folder / CSV, rows)
        note(f"results  {folder / CSV}")
    except OSError as error:
        note(f"{folder / CSV} was not written: {error.strerror}")
        return
    metric, param = _first_metric(rows), _first_param(rows)
    if not metric or not param:
        return
    try:
        _plot(folder / PLOT, rows, metric, param)
        note(f"plot     {folder / PLOT}: {metric} against {param}")
    except ImportError:
        note("for a plot of it: pip install 'quorate[plot]', then the same command again")
    except (OSError, ValueError, RuntimeError) as error:
        note(f"{folder / PLOT} was not written: {error}")


def _read(path: Path) -> str:
    """Returns the text of a regular file of moderate size, else ""."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""  # there is none
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        data = os.read(descriptor, METRICS_BYTES_MAX + 1) if is_file else b""
    finally:
        os.close(descriptor)
    return data.decode(errors="replace") if len(data) <= METRICS_BYTES_MAX else ""


def _numbers(text: str) -> Metrics:
    """Returns the numbers at the top of a JSON object, at most METRICS_MAX of them."""
    try:
        tree = json.loads(text) if len(text) <= METRICS_BYTES_MAX else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(tree, dict):
        return {}
    numbers: dict[str, float] = {}
    for name, value in tree.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if _NAME.fullmatch(name) and abs(value) < 1e300 and math.isfinite(value):
            numbers[name] = value
        if len(numbers) == METRICS_MAX:
            break
    return numbers


def _write_csv(path: Path, rows: Sequence[SweepRow]) -> None:
    params = list(rows[0].params)
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))[:METRICS_MAX]
    fixed = ["state", "exit_code", "cost_usd", "seconds"]
    taken = {*params, *fixed}
    shown = [f"metric.{name}" if name in taken else name for name in metrics]
    part = path.with_name(f".part-{path.name}")
    with part.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*params, *fixed, *shown])
        for row in rows:
            table.writerow(
                [
                    *row.params.values(),
                    row.state,
                    "" if row.exit_code is None else row.exit_code,
                    format_amount(row.charged).removesuffix(" USD"),
                    "" if row.seconds is None else f"{row.seconds:.3f}",
                    *(row.metrics.get(name, "") for name in metrics),
                ]
            )
    part.replace(path)


def _first_metric(rows: Sequence[SweepRow]) -> str:
    return next((name for row in rows for name in row.metrics), "")


def _first_param(rows: Sequence[SweepRow]) -> str:
    """Returns the first parameter whose values are numbers, and more than one."""
    for name in rows[0].params:
        values = {_number(row.params[name]) for row in rows}
        if None not in values and len(values) > 1:
            return name
    return ""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _plot(path: Path, rows: Sequence[SweepRow], metric: str, param: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = [row for row in rows if metric in row.metrics]
    points = [(float(row.params[param]), row.metrics[metric]) for row in found]
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.add_subplot()
    places = sorted({place for place, _ in points})
    means = [_mean([value for at, value in points if at == place]) for place in places]
    axes.plot(places, means, color="tab:blue", linewidth=1)
    axes.plot(*zip(*points, strict=True), "o", color="tab:blue")
    if places[0] > 0 and places[-1] >= 50 * places[0]:
        axes.set_xscale("log")
    axes.set_xlabel(param)
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    canvas.print_png(path)  # type: ignore[no-untyped-call]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
