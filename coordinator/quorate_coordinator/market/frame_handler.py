"""Decodes and verifies what providers send, and turns it into events.

The frame handler finds out which key signed a message. The core decides whether that key may sign
it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from quorate_content.store.content_store import ContentStore
from quorate_coordinator.base.storage_sizes import ciphertext_most
from quorate_coordinator.core.audit import assignment as assignments
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.core.money import payees
from quorate_coordinator.market.attestation_service import AttestationService
from quorate_coordinator.market.frame_limits import FrameLimits
from quorate_coordinator.market.observed_network import check_network
from quorate_coordinator.market.pending_refreshes import PendingRefreshes
from quorate_coordinator.market.sealed_checks import SealedChecks
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.limits import Limits
from quorate_protocol.messages import frames
from quorate_protocol.messages import offer as offers
from quorate_protocol.messages.commitment import check_opens
from quorate_protocol.messages.envelope import AnyEnvelope, Envelope, signer
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.signed import Assignment, Commit, Heartbeat, Reveal, Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, UnixSeconds, usd
from quorate_runtime.actor.actor import Actor
from quorate_runtime.keys.crypto import recover

log = logging.getLogger(__name__)
PROVEN_KEPT_MAX = 4096


@dataclass(slots=True)
class FrameHandler:
    """Handles frames of providers (`ports.Handler`)."""

    domain: Domain
    limits: Limits
    core: CoordinatorCore
    actor: Actor[ev.Event, Effect]
    store: ContentStore
    clock: Clock
    logs: RunLogs
    outputs: Outputs
    tolerance: FrameLimits
    on_older: Callable[[str], None] = lambda what: (
        None
    )  # called with evidence that this coordinator signed what its state does not know
    attestation: AttestationService | None = None
    # The IP address from which a connected provider is seen; "" if that is not known.
    seen_from: Callable[[Address], str] = lambda _: ""
    sealed_checks: SealedChecks = field(default_factory=SealedChecks)
    refreshes: PendingRefreshes = field(init=False)
    proven: set[Hash32] = field(default_factory=set)  # assignments of which a second Commit came

    def __post_init__(self) -> None:
        self.refreshes = PendingRefreshes(self.core.state)

    async def __call__(self, sender: str, data: bytes) -> bytes:
        """Handles one frame and answers Ok. Raises Refused, which travels back to the sender, or
        Unavailable if this sender must slow down.
        """
        self.tolerance.check(sender)
        try:
            await self._take(sender, frames.decode(data))
        except Refused:
            self.tolerance.offended(sender)
            raise
        return frames.encode(frames.Ok())

    async def _take(self, sender: str, frame: frames.Frame) -> None:
        match frame:
            case frames.LogsSent(assignment_hash, text):
                self._logs(sender, assignment_hash, text)
            case frames.RevealSent(reveal):
                await self._reveal(reveal)
            case frames.CommitSent(commit):
                await self._commit(commit)
            case frames.VoucherSent(voucher):
                self.tolerance.unasked(sender)
                self._voucher(voucher)
            case frames.AssignmentShown(assignment):
                self.tolerance.unasked(sender)
                self._assignment(assignment)
            case frames.OfferSent(offer):
                self.tolerance.unasked(sender)
                _check_sender(sender, offer.offer.provider, "offer")
                self._check_network(offer.offer.provider)
                await self.take_offer(offer)
            case frames.AttestationSent(body):
                if self.attestation is None:
                    raise Refused(Code.UNSUPPORTED, "this coordinator opens no challenges")
                await self.attestation.take(sender, body, self.tolerance.unasked)
            case frames.HeartbeatSent(heartbeat):
                self.tolerance.unasked(sender)
                _check_sender(sender, heartbeat.message.provider, "heartbeat")
                self._check_network(heartbeat.message.provider)
                await self._heartbeat(heartbeat)
            case _:
                await self.actor.submit(self._event(frame))

    def _check_network(self, owner: Address) -> None:
        """Refuses a provider that connects from another network than it registered. Without its
        heartbeats it gets no work.
        """
        provider = self.core.state.providers.get(owner)
        if provider is not None:
            check_network(owner, provider.network, self.seen_from(owner))

    async def take_offer(self, offer: OfferEnvelope) -> None:
        """Takes an offer of a connected provider or of gossip. A refresh gets no journal entry
        (`core.matching.heartbeats`).
        """
        now = UnixSeconds(int(self.clock.now()))
        key = offers.validate(offer, self.domain, recover, now, self.limits.offer_ttl)
        if not self._is_known(offer) and not self.refreshes.keep(offer, key):
            await self.actor.submit(ev.OfferReceived(offer, key))

    def _is_known(self, offer: OfferEnvelope) -> bool:
        """Whether the book holds this offer: gossip and connection both bring it."""
        provider = self.core.state.providers.get(offer.offer.provider)
        return (
            provider is not None
            and provider.offer == offer.offer
            and provider.offer_signature == offer.signature.sig
        )

    async def _heartbeat(self, heartbeat: Envelope[Heartbeat]) -> None:
        owner = heartbeat.message.provider
        refresh = self.refreshes.of(owner)
        await self.actor.submit(ev.HeartbeatReceived(heartbeat, self._signer(heartbeat), refresh))
        self.refreshes.carried(owner, refresh)

    def _event(self, frame: frames.Frame) -> ev.Event:
        match frame:
            case frames.AcceptSent(accept):
                return ev.AcceptReceived(accept, self._signer(accept))
            case frames.DeclineSent(decline):
                return ev.DeclineReceived(decline, self._signer(decline))
            case _:
                raise Refused(
                    Code.UNSUPPORTED, f"{type(frame).__name__} is not sent to a coordinator"
                )

    def _signer(self, envelope: AnyEnvelope) -> Address:
        return signer(self.domain, envelope, recover)

    def _voucher(self, voucher: Envelope[Voucher]) -> None:
        """Checks a voucher of this coordinator that its provider sends back. Only this coordinator
        can have signed it. If the state does not know it, the journal is too old.
        """
        message = voucher.message
        self._check_own(message.payer, voucher, "voucher")
        if payees.is_newer(self.core.state, message):
            known = usd(payees.of(self.core.state, message.payee).vouched)
            self.on_older(
                f"provider 0x{message.payee.hex()} has shown a voucher for "
                f"{usd(message.cumulative)} USD, and the journal knows {known}"
            )

    def _assignment(self, assignment: Envelope[Assignment]) -> None:
        """Checks an Assignment of this coordinator that its provider sends back, as a voucher."""
        message = assignment.message
        self._check_own(message.coordinator, assignment, "assignment")
        if assignments.is_newer(self.core.state, message):
            self.on_older(
                f"provider 0x{message.provider.hex()} has shown an Assignment of another journal "
                f"(acceptBy {message.accept_by}); stop any other coordinator with these keys"
            )

    def _check_own(self, account: Address, envelope: AnyEnvelope, what: str) -> None:
        """Refuses what another key signed: a provider's own word must not stop a coordinator."""
        rules = self.core.rules
        if account != rules.coordinator or self._signer(envelope) != rules.statement_key:
            raise Refused(
                Code.WRONG_SIGNER, f"{what}: not signed by this coordinator's statement key"
            )

    async def _commit(self, commit: Envelope[Commit]) -> None:
        message, key = commit.message, self._signer(commit)
        is_stored = await self.store.resolve(message.encrypted_output) is not None
        self.outputs.claim(message.encrypted_output, message.assignment_hash)
        try:
            await self.actor.submit(ev.CommitReceived(commit, key, is_stored))
        except Refused as refused:
            self.outputs.give_up(message.encrypted_output, message.assignment_hash)
            if refused.code in (Code.EQUIVOCATION, Code.NOT_STORED):
                await self._prove(commit, key)
            raise

    async def _prove(self, commit: Envelope[Commit], key: Address) -> None:
        """Tells the core of a second Commit, once for each assignment."""
        place = commit.message.assignment_hash
        if place in self.proven:
            return
        try:
            await self.actor.submit(ev.EquivocationSeen(commit, key))
        except Refused as refused:
            # Not re-raised: there is no other Commit, or the same one came under another key.
            log.debug("0x%s: %s", place.hex(), refused)
            return
        if len(self.proven) >= PROVEN_KEPT_MAX:
            self.proven.clear()
        self.proven.add(place)

    async def _reveal(self, reveal: Reveal) -> None:
        """Checks that the stored ciphertext opens, and then gives the reveal to the core. Cheap
        checks come first, so that strangers cost little.
        """
        lease = self.core.state.leases.get(reveal.assignment_hash)
        if lease is None:
            raise Refused(Code.UNKNOWN, f"assignment 0x{reveal.assignment_hash.hex()}")
        if isinstance(lease.phase, leases.Closed):
            check_opens(lease.phase.commit.message, reveal)
            await self._check_output(lease, lease.phase.commit.message.encrypted_output, reveal)
        await self.actor.submit(ev.RevealReceived(reveal, has_opened=True))

    async def _check_output(self, lease: leases.Lease, ciphertext: Hash32, reveal: Reveal) -> None:
        cid = await self.store.resolve(ciphertext)
        if cid is None:
            raise Refused(Code.NOT_STORED, "reveal: its ciphertext is not in the staging store")
        bound = ciphertext_most(self.core.state.jobs[lease.job_id].submission.spec.resources)
        async with await self.store.lease(cid) as held:
            await self.sealed_checks.check(held.path, reveal, bound)

    def _logs(self, sender: str, assignment_hash: Hash32, text: str) -> None:
        lease = self.core.state.leases.get(assignment_hash)
        if lease is None or "0x" + lease.provider.hex() != sender.lower():
            raise Refused(Code.NOT_YOURS, "logs: not of an assignment of this provider")
        if len(text) > frames.LOG_TEXT_MAX:
            raise Refused(Code.OVERSIZE, f"logs: at most {frames.LOG_TEXT_MAX} characters a frame")
        self.tolerance.logged(sender, len(text))
        job = self.core.state.jobs[lease.job_id]
        # Only the first execution's log is streamed: an auditor's would repeat it.
        if (
            lease.batch == 0
            and job.leases
            and all(
                item == lease.assignment_hash or self._gave_up(item)
                for item in job.leases[: lease.index]
            )
        ):
            self.logs.add(job.submission.order.message.client, job.id, assignment_hash, text)

    def _gave_up(self, digest: Hash32) -> bool:
        return isinstance(
            self.core.state.leases[digest].phase, leases.Declined | leases.Lapsed | leases.Stopped
        )


def _check_sender(sender: str, owner: Address, what: str) -> None:
    """Refuses what another account sends for a provider: on a connection, a provider speaks for
    itself alone. Otherwise a replayed heartbeat could make it alive.
    """
    if sender.lower() != "0x" + owner.hex():
        raise Refused(Code.NOT_YOURS, f"{what}: the provider sends it on its own connection")
