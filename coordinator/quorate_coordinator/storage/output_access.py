"""Decides who may read a sealed output: its provider, and its client once that is charged;
everybody once a `public` run is final.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from quorate_coordinator.core.archived_run import ArchivedRun, committed_output
from quorate_coordinator.core.jobs import log_reads
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.state import State
from quorate_coordinator.storage.archive import FileArchive, Readers
from quorate_coordinator.storage.document_readers import is_published
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, Hash32

log = logging.getLogger(__name__)
CLAIMS_MAX = (
    4  # ciphertexts of one lease: an honest provider names one, and the same after a reconnect
)


@dataclass(slots=True)
class Outputs:
    """Which lease committed to which ciphertext, for the leases of the state."""

    state: State
    archive: FileArchive
    by_digest: dict[Hash32, Hash32] = field(default_factory=dict)
    claimed: dict[Hash32, set[Hash32]] = field(default_factory=dict)  # lease -> its ciphertexts
    # ciphertext -> lease: those that `Staging` still counts for their provider
    unkept: dict[Hash32, Hash32] = field(default_factory=dict)
    # ciphertexts that the archive has not yet been asked about
    unasked: set[Hash32] = field(default_factory=set)

    def load(self) -> None:
        """Claims that came while the archive was away are checked when somebody reads the
        output.
        """
        for lease in self.state.leases.values():
            digest = committed_output(lease)
            if (
                digest is not None
                and self.by_digest.setdefault(digest, lease.assignment_hash)
                == lease.assignment_hash
            ):
                self.claimed.setdefault(lease.assignment_hash, set()).add(digest)
                self.unkept[digest] = lease.assignment_hash
                self.unasked.add(digest)

    def claim(self, digest: Hash32, lease: Hash32) -> None:
        """Binds a ciphertext to the lease that commits to it.

        Salts make every ciphertext different. So a second lease with the same ciphertext wants to
        read another client's output, and gets `Refused(EQUIVOCATION)`.

        A claim stays if its sender disconnects before the core has answered. So one lease may make
        few claims, and an unknown lease none. While the archive cannot be read, claims are taken,
        because providers are paid by their commits (I3). Until it answers, nobody may read these
        outputs.
        """
        over, is_asked = self._over(digest)
        holder = self.by_digest.get(digest, lease) if over is None else over.assignment_hash
        if holder != lease:
            raise Refused(
                Code.EQUIVOCATION,
                "commit: encryptedOutput belongs to another execution; seal the output with a "
                "salt of its own",
            )
        if over is not None or lease not in self.state.leases:
            return
        claimed = self.claimed.setdefault(lease, set())
        if digest not in claimed and len(claimed) >= CLAIMS_MAX:
            raise Refused(
                Code.EQUIVOCATION,
                f"commit: {CLAIMS_MAX} other outputs were named for this execution",
            )
        claimed.add(digest)
        self.by_digest[digest] = lease
        self.unkept[digest] = lease
        if not is_asked:
            self.unasked.add(digest)

    def _over(self, digest: Hash32) -> tuple[Readers | None, bool]:
        try:
            return self.archive.readers(digest), True
        except Unavailable as error:
            # not re-raised: `may_read` asks again
            log.warning("a claim on an output is taken unchecked: %s", error)
            return None, False

    def give_up(self, digest: Hash32, lease: Hash32) -> None:
        found = self.state.leases.get(lease)
        if self.by_digest.get(digest) == lease and (
            found is None or committed_output(found) != digest
        ):
            self._let_go(digest, lease)
            self.unkept.pop(digest, None)

    def readers(self, digest: Hash32) -> Readers | None:
        """None when no lease is bound to it in the state or in the archive."""
        lease = self.state.leases.get(self.by_digest.get(digest, ZERO_HASH))
        if lease is None:
            return self.archive.readers(digest)
        return (
            Readers(lease.assignment_hash, lease.provider, self._client(lease), self._public(lease))
            if committed_output(lease) == digest
            else None
        )

    def may_read(self, digest: Hash32, account: Address | None) -> bool:
        """Raises `Unavailable`, and Refused to a client whose voucher does not cover the run
        yet.
        """
        if digest in self.unasked:
            over = self.archive.readers(digest)
            self.unasked.discard(digest)
            if (
                over is not None
                and self.by_digest.get(digest, over.assignment_hash) != over.assignment_hash
            ):
                self._let_go(digest, self.by_digest[digest])  # another lease had it from the start
        holder = self.by_digest.get(digest)
        lease = self.state.leases.get(holder) if holder is not None else None
        if lease is not None:
            job = self.state.jobs[lease.job_id]
            is_payer = job.is_paid_for and account == self._client(lease)
            if is_payer and not job.is_covered:
                raise log_reads.unpaid(self.state, job)
            return account == lease.provider or is_payer or self._public(lease)
        over = self.archive.readers(digest)
        return over is not None and over.has(account)

    def forget(self, runs: Sequence[ArchivedRun]) -> None:
        for run in runs:
            for lease in run.leases:
                for digest in tuple(self.claimed.get(lease.assignment_hash, ())):
                    self._let_go(digest, lease.assignment_hash)

    def _let_go(self, digest: Hash32, lease: Hash32) -> None:
        del self.by_digest[digest]
        self.unasked.discard(digest)
        self.claimed[lease].discard(digest)
        if not self.claimed[lease]:
            del self.claimed[lease]

    def _client(self, lease: Lease) -> Address:
        return self.state.jobs[lease.job_id].order.client

    def _public(self, lease: Lease) -> bool:
        job = self.state.jobs[lease.job_id]
        return is_published(job) and job.is_readable
