"""The provider's terms: what the core knows about the provider itself and its run slots.

The journal keeps each change, so that a replay makes the same decisions.
"""

from msgspec import Struct

from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.limits import USD, Limits
from quorate_protocol.messages.classes import determinism_class
from quorate_protocol.messages.job_spec import JobSpec, image_digest
from quorate_protocol.messages.offer import SlotOffer
from quorate_protocol.messages.ports import BeaconInfo, Sandbox
from quorate_protocol.rules.tabs import TRUST_DEFAULT
from quorate_protocol.units import Address, Amount, Hash32, JobKind, Price, Small

MAX_HELD_DEFAULT = Amount(20 * USD)


class SlotResources(Struct, frozen=True):
    """The most that one run slot gives to a job, in bytes and thousandths of a core."""

    cpu_millis: int
    memory_bytes: int
    scratch_bytes: int
    output_bytes: int
    input_bytes: int


class RunSlots(Struct, frozen=True):
    """The run slots of one pool. `groups`: GPU UUIDs of each slot; none in a CPU class."""

    offer: SlotOffer
    resources: SlotResources
    groups: tuple[tuple[str, ...], ...] = ()


class GpuDriver(Struct, frozen=True):
    """NVIDIA's driver here, and the newest CUDA that it supports; "" if there is none."""

    version: str = ""  # for example "550.54.15"
    cuda_version: str = ""  # for example "12.4"


class Policy(Struct, frozen=True):
    """What the owner allows. Empty `images`: any image."""

    price_floor: Price
    images: tuple[str, ...]
    kinds: tuple[JobKind, ...]
    refused_images: tuple[str, ...] = ()
    declined_keep_seconds: int = (
        600  # longer than a coordinator repeats an Assignment that was declined
    )
    jury_price: Price = Price(0)  # the least per slot-hour of a case's maxDurations
    jury_slots: int = 1  # the most that take part in juries at once
    jury_cases: int = 24  # the most in 24 hours
    trust: Amount = TRUST_DEFAULT  # what the owner works for beyond a coordinator's guarantee
    max_held: Amount = MAX_HELD_DEFAULT  # of pay that one coordinator holds without a voucher
    egress: tuple[str, ...] = ()  # hosts that rentals may reach


class Promise(Struct, frozen=True):
    """What the offer says of all slots (`fits.Promise`)."""

    sandboxes: tuple[str, ...]
    kinds: tuple[JobKind, ...]
    images: tuple[Hash32, ...]
    store_bytes: int
    bandwidth: int
    egress: tuple[str, ...] = ()


class Terms(Struct, frozen=True):
    """Who this provider is, on which deployment, with which slots. `statement_keys`: coordinator to
    its signing key.
    """

    provider: Address
    domain: Domain
    limits: Limits
    beacon: BeaconInfo
    statement_keys: dict[Address, Address]
    classes: tuple[RunSlots, ...]
    sandbox: Sandbox
    policy: Policy
    driver: GpuDriver = GpuDriver()

    @property
    def slots(self) -> tuple[SlotOffer, ...]:
        return tuple(item.offer for item in self.classes)

    @property
    def gpus(self) -> frozenset[str]:
        return frozenset(uuid for item in self.classes for group in item.groups for uuid in group)

    def promise(self, store_bytes: int, bandwidth: int) -> Promise:
        """Returns what the offer says while the content store has this room and fetches are that
        fast.
        """
        policy = self.policy
        images = tuple(dict.fromkeys(image_digest(name) for name in policy.images))
        return Promise(
            (self.sandbox.value,), policy.kinds, images, store_bytes, bandwidth, policy.egress
        )

    def run_slots(self, pool: Hash32) -> RunSlots | None:
        return next((item for item in self.classes if item.offer.pool.id() == pool), None)

    def class_of(self, pool: Hash32, spec: JobSpec) -> Hash32 | None:
        """The determinism class of a job here; None if this machine has no slot of the pool."""
        slot = self.slot(pool)
        if slot is None:
            return None
        profile, image = spec.profile().digest(), image_digest(spec.image)
        return determinism_class(pool, slot.host.digest(), image, profile)

    def slot(self, pool: Hash32) -> SlotOffer | None:
        found = self.run_slots(pool)
        return found.offer if found else None

    def count(self, pool: Hash32) -> Small:
        slot = self.slot(pool)
        return slot.count if slot else Small(0)

    def check_gpus(self) -> None:
        """Asserts that each GPU slot has its own GPUs, as many as its class says."""
        groups = [(item, group) for item in self.classes for group in item.groups]
        named = [uuid for _, group in groups for uuid in group]
        assert len(set(named)) == len(named), "a GPU is in two run slots"
        for item in self.classes:
            assert len(item.groups) == (item.offer.count if item.offer.pool.is_gpu else 0), (
                "a GPU class needs one group of GPUs for each run slot"
            )
        assert all(len(group) == item.offer.pool.gpus for item, group in groups), (
            "a GPU slot has as many GPUs as its class says"
        )
