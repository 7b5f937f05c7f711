"""Checks the receipt of each Verdict that this provider got, as client and `quorate verify` do.

The Verdict has the hash of its receipt, which the provider reads from the coordinator. It also
compares the receipt with what it signed and was sent itself. A receipt that fails
is kept as evidence in a file, and the provider takes no more work of that coordinator.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quorate_node.core import events
from quorate_node.core.events import EventSink
from quorate_node.core.execution import is_same_set
from quorate_node.core.phases import Done, Execution
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import Terms
from quorate_protocol.codec import canonical
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.receipt import RECEIPT_BYTES_MAX, Receipt
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.receipts import receipt_checks, receipt_pins
from quorate_protocol.rules.receipts.receipt_bill import paid_by_client
from quorate_protocol.rules.receipts.receipt_pins import Pins
from quorate_protocol.units import Address, Amount, Hash32, Round, Sequence, UnixSeconds
from quorate_runtime.files import private_folder, write_atomic
from quorate_runtime.keys.bls import verify_round
from quorate_runtime.keys.crypto import recover
from quorate_runtime.process.health import Board

LOOK_SECONDS = 2.0
ASK_AGAIN_FIRST_SECONDS = 2
ASK_AGAIN_LONGEST_SECONDS = 120
EVIDENCE_FILES_MAX = 64  # of one coordinator

FetchReceipt = Callable[[Hash32], Awaitable[bytes]]
"""Job id -> the receipt's file. Raises Refused or Unavailable while the coordinator shows none."""

log = logging.getLogger(__name__)


def _verify_round(key: bytes, number: int, signature: bytes) -> bool:
    return verify_round(key, Round(number), signature)


def check_receipt(execution: Execution, terms: Terms, data: bytes) -> Amount:
    """Returns what the client pays. Raises Refused with what does not hold, Unavailable for another
    Verdict than was sent.
    """
    body = _consistent(data)
    pins = Pins(
        terms.domain,
        terms.beacon.public_key,
        receipt_pins.timing_of(terms.beacon, terms.limits),
        terms.statement_keys.get(execution.coordinator),
    )
    failed = [check.detail for check in receipt_pins.checks(body, pins) if not check.is_good]
    if failed:
        raise _refusal(f"it differs from what this provider knows ({failed[0]})")
    compare(execution, body)
    return paid_by_client(body).get(execution.assignment_hash, Amount(0))


def _consistent(data: bytes) -> Receipt:
    tree = canonical.parse(data, RECEIPT_BYTES_MAX)
    report = receipt_checks.verify(canonical.canonical(tree), recover, _verify_round)
    if not report.valid or not isinstance(tree, dict):
        failed = "; ".join(f"{check.name} ({check.detail})" for check in report.failures[:4])
        raise _refusal(f"these checks fail: {failed}")
    return canonical.from_json(Receipt, tree["body"])


def compare(execution: Execution, body: Receipt) -> None:
    """Compares with what this provider signed and was sent. Raises as `check_receipt` does."""
    phase = execution.phase
    assert isinstance(phase, Done), "an execution without a Verdict has no receipt"
    told, said = phase.verdict.message, body.verdict.message
    if said.job_id != told.job_id:
        raise _refusal("it is of another job than the Verdict")
    if said.seq != told.seq:
        raise Unavailable(f"receipt: Verdict {told.seq} is not in it, but {said.seq}", 2.0)
    if said != told:
        raise _refusal("it has another Verdict than the one that was sent")
    if body.compare != execution.spec.compare:
        raise _refusal("it compares results in another way than the job's spec")
    named = [item.commit.message.assignment_hash for item in body.executions]
    if execution.assignment_hash not in named:
        raise _refusal("this provider's execution is not in it")
    own = body.executions[named.index(execution.assignment_hash)]
    if (own.accept.message, own.commit.message) != (execution.accept, phase.commit):
        raise _refusal("it has another Accept or Commit than this provider signed")
    shown = next(
        batch.message
        for batch in body.batches
        if execution.assignment_hash in [item.assignment_hash for item in batch.message.ordered]
    )
    if phase.commit_set is not None and not is_same_set(phase.commit_set.message, shown):
        raise _refusal("it has another CommitSet than the one for which this provider revealed")


def _refusal(why: str) -> Refused:
    return Refused(Code.EQUIVOCATION, f"receipt: {why}")


