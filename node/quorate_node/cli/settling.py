"""Shows the owner's executions of funded orders on chain, and has them paid."""

from msgspec import Struct

from quorate_contracts.calls import simulate, transact
from quorate_node.base.dates import date_text
from quorate_node.cli.owner_desk import OwnerDesk
from quorate_node.owner.funded_orders import (
    FOLDER,
    FundedExecution,
    State,
    kept,
    pay_step,
    read_job,
    show_step,
    standing,
)
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import UnixSeconds

NAME_LEAST = 6  # hexadecimal digits
REMEDY = {
    State.UNFUNDED: "its client funded none, so the coordinator owes the pay: quorate node status",
    State.ALONE: "wait: the others may still show theirs",
    State.OVER: "`quorate node withdraw` takes your balance out of Escrow",
    State.LOST: "nothing can be shown or paid any more",
}
"""What an owner can do about an execution for which nothing can be sent."""


class Row(Struct, frozen=True):
    """One execution. `at` is when its next step can be taken; 0 if there is none."""

    job: str
    lease: str
    state: State
    at: UnixSeconds


async def table(desk: OwnerDesk, job: str) -> list[Row]:
    """Asks the chain about all executions, or those of one job."""
    domain, rows = desk.contracts.deployment.domain(), []
    now = (await desk.client.head()).time
    for execution in _named(desk, job):
        found = await read_job(desk.client, desk.contracts, execution)
        limits = desk.contracts.deployment.constants()
        now_at = standing(execution, found, now, limits)
        job_id = execution.job_id(domain).hex()
        rows.append(Row(job_id, execution.lease.hex(), now_at.state, now_at.at))
    return rows


async def settle_one(desk: OwnerDesk, job: str) -> list[str]:
    """Sends what is possible now for the executions of a job. Raises Refused if that is nothing."""
    executions = _named(desk, job)
    if not executions:
        raise Refused(
            Code.UNKNOWN,
            f"{job[:70]}: no evidence of such a job is in {desk.config.path(FOLDER)}; "
            "`quorate node settle` lists those that are there",
        )
    if desk.keys.owner is None:
        raise Refused(
            Code.UNSUPPORTED,
            "the owner's key is not here, and only the daemon sends with the operator key: it "
            "shows and pays by itself",
        )
    sent, why = [], ""
    with desk.sender() as sender:
        for execution in executions:
            found = await read_job(desk.client, desk.contracts, execution)
            limits, now = desk.contracts.deployment.constants(), (await desk.client.head()).time
            now_at = standing(execution, found, now, limits)
            match now_at.state:
                case State.SHOWABLE:
                    step = show_step(desk.contracts, execution)
                case State.PAYABLE:
                    step = pay_step(desk.contracts, execution, found.shown)
                case State.WINDOW:
                    why = f"{now_at.state}: it can be paid from {date_text(now_at.at, now)} on"
                    continue
                case state:
                    why = f"{state}: {REMEDY[state]}"
                    continue
            await simulate(desk.client, step.call, desk.keys.account)
            await transact(sender, step.purpose, step.call)
            sent.append(step.call.text)
    if not sent:
        raise Refused(Code.WRONG_PHASE, f"{job[:70]}: {why}")
    return sent


def _named(desk: OwnerDesk, job: str) -> list[FundedExecution]:
    executions = kept(desk.config.path(FOLDER))
    name = job.lower().removeprefix("0x")
    if not name:
        return executions
    if len(name) < NAME_LEAST or any(letter not in "0123456789abcdef" for letter in name):
        raise Refused(
            Code.MALFORMED, f"{job[:70]!r}: name a job by {NAME_LEAST} or more of its hex digits"
        )
    domain = desk.contracts.deployment.domain()
    return [
        each
        for each in executions
        if each.job_id(domain).hex().startswith(name) or each.lease.hex().startswith(name)
    ]
