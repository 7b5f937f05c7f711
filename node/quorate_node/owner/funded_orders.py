"""Executions of orders with an escrow of their own: their evidence, and how it becomes pay.

Such an order is outside all tabs (PROTOCOL 6.74 to 6.81). Its coordinator shows the executions to
the contract `Jobs`. If it does not, their owners do, each its own.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from quorate_contracts.calls import Step, ask
from quorate_contracts.court_facts import RunEvidence, job_run
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated import jobs
from quorate_contracts.log_search import newest_logs, topic_of
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.limits import Limits
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Assignment, Commit, CommitReceipt, Order, Reveal
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, BlockNumber, Hash32, UnixSeconds
from quorate_runtime.chain import ChainClient
from quorate_runtime.chain.client import BlockId
from quorate_runtime.files import private_folder, write_atomic

FOLDER = "funded"  # in the provider's home
FILE_BYTES_MAX = 64 << 10
AGREE_LEAST = 2  # owners with one result


class FundedExecution(Struct, frozen=True):
    """All that was signed about one execution, as its file keeps it."""

    order: Order
    index: int
    blind: Hash32
    assignment: Envelope[Assignment]
    commit: Envelope[Commit]
    receipt: Envelope[CommitReceipt]
    reveal: Reveal
    revealed_at: UnixSeconds

    @property
    def lease(self) -> Hash32:
        return self.reveal.assignment_hash

    def job_id(self, domain: Domain) -> Hash32:
        return digest(domain, self.order)

    def run(self) -> jobs.Run:
        """As `Jobs.show` takes it."""
        run = RunEvidence(self.index, self.blind, self.assignment, self.commit)
        return job_run(run, self.receipt, self.reveal)


def keep(folder: Path, execution: FundedExecution) -> None:
    """Once. Blocks for a disk."""
    private_folder(folder)
    path = _path(folder, execution.lease)
    if not path.exists():
        write_atomic(path, canonical.encode(execution))


def kept(folder: Path) -> list[FundedExecution]:
    """Raises Refused if one is damaged."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            found.append(canonical.decode(FundedExecution, path.read_bytes(), FILE_BYTES_MAX))
        except Refused as refused:
            raise Refused(
                Code.MALFORMED,
                f"{path} is damaged ({refused.detail}): restore it from a backup, or remove it",
            ) from refused
    return found


def forget(folder: Path, execution: FundedExecution) -> None:
    """Removes the file of an execution."""
    _path(folder, execution.lease).unlink(missing_ok=True)


def _path(folder: Path, lease: Hash32) -> Path:
    return folder / f"{lease.hex()}.json"


class State(StrEnum):
    """How far an execution is from its pay."""

    UNFUNDED = "no escrow has money for it"
    SHOWABLE = "not shown yet"
    ALONE = "shown, and no other owner agrees yet"
    WINDOW = "owners agree, and others may still show theirs"
    PAYABLE = "the pay is due"
    OVER = "the escrow was paid out or given back"
    LOST = "its time passed without two owners who agree"


class Standing(Struct, frozen=True):
    """The state of an execution. `at` is when the next step can be taken; 0 if there is none."""

    state: State
    at: UnixSeconds = UnixSeconds(0)


class JobOnChain(Struct, frozen=True):
    """What the chain has of an order: its escrow, and the executions that were shown."""

    job: jobs.Job
    shown: tuple[jobs.Shown, ...] = ()

    def is_shown(self, provider: Address) -> bool:
        return any(item.provider == provider for item in self.shown)

    def do_owners_agree(self) -> bool:
        """Whether two executions have one result and determinism class."""
        groups = [item.group for item in self.shown]
        return any(groups.count(group) >= AGREE_LEAST for group in groups)


def standing(execution: FundedExecution, found: JobOnChain, now: int, limits: Limits) -> Standing:
    """Returns how far an execution is from its pay. Pure."""
    job, provider = found.job, execution.reveal.provider
    if not job.budget:
        return Standing(State.UNFUNDED)
    if job.is_over:
        return Standing(State.OVER)
    is_shown = found.is_shown(provider)
    if not is_shown and now <= job.until:
        return Standing(State.SHOWABLE, _show_at(execution, job, limits))
    if not found.do_owners_agree():
        is_late = not is_shown or now > job.until
        return Standing(State.LOST) if is_late else Standing(State.ALONE, job.until)
    ready = UnixSeconds(min(job.until, job.last_shown + limits.evidence_window) + 1)
    return Standing(State.WINDOW if now < ready else State.PAYABLE, ready)


def _show_at(execution: FundedExecution, job: jobs.Job, limits: Limits) -> UnixSeconds:
    """Its coordinator has time before, unless the order was released."""
    patient = execution.revealed_at + limits.show_after
    return UnixSeconds(min(patient, job.until - limits.evidence_window))


def is_secured(execution: FundedExecution, job: jobs.Job, limits: Limits) -> bool:
    """Whether the escrow can pay, so that its coordinator owes nothing. One that is too small, or
    ends before its owner can show the execution, is none. A release leaves one window. Pure.
    """
    least = execution.revealed_at + limits.evidence_window
    return job.budget >= execution.order.budget and job.until >= least


def is_worthless(execution: FundedExecution, state: State, now: int, limits: Limits) -> bool:
    """Whether the evidence serves nothing any more. Pure."""
    if state in (State.OVER, State.LOST):
        return True
    assignment = execution.assignment.message
    ends = assignment.accept_by + assignment.max_duration + limits.escrow_evidence_age
    return state is State.UNFUNDED and now > ends


async def read_escrow(
    client: ChainClient, contracts: Contracts, execution: FundedExecution, block: BlockId
) -> jobs.Job:
    job_id = execution.job_id(contracts.deployment.domain())
    return await ask(client, contracts.jobs.job(execution.order.client, job_id), block)


async def read_job(
    client: ChainClient, contracts: Contracts, execution: FundedExecution
) -> JobOnChain:
    """Asks the chain for the escrow and what was shown, at its newest block."""
    job = await read_escrow(client, contracts, execution, "latest")
    if not job.count:
        return JobOnChain(job)
    place = Hash32(bytes(12) + execution.order.client)
    job_id = execution.job_id(contracts.deployment.domain())
    topics = (topic_of("Jobs", jobs.Shown), place, job_id)
    found: list[jobs.Shown] = []
    head, start = (await client.head()).number, BlockNumber(0)
    address = contracts.jobs.address
    async for _, logs in newest_logs(client, contracts, address, topics, start, head):
        events = (contracts.event(log.address, log.topics, log.data) for log in logs)
        found += [event for event in events if isinstance(event, jobs.Shown)]
        if len(found) >= job.count:
            break
    return JobOnChain(job, tuple(found))


def show_step(contracts: Contracts, execution: FundedExecution) -> Step:
    call = contracts.jobs.show(execution.order, execution.run())
    name = f"{contracts.jobs.address.hex()[:8]}/{execution.lease.hex()}"
    return Step(f"show/{name}", call)


def pay_step(contracts: Contracts, execution: FundedExecution, shown: Sequence[jobs.Shown]) -> Step:
    providers = sorted(item.provider for item in shown)
    call = contracts.jobs.pay(execution.order, providers)
    name = f"{contracts.jobs.address.hex()[:8]}/{execution.lease.hex()}/{len(providers)}"
    return Step(f"pay/{name}", call)
