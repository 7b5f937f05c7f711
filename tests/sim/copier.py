"""A provider that copies the commitments of others instead of running jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate_node.core.phases import Committed
from quorate_protocol.messages import frames
from quorate_protocol.messages.commitment import commitment, result_digest
from quorate_protocol.messages.signed import Commit, Reveal
from quorate_protocol.units import Hash32
from quorate_protocol.values import replace
from sim.parties import key

if TYPE_CHECKING:
    from sim.provider_effects import ProviderEffects


class Copier:
    """What one copying provider took from others. Copies are worthless (PROTOCOL §3)."""

    def __init__(self, provider: ProviderEffects) -> None:
        self.provider = provider
        self.copied: dict[Hash32, Commit] = {}  # own assignment -> the commit that it copied
        # own assignment -> what opens a commitment that it made in another provider's name
        self.borrowed: dict[Hash32, Reveal] = {}
        # frames of others that it can see; shared, set by the world
        self.wiretap: list[frames.Frame] = []

    def has(self, lease: Hash32) -> bool:
        """Whether the lease's commitment is a copy or in another's name."""
        return lease in self.copied or lease in self.borrowed

    def commit(self, mine: Commit) -> Commit:
        """Another provider's commitment for the own assignment, or the own result in another's
        name.

        Both are worthless, because a commitment contains the provider's name.
        """
        seen = [
            frame.commit.message for frame in self.wiretap if isinstance(frame, frames.CommitSent)
        ]
        others = [
            item
            for item in seen
            if item.class_id == mine.class_id and item.assignment_hash != mine.assignment_hash
        ]
        if mine.assignment_hash in self.borrowed or (
            mine.assignment_hash not in self.copied and self.provider.random.random() < 0.3
        ):
            return self._in_anothers_name(mine)
        if not others:
            return mine
        model = self.copied.setdefault(mine.assignment_hash, others[-1])
        return replace(mine, commitment=model.commitment, encrypted_output=model.encrypted_output)

    def _in_anothers_name(self, mine: Commit) -> Commit:
        lease = mine.assignment_hash
        phase = self.provider.core.executions[lease].phase
        if lease not in self.borrowed:
            assert isinstance(phase, Committed), "a Commit is sent by what has committed"
            self.borrowed[lease] = replace(
                phase.reveal,
                provider=key(
                    "owner", (self.provider.number + 1) % len(self.provider.plan.behaviours)
                ).address,
            )
        opened = self.borrowed[lease]
        result = result_digest(opened.exit_status, opened.output_digest)
        return replace(mine, commitment=commitment(lease, opened.provider, opened.salt, result))

    def reveal(self, lease: Hash32, tries: int) -> None:
        """Opens a copied commitment with the other's reveal as soon as that can be seen.

        A commitment in another's name is opened in that name.
        """
        if lease in self.borrowed:
            self.provider.send(frames.RevealSent(self.borrowed[lease]), lambda answer: None)
            return
        model = self.copied[lease].assignment_hash
        seen = [
            frame.reveal
            for frame in self.wiretap
            if isinstance(frame, frames.RevealSent) and frame.reveal.assignment_hash == model
        ]
        if seen:
            name = self.provider.random.choice(
                [seen[0].provider, self.provider.owner, self.provider.owner]
            )
            self.provider.send(
                frames.RevealSent(replace(seen[0], assignment_hash=lease, provider=name)),
                lambda answer: None,
            )
        elif tries:
            self.provider.schedule.after(
                0.5, self.provider.in_this_life(lambda: self.reveal(lease, tries - 1))
            )
