"""The provider's terms: what the core knows about the provider itself.

The journal keeps each change, so that a replay makes the same decisions.
"""

from msgspec import Struct

from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.limits import Limits
from quorate_protocol.messages.offer import SlotOffer
from quorate_protocol.ports import BeaconInfo, Sandbox
from quorate_protocol.units import Address, Hash32, JobKind, Price, Small


class SlotResources(Struct, frozen=True):
    """The most that one run slot gives to a job, in bytes and thousandths of a core."""

    cpu_millis: int
    memory_bytes: int
    scratch_bytes: int
    output_bytes: int
    input_bytes: int
    gpus: int = 0
    vram_bytes: int = 0


class Policy(Struct, frozen=True):
    """What the owner allows. If `images` is empty, any image is allowed."""

    price_floor: Price
    images: tuple[str, ...]
    kinds: tuple[JobKind, ...]
    slot_resources: SlotResources
    input_bytes_per_second: int = (
        20_000_000  # used only to quote fetch and store times in an Accept
    )
    upload_bytes_per_second: int = 20_000_000
    declined_keep_seconds: int = (
        600  # longer than a coordinator repeats an Assignment that was declined
    )


class Terms(Struct, frozen=True):
    """Who this provider is, on which deployment, and with which slots.

    `statement_keys` maps each coordinator that the provider serves to the key that signs for it.
    """

    provider: Address
    domain: Domain
    limits: Limits
    beacon: BeaconInfo
    statement_keys: dict[Address, Address]
    slots: tuple[SlotOffer, ...]
    sandbox: Sandbox
    policy: Policy

    def slot(self, host_class: Hash32) -> SlotOffer | None:
        """Returns the offered slots of a host class, or None if it is not offered."""
        return next((slot for slot in self.slots if slot.host.id() == host_class), None)

    def count(self, host_class: Hash32) -> Small:
        """Returns how many run slots of a host class this provider has."""
        slot = self.slot(host_class)
        return slot.count if slot else Small(0)
