"""Rows of the tables, made from the coordinator's state and its files. Pure."""

from collections.abc import Iterable, Iterator
from itertools import islice

from quorate_coordinator.core.model.accusations import Case
from quorate_coordinator.core.model.entities import Decided, Job
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.money import payees
from quorate_coordinator.core.phase_names import phase_name
from quorate_coordinator.status.ending_counts import ending_of
from quorate_protocol.codec import canonical
from quorate_protocol.messages.classes import Pool
from quorate_protocol.units import Address
from quorate_runtime.chain.types import Receipt

NAME_MAX, REGION_MAX, PURPOSE_MAX, PHASE_MAX = 63, 64, 200, 16
Row = dict[str, object]


def run_row(job: Job) -> Row:
    """`storage.archive.row_of` makes the same row of an archived run."""
    verdict = job.phase.verdict.message if isinstance(job.phase, Decided) else None
    outcome = verdict.outcome.name.lower() if verdict else None
    executions = sum(len(batch.members) for batch in job.batches)
    outvoted = 0
    if verdict is not None and outcome == "accepted":
        outvoted = sum(
            member not in verdict.group
            for batch in job.batches
            if not batch.is_repeat
            for member in batch.members
        )
    return {
        "job_id": job.id.hex(),
        "client": job.order.client.hex(),
        "name": plain_text(job.submission.terms.name, NAME_MAX),
        "pool": job.pool.id().hex(),
        "phase": phase_name(job.phase),
        "rule": job.ack.message.rule.name.lower(),
        "outcome": outcome,
        "ending": ending_of(job),
        "executions": executions,
        "audits": max(0, executions - 1),
        "outvoted": outvoted,
        "charged": 0 if job.is_escrowed else job.split.charged,  # its escrow pays
        "fee": job.split.fee,
        "created_at": job.created_at,
        "receipt_cid": job.receipt_cid,
    }


def provider_row(state: State, owner: Address) -> Row:
    provider, payee = state.providers[owner], payees.of(state, owner)
    return {
        "owner": owner.hex(),
        "region": plain_text(provider.offer.region, REGION_MAX) if provider.offer else "",
        "final": payee.final,
        "held": payee.held,
        "vouched": payee.vouched,
        "paid": payee.tab.paid,
        "locked": payee.tab.free,
        "faults": len(state.faults.get(provider.owner) or ()),
    }


def case_row(case: Case, seen_at: int) -> Row:
    return {
        "execution": case.execution.hex(),
        "case_id": None if case.case_id is None else case.case_id.hex(),
        "accused": case.accused.hex(),
        "phase": case.phase[:PHASE_MAX],
        "burned": case.burned,
        "is_convicted": None if case.is_convicted is None else int(case.is_convicted),
        "taken": case.taken,
        "seen_at": seen_at,
    }


def transaction_row(purpose: str, receipt: Receipt, seen_at: int) -> Row:
    return {
        "purpose": purpose[:PURPOSE_MAX],
        "kind": purpose.replace("/", "-").partition("-")[0][:16],
        "block": receipt.block,
        "succeeded": int(receipt.success),
        "gas_used": receipt.gas_used,
        "cost_wei": receipt.gas_used * receipt.gas_price_wei,
        "at": receipt.logs[0].block_time if receipt.logs else seen_at,
    }


def class_row(pool: Pool) -> Row:
    return {"pool": pool.id().hex(), "body": canonical.encode(pool).decode()}


def plain_text(text: str, most: int) -> str:
    """A stranger's text as every database takes it: cut, without NUL."""
    return text.replace("\x00", "")[:most]


def batched(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    left = iter(rows)
    while page := list(islice(left, size)):
        yield page
