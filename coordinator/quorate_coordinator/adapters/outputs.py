"""Whose ciphertext is whose: a sealed output is read by the client that pays for it and the provider that made it, by nobody else.

Receipts are public and hold the salt that opens a ciphertext, so the ciphertext must not be. Derived from the state at start,
then kept by the gate as commits come in.
"""

from dataclasses import dataclass, field

from quorate_coordinator.core.state import State
from quorate_protocol import lease as leases
from quorate_protocol.lease import Lease
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32


@dataclass(slots=True)
class Outputs:
    """Ciphertext digest -> lease that committed to it, one each."""

    state: State
    by_digest: dict[Hash32, Hash32] = field(default_factory=dict)

    def load(self) -> None:
        """Reads the state, once it was replayed."""
        for lease in self.state.leases.values():
            digest = committed_output(lease)
            if digest is not None:
                self.by_digest.setdefault(digest, lease.hash)

    def claim(self, digest: Hash32, lease: Hash32) -> None:
        """Binds a ciphertext to the lease that commits to it. Salts make each unlike every other, so a second
        lease with the same one wants to read what is not its client's: `Refused(EQUIVOCATION)`.
        """
        holder = self.by_digest.setdefault(digest, lease)
        if holder != lease:
            raise Refused(Code.EQUIVOCATION, "commit: encryptedOutput belongs to another execution; seal the output with a salt of its own")

    def give_up(self, digest: Hash32, lease: Hash32) -> None:
        """The commit was refused after all."""
        found = self.state.leases.get(lease)
        if self.by_digest.get(digest) == lease and (found is None or committed_output(found) != digest):
            del self.by_digest[digest]

    def may_read(self, digest: Hash32, account: Address | None) -> bool:
        """Whether this account may read what has this digest; what is nobody's output is everybody's."""
        holder = self.by_digest.get(digest)
        lease = self.state.leases.get(holder) if holder is not None else None
        return lease is None or account in (lease.provider, self._client(lease))

    def _client(self, lease: Lease) -> Address:
        return self.state.jobs[lease.job_id].submission.order.message.client


def committed_output(lease: Lease) -> Hash32 | None:
    """Digest of the ciphertext that a lease is bound to."""
    phase = lease.phase
    if isinstance(phase, leases.Committed | leases.Closed | leases.Revealed | leases.Silent):
        return phase.commit.message.encrypted_output
    return None
