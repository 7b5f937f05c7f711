"""Turns the frames of coordinators into events.

The handler recovers which key signed a message. The core decides whether that key may send it.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorate_node.core import events
from quorate_node.core.events import EventSink
from quorate_node.core.phases import FAULTED
from quorate_node.rentals.rented_frames import RentedFrames
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import AnyEnvelope, Recover, signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address
from quorate_protocol.values import replace

EVIDENCE_BYTES = 4096  # of a contradicting frame, for the log
OUT_OF_TIME = (Code.STALE, Code.TOO_EARLY)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FrameHandler:
    """Handles the frames of one coordinator. It answers a frame once the journal has the event."""

    actor: EventSink
    coordinator: Address
    domain: Domain
    recover: Recover
    may_take_work: Callable[[], bool] = lambda: True  # see `OperatorKeys`
    # How many more bytes the store can keep; None = no limit.
    store_room: Callable[[], Awaitable[int]] | None = None
    image_requirement: Callable[[str], str] = lambda image: ""
    attestation: Callable[[Address, bytes], None] | None = None
    rented: RentedFrames | None = None

    async def handle(self, sender: str, data: bytes) -> bytes:
        """Raises Refused. The connection belongs to this coordinator, so `sender` is not used."""
        frame = frames.decode(data)
        if isinstance(frame, frames.AttestationSent):
            if self.attestation is None:
                raise Refused(Code.UNSUPPORTED, "this provider takes part in no challenge")
            self.attestation(self.coordinator, frame.body)
            return frames.encode(frames.Ok())
        if self.rented is not None and self.rented.take(self.coordinator, frame):
            return frames.encode(frames.Ok())
        event = self.event(frame)
        if isinstance(event, events.AssignmentReceived) and self.store_room is not None:
            event = replace(event, store_room=await self.store_room())
        if isinstance(event, events.AssignmentReceived) and event.spec.resources.gpu:
            event = replace(event, cuda_requirement=self.image_requirement(event.spec.image))
        try:
            await self.actor.submit(event)
        except Refused as refused:
            if refused.code is Code.EQUIVOCATION:
                log.error(
                    "coordinator 0x%s contradicts what it signed before: %s. Keep this line as "
                    "evidence: %s",
                    self.coordinator.hex(),
                    refused.detail,
                    data[:EVIDENCE_BYTES].decode(errors="backslashreplace"),
                )
            if isinstance(event, events.CommitSetReceived) and refused.code in OUT_OF_TIME:
                log.warning(
                    "the result of 0x%s stays closed: %s; compare this machine's clock with the "
                    "coordinator's",
                    event.assignment_hash.hex(),
                    refused.detail,
                )
            raise
        if (
            isinstance(event, events.VerdictReceived)
            and event.assignment_hash in event.verdict.message.faulted
        ):
            # The handler logs this and not the core, because a verdict may come long after the core
            # has forgotten the lease.
            log.warning(
                "job 0x%s is not paid: %s; look at `quorate node check`, and at this machine's "
                "memory",
                event.assignment_hash.hex(),
                FAULTED,
            )
        return frames.encode(frames.Ok())

    def event(self, frame: frames.Frame) -> events.Event:
        """Raises Refused for a frame that no coordinator sends."""
        match frame:
            case frames.AssignmentSent():
                signer, is_rotating = self._signer(frame.assignment), not self.may_take_work()
                return events.AssignmentReceived(
                    frame.assignment, frame.spec, frame.sources, signer, is_rotating
                )
            case frames.ReceiptSent():
                return events.CommitReceiptReceived(frame.receipt, self._signer(frame.receipt))
            case frames.CommitSetSent():
                signer = self._signer(frame.commit_set)
                return events.CommitSetReceived(
                    frame.assignment_hash, frame.commit_set, signer, frame.escrowed
                )
            case frames.VerdictSent():
                return events.VerdictReceived(
                    frame.assignment_hash, frame.verdict, self._signer(frame.verdict)
                )
            case frames.VoucherSent():
                return events.VoucherReceived(
                    self.coordinator, frame.voucher, self._signer(frame.voucher)
                )
            case frames.StopSent():
                return events.StopReceived(frame.assignment_hash, frame.stop, self.coordinator)
            case _:
                raise Refused(Code.UNSUPPORTED, f"{type(frame).__name__} is not for a provider")

    def _signer(self, envelope: AnyEnvelope) -> Address:
        return signer(self.domain, envelope, self.recover)
