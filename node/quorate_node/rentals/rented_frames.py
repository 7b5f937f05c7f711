"""The coordinator's frames for rentals that run here: streams, and secrets."""

from collections.abc import Callable
from dataclasses import dataclass

from quorate_node.rentals.dialer import StreamDialer
from quorate_protocol.messages.frames import Frame, SecretsSent, StreamWanted
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address


@dataclass(frozen=True, slots=True)
class RentedFrames:
    """None: this provider has no way in, or keeps no secrets."""

    streams: StreamDialer | None = None
    secrets: Callable[[Address, SecretsSent], None] | None = None

    def take(self, coordinator: Address, frame: Frame) -> bool:
        """False for another frame. Raises Refused."""
        match frame:
            case StreamWanted():
                if self.streams is None:
                    raise Refused(Code.UNSUPPORTED, "this provider has no way into its rentals")
                self.streams.want(coordinator, frame)
            case SecretsSent():
                if self.secrets is None:
                    raise Refused(Code.UNSUPPORTED, "this provider keeps no secrets")
                self.secrets(coordinator, frame)
            case _:
                return False
        return True
