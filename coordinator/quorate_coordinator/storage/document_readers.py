"""Which accounts may read a run's spec, terms and receipt, by a document's digest.

Derived from the table `jobs`. The archive has the same rows for runs that have left the state.
"""

from collections import Counter

from quorate_coordinator.core.model.entities import Decided, Ended, Job
from quorate_coordinator.core.model.state import State
from quorate_protocol.codec.cids import cid_parts
from quorate_protocol.units import Address, Hash32

EVERYBODY = Address(bytes(20))
"""Stands for all readers in a row of a public run."""
Row = tuple[Hash32, Address]
"""(digest of a document, account that may read it)."""


def is_published(job: Job) -> bool:
    """Whether anybody may read the run: its spec says `public`, and the run is over and paid for.
    Before its verdict is final, a provider may still execute it as an audit (PROTOCOL 5.95).
    """
    phase = job.phase
    is_paid = isinstance(phase, Decided) and phase.is_final and job.is_covered
    is_over = isinstance(phase, Ended) or is_paid
    return is_over and job.submission.spec.public


def rows_of(
    digests: tuple[Hash32, ...], receipt_cid: str | None, client: Address, is_public: bool
) -> tuple[Row, ...]:
    """Its client, and everybody if it is published. `digests` are those of spec and terms."""
    if receipt_cid is not None:
        digests = (*digests, cid_parts(receipt_cid)[1])
    accounts = (client, EVERYBODY) if is_public else (client,)
    return tuple((digest, account) for digest in digests for account in accounts)


class DocumentReaders:
    """Answers for the runs in the state."""

    def __init__(self, state: State) -> None:
        self._state, self._changed = state, state.jobs.follow()
        self._rows: dict[Hash32, tuple[Row, ...]] = {}  # by job
        self._counts: Counter[Row] = Counter()
        self._named: Counter[Hash32] = Counter()  # documents, by runs and readers

    def refresh(self) -> None:
        for job_id in self._changed:
            job = self._state.jobs.get(job_id)
            rows = () if job is None else _rows_of_job(job)
            before = self._rows.pop(job_id, ())
            if rows:
                self._rows[job_id] = rows
            self._counts.update(rows)
            self._counts.subtract(before)
            self._named.update(digest for digest, _ in rows)
            self._named.subtract(digest for digest, _ in before)
            for row in before:
                if not self._counts[row]:
                    del self._counts[row]
                if not self._named[row[0]]:
                    del self._named[row[0]]
        self._changed.clear()

    def is_named(self, digest: Hash32) -> bool:
        self.refresh()
        return digest in self._named

    def may_read(self, digest: Hash32, account: Address) -> bool:
        self.refresh()
        return (digest, account) in self._counts or (digest, EVERYBODY) in self._counts


def _rows_of_job(job: Job) -> tuple[Row, ...]:
    order = job.order
    return rows_of(
        (order.spec_hash, order.terms_hash), job.receipt_cid, order.client, is_published(job)
    )
