"""Signs the provider's offer and heartbeats, and sends them to every coordinator it serves."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from quorate_node.base.operator_keys import OperatorKeys, send_under_any_key
from quorate_node.core.phases import Execution, Live, Publishing, Running, Starting
from quorate_node.core.provider_core import ProviderCore
from quorate_protocol.limits import HEARTBEAT_LEASES_MAX
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import WITHDRAWN, Offer, OfferEnvelope, SlotOffer
from quorate_protocol.messages.ports import Clock, Peers, Signer
from quorate_protocol.messages.signed import FreeSlots, Heartbeat, LeaseProgress
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Seconds, Sequence, UnixSeconds, WorkStage
from quorate_protocol.values import replace


def named(executions: Iterable[Execution], coordinator: Address) -> tuple[LeaseProgress, ...]:
    """A lease that no heartbeat names for long lapses at the coordinator."""
    found = [
        LeaseProgress(item.assignment_hash, _stage(item))
        for item in executions
        if item.is_under_way and item.coordinator == coordinator
    ]
    return tuple(found[:HEARTBEAT_LEASES_MAX])


def _stage(execution: Execution) -> WorkStage:
    match execution.phase:
        case Starting():
            return WorkStage.STARTING
        case Running() | Live():
            return WorkStage.RUNNING
        case Publishing():
            return WorkStage.STORING
        case _:
            return WorkStage.FETCHING


SEND_SECONDS = Seconds(10)
NOT_SEEN_YET_SECONDS = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OfferDetails:
    """CID digest of the `Hardware` document, gateway URLs, X25519 and Ed25519 keys."""

    inventory: Hash32
    region: str
    peer_key: Hash32
    box_key: Hash32
    addresses: tuple[str, ...]


@dataclass(slots=True)
class Announcements:
    """Signs and sends offers and heartbeats. Call `bind` before the first one."""

    core: ProviderCore
    peers: Mapping[Address, Peers]
    operator_keys: OperatorKeys
    clock: Clock
    attested: Callable[[tuple[SlotOffer, ...]], tuple[SlotOffer, ...]] = lambda slots: slots
    publish: Callable[[OfferEnvelope], None] | None = None  # to gossip; returns at once
    _details: OfferDetails | None = None
    _heartbeat_seq: int = 0
    # The newest offer that each coordinator took.
    _taken: dict[Address, int] = field(default_factory=dict)

    def bind(self, details: OfferDetails) -> None:
        self._details = details

    def offer(self, seq: Sequence, expires: UnixSeconds, signer: Signer) -> OfferEnvelope:
        terms, details = self.core.terms, self._details
        assert details is not None, "bind comes before the first offer"
        promise = terms.promise(self.core.scalars.store_bytes, self.core.scalars.bandwidth)
        offer = Offer(
            provider=terms.provider,
            seq=seq,
            expires=expires,
            # A withdrawal names slots too. If no slot is left, it names all slots of the terms.
            slots=self.attested(self.core.offered_slots() or terms.slots),
            inventory=details.inventory,
            sandboxes=promise.sandboxes,
            kinds=promise.kinds,
            region=details.region,
            peer_key=details.peer_key,
            box_key=details.box_key,
            addresses=details.addresses,
            images=promise.images,
            store_bytes=promise.store_bytes,
            bandwidth=promise.bandwidth,
            egress=promise.egress,
        )
        return OfferEnvelope(offer, seal(terms.domain, offer.signed(), signer.sign))

    async def send_offer(self, seq: Sequence, expires: UnixSeconds, newest: int) -> None:
        """Sends to all that have not taken this or a newer offer. Raises Unavailable if one did not
        take it. Does nothing when it has expired or `newest` is newer.
        """
        if seq < newest or (expires != WITHDRAWN and self.clock.now() >= expires):
            return
        if self.publish is not None:
            self.publish(self.offer(seq, expires, self.operator_keys.current))
        waiting = [address for address in self.peers if self._taken.get(address, -1) < seq]
        is_first = any(address not in self._taken for address in waiting)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._offer_to(item, seq, expires)) for item in waiting]
        if is_first and any(address in self._taken for address in waiting):
            # A coordinator matches nobody whose heartbeat did not follow the first offer.
            await self.send_heartbeat(self.core.free_slots())
        failed = next((task.result() for task in tasks if task.result()), "")
        if failed:
            raise Unavailable(failed, NOT_SEEN_YET_SECONDS)

    async def _offer_to(self, address: Address, seq: Sequence, expires: UnixSeconds) -> str:
        """Returns why it is to be sent again, or ""."""
        try:
            await self._send(
                address, lambda signer: frames.OfferSent(self.offer(seq, expires, signer))
            )
        except Unavailable as error:
            return str(error)
        except Refused as refused:
            # A coordinator learns of registration and stake some blocks later, so these are
            # retried. A retry would not help with any other refusal.
            if refused.code in (Code.NOT_REGISTERED, Code.OVER_STAKE):
                return str(refused)
            log.warning("0x%s refused the offer: %s", address.hex(), refused)
        self._taken[address] = max(seq, self._taken.get(address, -1))
        return ""

    async def send_heartbeat(self, free: tuple[FreeSlots, ...]) -> int:
        """Returns how many took it. A coordinator that does not answer delays no other."""
        # The sequence number must grow, also over restarts. The time in milliseconds does so and
        # needs no storage.
        now = self.clock.now()
        self._heartbeat_seq = max(self._heartbeat_seq + 1, int(now * 1000))
        message = Heartbeat(
            self.core.terms.provider, Sequence(self._heartbeat_seq), free, (), UnixSeconds(int(now))
        )
        live = self.core.live()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._beat_to(item, replace(message, leases=named(live, item))))
                for item in self.peers
            ]
        return sum(task.result() for task in tasks)

    async def _beat_to(self, address: Address, message: Heartbeat) -> bool:
        domain = self.core.terms.domain
        try:
            await self._send(
                address, lambda signer: frames.HeartbeatSent(seal(domain, message, signer.sign))
            )
        except (Unavailable, Refused) as error:
            # Not re-raised: the next heartbeat is due in a few seconds.
            log.debug("heartbeat to 0x%s: %s", address.hex(), error)
            return False
        return True

    async def _send(self, coordinator: Address, frame: Callable[[Signer], frames.Frame]) -> None:
        """For a coordinator that does not know the current key yet, under an older one."""

        async def send(signer: Signer) -> None:
            await self.peers[coordinator].request(
                coordinator, frames.encode(frame(signer)), SEND_SECONDS
            )
            self.operator_keys.note_accepted(coordinator, signer.address)

        await send_under_any_key(self.operator_keys.for_announcements(coordinator), send)
