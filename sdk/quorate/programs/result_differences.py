"""Explains a run whose providers gave different results, with the two outputs side by side."""

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from quorate.base.errors import QuorateError, UsageError
from quorate.client.base.result import describe_exit
from quorate.client.base.session import ClientSession
from quorate.client.base.transfer import fetch_output, no_progress, sealed_of
from quorate.programs.tree_differences import Difference, tree_differences
from quorate.trust.charge_verification import CheckedVerdict
from quorate_content.comparators.report import DIFFERENT
from quorate_protocol.codec import canonical
from quorate_protocol.messages import job_spec, receipt
from quorate_protocol.messages.job_spec import COMPARED_BYTES_MAX
from quorate_protocol.messages.receipt import Check, ExecutionEvidence, Receipt
from quorate_protocol.messages.views import RunView
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Hash32

USUAL_CAUSES = (
    "Usual causes: the time, unseeded random numbers, process ids, threads, or the order of files"
)
UNVERIFIED = (
    "If results must differ, order with --verify unverified: one owner runs it, nobody checks it"
)
ROUNDED_PPB = 2  # another processor may add numbers in another order
Given = tuple[Hash32, int]


def is_escalated(view: RunView) -> bool:
    """Returns whether results of the first batch did not agree, so that more are computed."""
    return any(item.batch > 0 for item in view.executions)


def early_warning(run: str) -> str:
    """Returns the sentence for an open run whose results do not agree so far.

    The coordinator shows the results themselves only after the verdict (I8).
    """
    return (
        f"run {run}: its first results do not agree, so a further provider runs it and costs too; "
        f"`quorate stop {run}` ends it"
    )


async def describe_differences(
    session: ClientSession, checked: CheckedVerdict, folder: Path
) -> tuple[str, tuple[Difference, ...]]:
    """Fetches two different outputs into `folder` and returns sentences about them.

    Returns "" if all that were revealed are equal. What cannot be fetched is said.
    """
    pair = _two_results(checked)
    if pair is None:
        return "", ()
    count, first, second = pair
    spec = job_spec.decode(session.entry(checked.verdict.job_id).spec)
    bytes_max = min(spec.resources.output_bytes, COMPARED_BYTES_MAX)
    said = f"{count} different results came back. "
    statuses = [item.reveal.exit_status for item in (first, second) if item.reveal is not None]
    if statuses[0] != statuses[1]:
        words = " and the other ".join(describe_exit(status) for status in statuses)
        said += f"One program {words}. "
    try:
        differences = await _compare(session, (first, second), folder, bytes_max)
    except QuorateError as error:
        return f"{said}The outputs cannot be compared: {error}. ", ()
    if differences:
        listed = "; ".join(item.sentence for item in differences)
        said += f"{listed}. Both outputs are in {folder}. "
    said += f"{USUAL_CAUSES}. `quorate check` finds them on this machine. {UNVERIFIED}. "
    return said, differences


def revealed(checked: CheckedVerdict) -> list[ExecutionEvidence]:
    """The executions of a checked receipt whose results were revealed."""
    tree = canonical.parse(checked.receipt, receipt.RECEIPT_BYTES_MAX)
    assert isinstance(tree, dict), "the receipt was checked"
    executions = canonical.from_json(Receipt, tree["body"]).executions
    return [item for item in executions if item.reveal is not None]


def _two_results(
    checked: CheckedVerdict,
) -> tuple[int, ExecutionEvidence, ExecutionEvidence] | None:
    """Returns the number of different results, and two executions that differ."""
    found: dict[Given, ExecutionEvidence] = {}
    for item in revealed(checked):
        assert item.reveal is not None
        found.setdefault((item.reveal.output_digest, item.reveal.exit_status), item)
    if len(found) < 2:
        return None
    first, second, *_ = found.values()
    return len(found), first, second


async def _compare(
    session: ClientSession,
    pair: tuple[ExecutionEvidence, ExecutionEvidence],
    folder: Path,
    bytes_max: int,
) -> tuple[Difference, ...]:
    await asyncio.to_thread(shutil.rmtree, folder, True)
    for name, item in zip(("1", "2"), pair, strict=True):
        await fetch_output(session.api, sealed_of(item), folder / name, bytes_max, no_progress)
    return tuple(await asyncio.to_thread(tree_differences, folder / "1", folder / "2"))


async def distance_checks(session: ClientSession, body: Receipt) -> tuple[Check, ...]:
    """Fetches the outputs that a receipt compares, and compares them again. Their client may."""
    try:
        from quorate_content.comparators.worker import compare_apart
    except ModuleNotFoundError as error:
        raise UsageError("comparing outputs needs numpy: pip install numpy") from error
    places = {place for item in body.distances for place in (item.one, item.other)}
    compare, found = body.compare, list[Check]()
    with TemporaryDirectory(prefix="quorate-outputs-") as temporary:
        folder = Path(temporary)
        await fetch_executions(session, body, sorted(places), folder)
        for item in body.distances:
            pair = folder / f"{item.one}", folder / f"{item.other}"
            try:
                ppb = (await compare_apart(*pair, compare.comparator, compare.include)).ppb
            except Refused:
                ppb = DIFFERENT  # not re-raised: so it counts at the coordinator, too
            known = ppb if ppb < DIFFERENT else None
            is_same = known == item.ppb or (
                known is not None and item.ppb is not None and abs(known - item.ppb) <= ROUNDED_PPB
            )
            told = f"their distance is {known} ppb, and the receipt says {item.ppb}"
            found.append(Check(f"outputs[{item.one},{item.other}]", is_same, told))
    return tuple(found)


async def fetch_executions(
    session: ClientSession, body: Receipt, places: Iterable[int], folder: Path
) -> None:
    """Fetches the outputs of a receipt's executions into new folders, each named by its number."""
    for place in places:
        sealed, target = sealed_of(body.executions[place]), folder / f"{place}"
        await fetch_output(session.api, sealed, target, COMPARED_BYTES_MAX, no_progress)
