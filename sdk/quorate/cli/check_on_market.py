"""The market half of `quorate check`: two owners run the job, and both outputs are fetched."""

import asyncio
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import typer

from quorate.base.errors import UsageError
from quorate.cli import attach
from quorate.cli.context import Context, note
from quorate.cli.jobs import order
from quorate.cli.terminal_text import plain
from quorate.client.base.result import Result
from quorate.client.market import Market
from quorate.job.job import Job
from quorate.programs.local_check import LocalCheck, LocalRun
from quorate.programs.tree_differences import tree_differences
from quorate.trust.receipt_verification import body_of
from quorate_content.comparators.report import PPB_ONE
from quorate_content.dag.cid import Codec, from_digest
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.units import Address, Amount, usd

TOLERANCE_MOST = "0.1"  # with more than a tenth, results of other inputs might agree
ALWAYS_AUDITED = "critical"  # else an established owner alone may run it


@dataclass(frozen=True, slots=True)
class Ordering:
    """The job is ordered at most `tries` times, until two determinism classes ran it."""

    context: Context
    yes: bool
    tries: int


@dataclass(frozen=True, slots=True)
class MarketCheck(LocalCheck):
    """Two results of the accepted group, of two determinism classes if it has them."""

    owners: tuple[Address, ...]
    hosts: tuple[str, ...]  # of these owners; the digest in hex if no offer names it now
    ppb: int  # how far the results are apart, by the receipt
    result: Result
    charged: Amount  # for all tries

    @property
    def is_mixed(self) -> bool:
        return len(set(self.hosts)) > 1

    @property
    def limit(self) -> str:
        if self.is_mixed:
            return "Two determinism classes ran it; other classes can be further apart"
        return (
            f"Both owners are of one determinism class, {self.hosts[0]}: this holds for that class "
            "only. --tries 5 orders again until two classes ran it"
        )

    def line(self) -> str:
        ran = zip(self.owners, self.hosts, strict=True)
        who = " and ".join(f"0x{owner.hex()[:12]} on {host}" for owner, host in ran)
        apart = f"{self.ppb / PPB_ONE:.1e} apart" if self.ppb else "equal"
        return f"{who}: {apart} by the receipt {self.result.receipt}; cost {usd(self.charged)} USD"

    def document(self) -> dict[str, Any]:
        return {
            "jobId": self.result.id,
            "receipt": str(self.result.receipt),
            "owners": [f"0x{owner.hex()}" for owner in self.owners],
            "hosts": self.hosts,
            "distancePpb": self.ppb,
            "chargedMicroUsd": self.charged,
        }


async def check_on_market(ordering: Ordering, job: Job, folder: Path, is_json: bool) -> MarketCheck:
    """Orders the job with the greatest tolerance. Both outputs come below `folder`.

    Raises as an order does, and NotVerifiedError that says what differs if no two results agreed.
    """
    if is_json and not ordering.yes:
        raise UsageError("--json cannot ask, so add --yes (see `quorate plan` for the cost first)")
    if job.compare == "text":
        raise UsageError("compare: --on-market measures numbers; write exact or numeric to try it")
    if find_spec("numpy") is None:
        raise UsageError("comparing outputs needs numpy: pip install numpy")
    wanted = replace(
        job,
        compare="numeric",
        tolerance=TOLERANCE_MOST,
        verify=ALWAYS_AUDITED,
        speed="",
        accept_unverified=False,
        escrow=False,
    )
    charged, tries = 0, 0
    async with ordering.context.market() as market:
        while True:
            tries += 1
            result = await _result(ordering, market, wanted, folder / f"{tries}", is_json)
            charged += result.charged
            found = await _read(market, result, folder / f"{tries}", Amount(charged))
            if not is_json:
                typer.echo(plain(found.line()))
            if found.is_mixed or tries == ordering.tries:
                return found


async def _result(
    ordering: Ordering, market: Market, job: Job, folder: Path, is_json: bool
) -> Result:
    if job.is_array:
        first = (await market.array(job))[0]
        job, plan = first.job, await market.plan_element(first)
    else:
        plan = await market.plan(job)
    run = await order(ordering.context, market, job, plan, ordering.yes, is_json)
    again = ordering.context.command(f"get {run.id[:14]}")
    note(f"run {run.id[:14]}; it continues if you leave, and costs: {again}")
    with attach.progress(is_json) as report:
        return await run.result(folder / "result", report, note)


async def _read(market: Market, result: Result, folder: Path, charged: Amount) -> MarketCheck:
    body = body_of(await asyncio.to_thread(result.receipt.read_bytes))
    assert body is not None, "the client checked and wrote it"
    group = [
        place
        for place, item in enumerate(body.executions)
        if item.commit.message.assignment_hash in result.verdict.group
    ]
    hosts = [item.accept.message.host for item in body.executions]
    pairs = combinations(group, 2)  # an audited group has two members
    one, other = max(pairs, key=lambda pair: hosts[pair[0]] != hosts[pair[1]])
    await market.fetch_executions(body, (one, other), folder)
    offered = [slot.host for view in await market.offers() for slot in view.offer.slots]
    names = {host.digest(): str(host) for host in offered}
    ran = [_ran(body.executions[place], folder / f"{place}") for place in (one, other)]
    differences = await asyncio.to_thread(tree_differences, ran[0].output, ran[1].output)
    return MarketCheck(
        first=ran[0],
        second=ran[1],
        differences=tuple(differences),
        owners=tuple(body.executions[at].assignment.message.provider for at in (one, other)),
        hosts=tuple(names.get(hosts[at], f"0x{hosts[at].hex()}") for at in (one, other)),
        ppb=_distance(body, one, other),
        result=result,
        charged=charged,
    )


def _ran(item: ExecutionEvidence, output: Path) -> LocalRun:
    assert item.reveal is not None, "it is of the accepted group"
    cid = from_digest(item.reveal.output_digest, Codec.DAG_PB)
    status, usage = item.reveal.exit_status, item.commit.message.usage_ms
    return LocalRun("", status, output, str(cid), b"", usage)


def _distance(body: Receipt, *pair: int) -> int:
    """By the receipt, which names one execution of each result."""
    results = [item.reveal and item.reveal.output_digest for item in body.executions]
    wanted = {results[place] for place in pair}
    named = ((item.ppb, {results[item.one], results[item.other]}) for item in body.distances)
    return next((ppb for ppb, both in named if ppb is not None and both == wanted), 0)
