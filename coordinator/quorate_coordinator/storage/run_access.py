"""Decides who may read a run and the content that it names (PROTOCOL 4.60 to 4.64).

Its client reads all of it. A provider reads what it executes, for as long as it executes it, and
its own receipts later. Jurors and the accused read what an open case names. All others get the same
answer as for a run or CID that does not exist.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from quorate_content.dag.cid import Cid
from quorate_content.store.content_store import ContentStore
from quorate_coordinator.core.archived_run import ArchivedRun, committed_output
from quorate_coordinator.core.model.accusations import Case
from quorate_coordinator.core.model.entities import Decided, Job
from quorate_coordinator.core.model.lease import Accepted, Assigned
from quorate_coordinator.core.model.state import State
from quorate_coordinator.storage.document_readers import EVERYBODY, is_published
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.staging import named_by, owner_name
from quorate_protocol.codec.cids import cid_parts
from quorate_protocol.messages.views import RunView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32

NO_TOKEN = (
    "authorization: send a Quorate token of its client. A run is private unless its job says "
    "`public: true`"
)


class Share(Enum):
    """How much of a run somebody may read."""

    ALL = "all"
    EVIDENCE = "evidence"  # the view without name, money and output, and the receipt


@dataclass(slots=True)
class RunAccess:
    """`uploads` are the stores of clients' uploads."""

    state: State
    history: RunReader
    outputs: Outputs
    uploads: Sequence[ContentStore]

    # ---- runs

    def view(self, job_id: Hash32, account: Address | None) -> RunView:
        """Raises Refused as `share` does."""
        share = self.share(job_id, account)
        return self.history.view(job_id, share is Share.ALL)

    def receipt_cid(self, job_id: Hash32, account: Address | None) -> str | None:
        """None before the verdict. Raises Refused as `share` does.

        An executor reads the receipt from its Verdict on. One that is not final shows its digest
        alone, because only one provider executed.
        """
        job = self.state.jobs.get(job_id)
        if job is not None and isinstance(job.phase, Decided) and self._has_executed(job, account):
            return job.receipt_cid
        return self.view(job_id, account).receipt_cid

    def _has_executed(self, job: Job, account: Address | None) -> bool:
        leases = (self.state.leases[digest] for digest in job.leases)
        return any(item.provider == account and committed_output(item) for item in leases)

    def must_read_all(self, job_id: Hash32, account: Address | None) -> Address:
        """Raises Refused unless the reader may read events and logs of the run."""
        if self.share(job_id, account) is not Share.ALL:
            raise unknown_run(job_id)
        return account or EVERYBODY

    def share(self, job_id: Hash32, account: Address | None) -> Share:
        """Raises Refused(UNKNOWN) if this account may read nothing or there is no such run, with
        one text for both. Without a token raises Refused(BAD_SIGNATURE), whether or not there is
        such a run.
        """
        job = self.state.jobs.get(job_id)
        over = self.history.archived(job_id) if job is None else None
        if job is not None:
            found = self._share_of(job, account)
        else:
            found = None if over is None else _share_of_archived(over, account)
        if found is not None:
            return found
        raise Refused(Code.BAD_SIGNATURE, NO_TOKEN) if account is None else unknown_run(job_id)

    def _share_of(self, job: Job, account: Address | None) -> Share | None:
        if is_published(job) or account == job.order.client:
            return Share.ALL
        if account is None:
            return None
        is_final = isinstance(job.phase, Decided) and job.phase.is_final
        if is_final and self._has_executed(job, account):
            return Share.EVIDENCE
        named = (case for case in self._open_cases(account) if job.id == case.job_id)
        return Share.EVIDENCE if next(named, None) is not None else None

    def _open_cases(self, account: Address) -> Iterator[Case]:
        for case in self.state.cases.values():
            if case.is_convicted is None and (account in case.jurors or account == case.accused):
                yield case

    # ---- content

    async def may_read(self, cid: Cid, account: Address | None) -> bool:
        """Raises `Unavailable` while that cannot be known."""
        digest = Hash32(cid.digest)
        if account is not None:
            if await self._holds(cid, account):
                return True
            for job in self._jobs_at_hand(account):
                if digest in named_by(job) and await self._holds(cid, _client_of(job)):
                    return True
                if digest == job.order.spec_hash:
                    return True
            if self._is_in_evidence(digest, account):
                return True
        reader = account or EVERYBODY
        return (
            self.history.documents.may_read(digest, reader)
            or self.outputs.may_read(digest, account)
            or self.history.archive.has_document(digest, reader)
        )

    async def _holds(self, cid: Cid, account: Address) -> bool:
        """A run that only names the CID of another account's upload gets nothing by that."""
        name = owner_name(account)
        for store in self.uploads:
            if await store.is_pinned_for(cid, name):
                return True
        return False

    def _jobs_at_hand(self, account: Address) -> Iterator[Job]:
        """An execution is at hand from its Assignment until its Commit or its end."""
        for digest in self.state.leases_in_slots.get(account) or ():
            lease = self.state.leases.get(digest)
            if lease is not None and isinstance(lease.phase, Assigned | Accepted):
                yield self.state.jobs[lease.job_id]
        yield from self._jobs_in_court(account)

    def _jobs_in_court(self, account: Address) -> Iterator[Job]:
        """They stay in the state until the case is decided."""
        for case in self._open_cases(account):
            job = None if case.job_id is None else self.state.jobs.get(case.job_id)
            if job is not None:
                yield job

    def _is_in_evidence(self, digest: Hash32, account: Address) -> bool:
        receipts = (job.receipt_cid for job in self._jobs_in_court(account))
        return any(cid is not None and cid_parts(cid)[1] == digest for cid in receipts)


def _share_of_archived(over: ArchivedRun, account: Address | None) -> Share | None:
    if over.is_public or account == over.run.client:
        return Share.ALL
    if account is None or not over.run.is_final:
        return None
    own = (item for item in over.leases if item.provider == account and item.output is not None)
    return Share.EVIDENCE if next(own, None) is not None else None


def _client_of(job: Job) -> Address:
    return job.order.client


def unknown_run(job_id: Hash32) -> Refused:
    return Refused(
        Code.UNKNOWN,
        f"run 0x{job_id.hex()[:12]}: not found, or private: ask its client to order it with "
        "`public: true`, or use a profile of that account",
    )
