"""Shows the demo: live progress on a terminal, one line per milestone elsewhere, and a table at the
end.
"""

import time
from collections import Counter
from pathlib import Path
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quorate_devnet.demo.evidence import CHAIN, DEPLOYMENT, LIE, RECEIPT, DemoEvidence
from quorate_devnet.demo.market_watch import MarketSnapshot
from quorate_devnet.demo.outcome import ContentReport, DemoOutcome, is_accepted
from quorate_protocol.messages.views import RunView
from quorate_protocol.units import Address, usd

MILESTONES_SHOWN = 14


class Screen:
    """Progress and table on one console. A context manager around the live part."""

    def __init__(self, console: Console, names: dict[Address, str]) -> None:
        self.console = console
        self._names = names
        self._began = time.monotonic()
        self._lines: list[Text] = []
        self._said: set[str] = set()
        self._live = (
            Live(console=console, refresh_per_second=4, transient=True)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> "Screen":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            for line in self._lines:
                self.console.print(line)

    def milestone(self, sentence: str, style: str = "") -> None:
        """Shows a milestone. Each sentence is shown once."""
        if sentence in self._said:
            return
        self._said.add(sentence)
        line = Text(f"{time.monotonic() - self._began:6.1f} s  ") + Text(sentence, style=style)
        self._lines.append(line)
        if self._live is None:
            self.console.print(line)
        else:
            self._live.update(Group(*self._lines[-MILESTONES_SHOWN:]))

    def show(self, snapshot: MarketSnapshot, liar: Address) -> None:
        decided, lies = len(snapshot.decided()), snapshot.lies(liar)
        for run in lies:
            self.milestone(f"lie caught: {self._names[liar]} was outvoted in {run.name}", "yellow")
        case = snapshot.case
        if case is not None:
            named = snapshot.runs[case.job_id].name if case.job_id in snapshot.runs else "a job"
            self.milestone(f"a case is opened against {self._names[liar]} over {named}", "red")
            if case.jurors:
                self.milestone(
                    f"the beacon drew the jury: "
                    f"{', '.join(self._names[juror] for juror in case.jurors)}"
                )
            if case.convicted is not None:
                verdict = (
                    f"convicted, {usd(case.taken)} USD of stake burned"
                    if case.convicted
                    else "acquitted"
                )
                self.milestone(
                    f"the jury ran the job again: {verdict}",
                    "bold red" if case.convicted else "bold",
                )
        if decided == len(snapshot.runs) and decided:
            self.milestone(f"all {decided} runs have a verdict")
        if self._live is not None:
            self._live.update(
                Group(*self._lines[-MILESTONES_SHOWN:], Text(), self._runs(snapshot, liar))
            )

    def _runs(self, snapshot: MarketSnapshot, liar: Address) -> Text:
        text = Text("        ")
        for run in snapshot.runs.values():
            is_lie = any(item.provider == liar and item.agreed is False for item in run.executions)
            style = (
                "yellow"
                if is_lie
                else "green"
                if is_accepted(run)
                else "cyan"
                if run.executions
                else "dim"
            )
            text.append(f"{run.name} ", style)
        return text


def result_table(result: DemoOutcome, names: dict[Address, str]) -> Table:
    """Returns a table of at most 80 columns."""
    table = Table(
        title="What happened",
        caption=_caption(result),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name, justify in (
        ("provider", "left"),
        ("agreed", "right"),
        ("outvoted", "left"),
        ("strikes", "right"),
        ("court", "left"),
        ("burned USD", "right"),
        ("paid USD", "right"),
    ):
        is_name = name == "provider"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=is_name)  # type: ignore[arg-type]
    slashed, paid = result.slashed(), result.snapshot.paid()
    for provider, view in result.snapshot.providers.items():
        ran = result.snapshot.executions_of(provider)
        outvoted = [run for run, item in ran if item.agreed is False]
        table.add_row(
            names[provider],
            str(sum(1 for _, item in ran if item.agreed)),
            _named(outvoted),
            str(view.strikes),
            _in_court(result, provider),
            usd(slashed.get(provider, 0)),
            usd(paid.get(provider, 0)),
            style="red" if provider == result.liar else "",
        )
    return table


def evidence_lines(found: DemoEvidence, out: Path) -> list[str]:
    """Returns what the reader has to look at, and how to check it again."""
    here = (
        f"{found.here[:16]}…  {'equal' if found.here == found.true else 'ANOTHER RESULT'}"
        if found.here
        else f"not computed: {found.problem}"
    )
    held = "all hold" if not found.failed else f"FAILED: {', '.join(found.failed)}"
    return [
        f"{found.run}, SHA-256 of its pixels:",
        f"  two owners      {found.true[:16]}…",
        f"  the liar        {found.false[:16]}…",
        f"  this machine    {here}",
        f"  {out / LIE} shows the true tile, the false one, and where they differ",
        f"receipt of {found.run}: {found.checks} checks, also on chain: {held}",
        f"  with one byte flipped: refused by {found.refusal or 'NOTHING'}",
        "check it again:",
        f"  quorate devnet chain {out / CHAIN} &",
        f"  quorate verify {out / RECEIPT} \\",
        f"    --deployment {out / DEPLOYMENT} --rpc http://127.0.0.1:8545",
        f"picture: {out / 'render.png'}",
    ]


def _content(content: ContentReport) -> str:
    origin = "IPFS by bitswap" if content.kind == "ipfs" else "a gateway of the clients"
    came = Counter[str]()
    for source, count in content.bytes_by_source.items():
        came[source.partition(" ")[0]] += count
    shares = " · ".join(f"{count / 1e6:.1f} MB by {kind}" for kind, count in sorted(came.items()))
    return f"image and inputs: {origin} · {shares or 'nothing was fetched'}"


def _named(runs: list[RunView]) -> str:
    """Formats runs as: tile 0 3 7 · price 2"""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        kind, _, number = run.name.partition("-")
        kinds.setdefault(kind, []).append(number)
    return " · ".join(f"{kind} {' '.join(numbers)}" for kind, numbers in kinds.items()) or "–"


def _in_court(result: DemoOutcome, provider: Address) -> str:
    case = result.snapshot.case
    if case is None:
        return "–"
    if provider == case.accused:
        return "convicted" if case.convicted else "accused"
    return "juror" if provider in case.jurors else "–"


def _caption(result: DemoOutcome) -> str:
    gas = " · ".join(f"{name.replace('_', ' ')} {used:,}" for name, used in result.gas.items())
    lines = [
        f"gas: {gas}",
        (
            f"money conserved: {'yes' if result.conserved else 'NO'} · charged "
            f"{usd(result.charged)} "
            f"USD · option price {result.price} USD"
        ),
        _content(result.content),
        f"executor {result.executor} · transport {result.transport} · {result.seconds:.1f} s",
    ]
    return "\n".join(lines)
