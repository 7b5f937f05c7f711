"""Decodes and verifies what providers send, and turns it into events.

It finds out which key signed a message. The core decides whether that key may sign it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.sealed import check_sealed
from quorate_coordinator.base.storage_sizes import ciphertext_most
from quorate_coordinator.core.audit import assignment as assignments
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.matching.offers import check_stake
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.core.model.entities import Rented
from quorate_coordinator.core.model.events import OfferRefresh
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.money import payees
from quorate_coordinator.market.attestation_service import AttestationService
from quorate_coordinator.market.frame_limits import FrameLimits
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_logs import Piece, RunLogs
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.limits import Limits
from quorate_protocol.messages import frames
from quorate_protocol.messages import offer as offers
from quorate_protocol.messages.commitment import check_opens
from quorate_protocol.messages.envelope import AnyEnvelope, Envelope, signer
from quorate_protocol.messages.offer import WITHDRAWN, OfferEnvelope, without_times
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.signed import Assignment, Commit, Heartbeat, Reveal, Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Seconds, UnixSeconds, usd
from quorate_runtime.actor.actor import Actor
from quorate_runtime.http.client_networks import address_of, is_public, registered_network
from quorate_runtime.keys.crypto import recover

# Opens the ciphertext of each execution once, however often its provider sends the Reveal.
#
# A commitment fixes salt and output, and a Commit fixes the ciphertext. So a second try gives the
# same answer as the first, and decrypting a large output is expensive.

ANSWERS_MAX = 8192
OPENED_SOON_BYTES = 256 << 20  # more takes a good part of the time to reveal
OPENED_PER_SECOND_LEAST, OPEN_SECONDS_LEAST = 10_000_000, 60


@dataclass(slots=True)
class _Answer:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_known: bool = False
    refused: Refused | None = None


class SealedChecks:
    """The newest answers, by `assignment_hash`. A restart forgets them."""

    def __init__(self, answers_max: int = ANSWERS_MAX) -> None:
        self._answers: dict[Hash32, _Answer] = {}
        self._answers_max = answers_max

    async def check(self, path: Path, reveal: Reveal, bytes_max: int) -> None:
        """A reveal that opens its commitment must open the ciphertext at `path` too, or Refused is
        raised. Other errors, such as of the disk, are not remembered.
        """
        answer = self._answers.setdefault(reveal.assignment_hash, _Answer())
        async with answer.lock:
            if not answer.is_known:
                await self._open(answer, path, reveal, bytes_max)
        self._forget_old()
        if answer.refused is not None:
            raise Refused(answer.refused.code, answer.refused.detail)

    async def _open(self, answer: _Answer, path: Path, reveal: Reveal, bytes_max: int) -> None:
        try:
            await asyncio.to_thread(
                check_sealed, path, reveal.salt, reveal.output_digest, bytes_max
            )
        except Refused as refused:
            answer.refused = refused  # not re-raised: `check` raises it, now and later
        answer.is_known = True

    def _forget_old(self) -> None:
        while len(self._answers) > self._answers_max:
            del self._answers[next(iter(self._answers))]


# Keeps refreshes of offers until the next heartbeat of their provider carries them.
#
# A refresh changes only the sequence number and the expiry of an offer that the state knows. Why
# it has no journal entry of its own, and what happens when it is lost, stands in
# `core.matching.heartbeats`.


@dataclass(slots=True)
class PendingRefreshes:
    """At most one refresh for each registered provider of the state."""

    state: State
    _pending: dict[Address, OfferRefresh] = field(default_factory=dict)

    def keep(self, envelope: OfferEnvelope, key: Address) -> bool:
        """Keeps a valid offer that `key` signed, if it is a refresh. True also for the offer that
        the state has. False if it is another one: then the core takes or refuses it.
        `Refused(STALE)` for one older than what is kept, and `Refused(OVER_STAKE)` as for a new
        offer.
        """
        offer = envelope.offer
        provider = self.state.providers.get(offer.provider)
        known = provider.offer if provider is not None else None
        if provider is None or known is None or key != provider.operator_key:
            return False
        if offer == known:
            return True  # it came over the connection and by gossip
        is_refresh = (
            offer.seq > known.seq
            and WITHDRAWN not in (offer.expires, known.expires)
            and without_times(offer) == without_times(known)
        )
        if not is_refresh:
            return False
        made = OfferRefresh(known.seq, offer.seq, offer.expires, envelope.signature.sig)
        kept = self._pending.get(offer.provider)
        is_older = kept is not None and kept.base_seq == known.seq and made.seq <= kept.seq
        if kept is not None and is_older and made != kept:
            raise Refused(Code.STALE, f"offer: seq {offer.seq} is not above {kept.seq}")
        check_stake(self.state, offer)
        self._pending[offer.provider] = made
        return True

    def of(self, owner: Address) -> OfferRefresh | None:
        return self._pending.get(owner)

    def carried(self, owner: Address, refresh: OfferRefresh | None) -> None:
        """Unless a newer one came meanwhile."""
        if refresh is not None and self._pending.get(owner) == refresh:
            del self._pending[owner]


# Compares the network that a provider registered with the one from which it connects.
#
# Draws take no two executions from one network (PROTOCOL §5). A provider chooses by itself what
# it registers, so without this check one machine could stand for many networks.


def check_network(owner: Address, registered: Hash32, remote: str) -> None:
    """Raises Refused if a connection comes from another network than its provider registered. An
    address of this machine or of a private network says nothing, nor does an empty one.
    """
    address = address_of(remote)
    if address is None or not is_public(address) or registered_network(address) == registered:
        return
    raise Refused(
        Code.NOT_REGISTERED,
        f"provider 0x{owner.hex()} registered the network {network_text(registered)} and connects "
        f"from {address}; run it there, or start it with --public-url of this address",
    )


def network_text(registered: Hash32) -> str:
    match registered[0]:
        case 4 if not any(registered[4:]):
            return str(IPv4Network((registered[1:4] + bytes(1), 24)))
        case 6 if not any(registered[7:]):
            return str(IPv6Network((registered[1:7] + bytes(10), 48)))
        case _:
            return f"0x{registered.hex()}"


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
    # called with evidence that this coordinator signed what its state does not know
    on_older: Callable[[str], None] = lambda what: None
    attestation: AttestationService | None = None
    # The IP address from which a connected provider is seen; "" if that is not known.
    seen_from: Callable[[Address], str] = lambda _: ""
    sealed_checks: SealedChecks = field(default_factory=SealedChecks)
    refreshes: PendingRefreshes = field(init=False)
    proven: set[Hash32] = field(default_factory=set)  # assignments of which a second Commit came

    def __post_init__(self) -> None:
        self.refreshes = PendingRefreshes(self.core.state)

    async def __call__(self, sender: str, data: bytes) -> bytes:
        """Raises Refused, which travels back to the sender, or Unavailable if it must slow down."""
        self.tolerance.check(sender)
        try:
            await self._take(sender, frames.decode(data))
        except Refused:
            self.tolerance.offended(sender)
            raise
        return frames.encode(frames.Ok())

    async def _take(self, sender: str, frame: frames.Frame) -> None:
        match frame:
            case frames.LogsSent(assignment_hash, at, text):
                self._logs(sender, assignment_hash, at, text)
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
            case frames.Metered():
                await self._meter(sender, frame)
            case _:
                await self.actor.submit(self._event(frame))

    def _check_network(self, owner: Address) -> None:
        """Without its heartbeats the provider gets no work."""
        provider = self.core.state.providers.get(owner)
        if provider is not None:
            check_network(owner, provider.network, self.seen_from(owner))

    async def take_offer(self, offer: OfferEnvelope) -> None:
        """A refresh gets no journal entry (`core.matching.heartbeats`)."""
        now = UnixSeconds(int(self.clock.now()))
        key = offers.validate(offer, self.domain, recover, now, self.limits.offer_ttl)
        if not self._is_known(offer) and not self.refreshes.keep(offer, key):
            await self.actor.submit(ev.OfferReceived(offer, key))

    def _is_known(self, offer: OfferEnvelope) -> bool:
        """Gossip and connection both bring it."""
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

    async def _meter(self, sender: str, meter: frames.Metered) -> None:
        lease = self.core.state.leases.get(meter.assignment_hash)
        if lease is None:
            raise Refused(Code.UNKNOWN, f"assignment 0x{meter.assignment_hash.hex()}")
        _check_sender(sender, lease.provider, "meter")
        event = ev.MeterReceived(
            meter.assignment_hash, meter.usage_ms, meter.exit_status, lease.provider
        )
        job = self.core.state.jobs[lease.job_id]
        refusal = await self.actor.submit(event)
        if isinstance(refusal, Refused):
            raise refusal
        if not isinstance(job.phase, Rented):  # its first meter
            log.info(  # for abuse reports, which name the lease
                "rental 0x%s runs: run 0x%s of client 0x%s at provider 0x%s",
                *(it.hex() for it in (event.assignment_hash, job.id, job.order.client)),
                lease.provider.hex(),
            )

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
        """Its provider sends it back. Only this coordinator can have signed it: if the state does
        not know it, the journal is too old.
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
        message = assignment.message
        self._check_own(message.coordinator, assignment, "assignment")
        if assignments.is_newer(self.core.state, message):
            self.on_older(
                f"provider 0x{message.provider.hex()} has shown an Assignment of another journal "
                f"(acceptBy {message.accept_by}); stop any other coordinator with these keys"
            )

    def _check_own(self, account: Address, envelope: AnyEnvelope, what: str) -> None:
        """A provider's own word must not stop a coordinator."""
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
        """Cheap checks come before the ciphertext is opened, so that strangers cost little."""
        lease = self.core.state.leases.get(reveal.assignment_hash)
        if lease is None:
            raise Refused(Code.UNKNOWN, f"assignment 0x{reveal.assignment_hash.hex()}")
        if isinstance(lease.phase, leases.Closed):
            check_opens(lease.phase.commit.message, reveal)
            size = self.core.state.jobs[lease.job_id].submission.spec.resources.output_bytes
            if size > OPENED_SOON_BYTES:
                within = Seconds(OPEN_SECONDS_LEAST + size // OPENED_PER_SECOND_LEAST)
                await self.actor.submit(ev.RevealReceived(reveal, False, within))
            await self._check_output(lease, lease.phase.commit.message.encrypted_output, reveal)
        await self.actor.submit(ev.RevealReceived(reveal, has_opened=True))

    async def _check_output(self, lease: leases.Lease, ciphertext: Hash32, reveal: Reveal) -> None:
        cid = await self.store.resolve(ciphertext)
        if cid is None:
            raise Refused(Code.NOT_STORED, "reveal: its ciphertext is not in the staging store")
        bound = ciphertext_most(self.core.state.jobs[lease.job_id].submission.spec.resources)
        async with await self.store.lease(cid) as held:
            await self.sealed_checks.check(held.path, reveal, bound)

    def _logs(self, sender: str, assignment_hash: Hash32, at: int, text: bytes) -> None:
        lease = self.core.state.leases.get(assignment_hash)
        if lease is None or "0x" + lease.provider.hex() != sender.lower():
            raise Refused(Code.NOT_YOURS, "logs: not of an assignment of this provider")
        if len(text) > frames.LOG_TEXT_MAX:
            raise Refused(Code.OVERSIZE, f"logs: at most {frames.LOG_TEXT_MAX} bytes a frame")
        if at < 0:
            raise Refused(Code.MALFORMED, "logs: at: a position is zero or more")
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
            self.logs.add(Piece(job.order.client, job.id, assignment_hash, at, text))

    def _gave_up(self, digest: Hash32) -> bool:
        return isinstance(
            self.core.state.leases[digest].phase, leases.Declined | leases.Lapsed | leases.Stopped
        )


def _check_sender(sender: str, owner: Address, what: str) -> None:
    """Otherwise a replayed heartbeat could make a provider alive."""
    if sender.lower() != "0x" + owner.hex():
        raise Refused(Code.NOT_YOURS, f"{what}: the provider sends it on its own connection")