@dataclass(slots=True)
class VerdictChecks:
    """Checks the receipt of each Verdict. `folder` has those that failed, named by coordinator, so
    a restart knows them; the owner removes a file to work for it again.
    """

    core: ProviderCore
    actor: EventSink
    fetches: Mapping[Address, FetchReceipt]
    folder: Path
    faulting: Path
    board: Board
    clock: Clock
    _checked: dict[Hash32, Sequence] = field(default_factory=dict)  # lease -> seq of its Verdict
    _ask_at: dict[Hash32, tuple[UnixSeconds, int]] = field(default_factory=dict)
    _false: frozenset[str] = frozenset()

    def may_take_work(self, coordinator: Address) -> bool:
        """Whether no false receipt of this coordinator is in the folder."""
        return coordinator.hex() not in self._false

    async def run(self) -> None:
        while True:
            self.read_folder()
            for execution in list(self._due()):
                await self.look(execution)
            await self.clock.sleep(LOOK_SECONDS)

    def _due(self) -> Iterator[Execution]:
        """Forgets executions that are gone."""
        kept, now = self.core.executions, self.clock.now()
        self._checked = {lease: seq for lease, seq in self._checked.items() if lease in kept}
        for lease in [lease for lease in self._ask_at if lease not in kept]:
            del self._ask_at[lease]
            log.info("the coordinator showed no receipt of lease 0x%s in time", lease.hex())
        for lease, execution in kept.items():
            at, _ = self._ask_at.get(lease, (UnixSeconds(0), 0))
            phase = execution.phase
            if not isinstance(phase, Done) or at > now:
                continue
            if self._checked.get(lease) != phase.verdict.message.seq:
                yield execution

    async def look(self, execution: Execution) -> None:
        """Reads and checks one receipt, or asks again later."""
        fetch, lease = self.fetches.get(execution.coordinator), execution.assignment_hash
        phase = execution.phase
        assert isinstance(phase, Done), "only executions with a Verdict are due"
        told = phase.verdict.message
        if fetch is None:
            self._checked[lease] = told.seq
            return
        try:
            data = await fetch(told.job_id)
        except (Refused, Unavailable) as error:
            # Not re-raised: the receipt is stored soon after the Verdict was sent.
            log.debug("receipt of lease 0x%s: %s", lease.hex(), error)
            self._later(lease)
            return
        try:
            pay = await asyncio.to_thread(check_receipt, execution, self.core.terms, data)
        except Unavailable as error:
            log.debug("receipt of lease 0x%s: %s", lease.hex(), error)
            self._later(lease)
            return
        except Refused as refused:
            self._keep(execution, data, refused)
        else:
            await self.actor.submit(events.ReceiptChecked(lease, told.seq, pay))
            if lease in told.faulted:
                await asyncio.to_thread(self._note_fault, execution, data)
        self._checked[lease] = told.seq
        self._ask_at.pop(lease, None)

    def _later(self, lease: Hash32) -> None:
        _, tries = self._ask_at.get(lease, (0, 0))
        wait = min(ASK_AGAIN_LONGEST_SECONDS, ASK_AGAIN_FIRST_SECONDS << min(tries, 8))
        self._ask_at[lease] = (UnixSeconds(int(self.clock.now()) + wait), tries + 1)

    def _keep(self, execution: Execution, data: bytes, refused: Refused) -> None:
        """Keeps a false receipt, and takes no more work of its coordinator."""
        path = _write(self.folder, execution, data)
        name = execution.coordinator.hex()
        log.error(
            "coordinator 0x%s signed a false Verdict: %s. The evidence is %s", name, refused, path
        )
        self.read_folder()

    def _note_fault(self, execution: Execution, data: bytes) -> None:
        path = _write(self.faulting, execution, data)
        log.warning(
            "a Verdict faults this provider's lease %s: if its result is right, its receipt is "
            "evidence against the coordinator: %s",
            execution.lease_id,
            path,
        )

    def read_folder(self) -> None:
        """Learns from the files which coordinators get no more work done."""
        found = sorted(self.folder.glob("*-*.json")) if self.folder.is_dir() else []
        self._false = frozenset(path.name.partition("-")[0] for path in found)
        first = found[0] if found else None
        self.board.put(
            "receipts",
            f"a coordinator signed a false Verdict and gets no more work: verify {first}; "
            "remove the file to work for it again"
            if first
            else "",
        )


def _write(folder: Path, execution: Execution, data: bytes) -> Path:
    """Unless its coordinator has the most files there. Blocks for a disk."""
    private_folder(folder)
    name = execution.coordinator.hex()
    path = folder / f"{name}-{execution.lease_id}.json"
    if len(list(folder.glob(f"{name}-*"))) < EVIDENCE_FILES_MAX:
        write_atomic(path, data)
    return path
