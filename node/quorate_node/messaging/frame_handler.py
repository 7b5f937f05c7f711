"""Frames of coordinators become events: signatures are recovered here, decided upon in the core."""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from quorate_node.core import events
from quorate_node.core.phases import FAULTED
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import AnyEnvelope, Recover, signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address
from quorate_protocol.values import replace

CONTRADICTIONS = frozenset({Code.EQUIVOCATION, Code.BAD_AMOUNT})
"""What a coordinator is refused with that signed otherwise before; only what its statement key has signed gets so far."""
TOLD_BYTES = 4096

_logger = logging.getLogger(__name__)


class Submits(Protocol):
    """The actor, as far as the inbox knows it."""

    async def submit(self, event: events.Event) -> object:
        """Durable when it returns."""


class FrameHandler:
    """Handler of one coordinator's frames. Every answer means: taken note of durably."""

    def __init__(
        self,
        actor: Submits,
        coordinator: Address,
        domain: Domain,
        recover: Recover,
        may_take_work: Callable[[], bool] = lambda: True,
        store_room: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """`may_take_work`: no while this coordinator and this provider may differ over the
        operator key (`Keyring.may_take_work`).

        `store_room`: bytes that the content store can take; None = not asked.
        """
        self._actor, self._coordinator, self._domain, self._recover = (
            actor,
            coordinator,
            domain,
            recover,
        )
        self._may_take_work, self._store_room = may_take_work, store_room

    async def handle(self, sender: str, data: bytes) -> bytes:
        """`ports.Handler`: raises Refused as the rules do. The connection is this coordinator's,
        so `sender` adds nothing.
        """
        event = self.event(frames.decode(data))
        if isinstance(event, events.AssignmentReceived) and self._store_room is not None:
            event = replace(event, store_room=await self._store_room())
        try:
            await self._actor.submit(event)
        except Refused as refused:
            if refused.code in CONTRADICTIONS:
                who, signed = (
                    f"coordinator 0x{self._coordinator.hex()}",
                    data[:TOLD_BYTES].decode(errors="backslashreplace"),
                )
                _logger.error(
                    "%s has signed otherwise before: %s. Keep this line, it is evidence: %s",
                    who,
                    refused.detail,
                    signed,
                )
            raise
        if (
            isinstance(event, events.VerdictReceived)
            and event.lease in event.verdict.message.faulted
        ):
            # Said here, because a held job may be found wrong long after its lease was forgotten.
            _logger.warning(
                "lease %s: %s; look at `quorate node check`, and at this machine's memory",
                event.lease.hex(),
                FAULTED,
            )
        return frames.encode(frames.Ok())

    def event(self, frame: frames.Frame) -> events.Event:
        """The event of a frame; Refused for one that a coordinator does not send."""
        match frame:
            case frames.AssignmentSent():
                signer, is_rotating = self._signer(frame.assignment), not self._may_take_work()
                return events.AssignmentReceived(
                    frame.assignment, frame.spec, frame.sources, signer, is_rotating
                )
            case frames.ReceiptSent():
                return events.CommitReceiptReceived(frame.receipt, self._signer(frame.receipt))
            case frames.CommitSetSent():
                return events.CommitSetReceived(
                    frame.assignment_hash, frame.commit_set, self._signer(frame.commit_set)
                )
            case frames.VerdictSent():
                return events.VerdictReceived(
                    frame.assignment_hash, frame.verdict, self._signer(frame.verdict)
                )
            case frames.StatementSent():
                return events.StatementReceived(
                    self._coordinator, frame.statement, self._signer(frame.statement)
                )
            case frames.StopSent():
                return events.StopReceived(frame.assignment_hash, frame.stop, self._coordinator)
            case _:
                raise Refused(Code.UNSUPPORTED, f"{type(frame).__name__} is not for a provider")

    def _signer(self, envelope: AnyEnvelope) -> Address:
        return signer(self._domain, envelope, self._recover)
