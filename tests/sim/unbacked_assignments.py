"""Simulates a coordinator that sends assignments which its core did not decide.

One run slot may get two jobs, or one job a second primary. A node cannot see which job an
assignment belongs to, so it may take one that is never paid from a client's money. The node never
runs more than its slots hold. For everything that it commits it holds the coordinator's signed
Assignment and CommitReceipt, for which the bond is liable (PROTOCOL §6). What the client can rely
on is in `forgery`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import CommitEntry, CommitReceipt, CommitSet
from quorate_protocol.units import Hash32, Ppm, Round, Small, UnixSeconds
from quorate_protocol.values import replace
from sim.parties import DOMAIN, key

if TYPE_CHECKING:
    from sim.coordinator import CoordinatorDaemon

PATIENCE_SECONDS = 2.0


@dataclass(slots=True)
class UnbackedAssignments:
    """The assignments that no core knows, and the frames that belong to them."""

    daemon: CoordinatorDaemon
    leases: dict[Hash32, bytes] = field(default_factory=dict)  # assignment hash -> its owner
    committed: set[Hash32] = field(default_factory=set)
    declined: int = 0

    def follow(self, frame: frames.AssignmentSent) -> None:
        """Sometimes assigns a real job once more, to the same provider or to another."""
        random = self.daemon.random
        if (
            self.daemon.plan.unbacked_chance == 0
            or random.random() >= self.daemon.plan.unbacked_chance
        ):
            return
        owner = random.choice([frame.assignment.message.provider, *self.daemon.peers])
        until = UnixSeconds(self.daemon.now + self.daemon.plan.limits.accept_within)
        forged = replace(
            frame.assignment.message,
            assignment_id=Hash32(random.randbytes(32)),
            provider=owner,
            accept_by=until,
        )
        self.leases[digest(DOMAIN, forged)] = owner
        self._send(
            owner,
            frames.AssignmentSent(
                seal(DOMAIN, forged, key("statement").sign), frame.spec, frame.sources
            ),
        )

    def take(self, frame: frames.Frame) -> bool:
        """Whether a provider's frame is about such an assignment; then it was answered as usual."""
        match frame:
            case frames.AcceptSent(accept):
                return accept.message.assignment_hash in self.leases
            case frames.DeclineSent(decline):
                self.declined += decline.message.assignment_hash in self.leases
                return decline.message.assignment_hash in self.leases
            case frames.CommitSent(commit):
                if commit.message.assignment_hash in self.leases:
                    self._take_commit(
                        commit.message.assignment_hash, digest(DOMAIN, commit.message)
                    )
                    return True
                return False
            case frames.RevealSent(reveal):
                return reveal.assignment_hash in self.leases
            case _:
                return False

    def _take_commit(self, lease: Hash32, commit_hash: Hash32) -> None:
        if lease in self.committed:
            return
        self.committed.add(lease)
        owner, sign, now = self.leases[lease], key("statement").sign, self.daemon.now
        self._send(owner, frames.ReceiptSent(seal(DOMAIN, CommitReceipt(commit_hash, now), sign)))
        if self.daemon.random.random() < 0.5:
            some = Hash32(self.daemon.random.randbytes(32))
            entry = CommitEntry(lease, owner, commit_hash)  # type: ignore[arg-type]
            closed = CommitSet(
                some, Small(0), (entry,), (some,), Round(1), some, Ppm(0), (), some, some, now
            )
            self._send(owner, frames.CommitSetSent(lease, seal(DOMAIN, closed, sign)))

    def _send(self, owner: bytes, frame: frames.Frame) -> None:
        name, handle = self.daemon.peers[owner]  # type: ignore[index]
        data = frames.encode(frame)
        self.daemon.network.request(
            "coordinator", name, lambda: handle(data), lambda answer: None, PATIENCE_SECONDS
        )
