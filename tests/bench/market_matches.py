"""Matching over 10^5 and 10^6 live offers, on the coordinator's own state.

One match is: a provider offers a new price, the best provider for a waiting job is chosen and
claimed, and an earlier claim is given back. These are three writes to the state's tables in one
transaction each, as three events would make them. There is no signature and no journal: those are
in the figures of whole jobs. The new offer exists when the clock starts. The market is that of the
prototype: 40 classes of GPUs, the most common with a fifth of all offers. One job in twenty asks
for what very few offer.
"""

import gc
import random
import resource
import time
from dataclasses import dataclass

from bench.market_providers import DOMAIN
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.matching import offers as offers_module
from quorate_coordinator.core.model import lease
from quorate_coordinator.core.model.entities import Job, OwnRecord, Provider
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.step_context import Rules, StepContext
from quorate_coordinator.core.model.tables import OWN
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import MAINNET
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.offer import Offer
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    BlockNumber,
    Bps,
    Hash32,
    Price,
    PriceTier,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.markets.waiting_jobs import NOBODY, UNSIGNED, waiting_job
from support.messages import a_spec, blank
from support.offers import GPU_MACHINE, a_slot, an_offer

GIB = 1 << 30
NOW = UnixSeconds(1_800_000_000)
CLASSES = 40
MACHINES = [replace(GPU_MACHINE, driver=branch) for branch in ("535", "550", "570")]
VRAM = [8, 12, 16, 24, 32, 40, 48, 80, 96, 141]
CLAIMS_HELD = 1000


@dataclass(frozen=True, slots=True)
class Figures:
    """Matches per second and milliseconds at so many offers; resident megabytes afterwards."""

    matches_s: float
    p50_ms: float
    p99_ms: float
    found_share: float
    rss_mb: int


class Market:
    """A core full of offers."""

    def __init__(self, offers: int, seed: int = 1) -> None:
        self.random = random.Random(seed)
        rules = Rules(DOMAIN, NOBODY, NOBODY, lambda _: UNSIGNED, MAINNET, Bps(0), 0, b"", ())
        self.core = CoordinatorCore(rules)
        self.pools = [
            Pool(f"GPU {number}", "", Small(_gpus_of(number))) for number in range(CLASSES)
        ]
        weights = [1 / (1 + number) ** 0.9 for number in range(CLASSES)]
        kinds = self.random.choices(range(CLASSES), weights, k=offers)
        self.owners: list[Address] = []
        self.steps = 0
        with self.core.state.transaction():
            for index, kind in enumerate(kinds):
                owner = Address(index.to_bytes(20, "big"))
                price = self.random.randrange(100_000, 4_000_000)
                slot = a_slot(
                    self.pools[kind],
                    price,
                    1 + index % 2,
                    host=MACHINES[index % len(MACHINES)],
                    vram_bytes=VRAM[kind % len(VRAM)] * GIB,
                    memory_bytes=64 * GIB << (kind % 3),
                )
                offer = an_offer(owner, 1, NOW + 800, (slot,))
                network = Hash32(index.to_bytes(32, "big"))
                alive = UnixSeconds(NOW + 600)
                self.core.state.providers[owner] = Provider(
                    owner, index, owner, owner, network, offer, Sequence(1), alive
                )
                self.owners.append(owner)
            self.core.state.own_record[OWN] = OwnRecord(
                block=BlockNumber(1)
            )  # as in every market that has seen a block
        self.core.state.market.refresh()
        self.claims: list[tuple[Address, Hash32]] = []
        self.jobs = [self._job(number) for number in range(2000)]

    def _job(self, number: int) -> Job:
        kind = self.random.choices(
            range(CLASSES), [1 / (1 + item) ** 0.9 for item in range(CLASSES)]
        )[0]
        gpus = _gpus_of(kind)
        price = self.random.randrange(200_000, 4_000_000)
        memory = 32 * GIB
        if self.random.random() < 0.05:
            gpus, price = gpus + 1, 101_000
        named = f"gpu {kind}" if self.random.random() < 0.6 else ""
        resources = job_spec.Resources(
            memory_bytes=memory, gpu=job_spec.GpuRequest(gpus, named, VRAM[kind % len(VRAM)] * GIB)
        )
        image = f"registry.example/image@sha256:{number:064x}"
        spec = replace(a_spec(f"job-{number}"), image=image, resources=resources)
        return waiting_job(spec, self.pools[kind], Price(price), NOW, number)

    def context(self) -> StepContext:
        """A step's context."""
        self.steps += 1
        return StepContext(self.core.state, self.core.rules, NOW, hash_tuple("bench", self.steps))

    def repriced(self) -> Offer:
        """An owner's next offer, at another price."""
        offer = self.core.state.providers[self.random.choice(self.owners)].offer
        assert offer is not None
        slot = replace(offer.slots[0], on_demand=Price(self.random.randrange(100_000, 4_000_000)))
        return replace(offer, slots=(slot,), seq=Sequence(offer.seq + 1))

    def match(self, offer: Offer, wanted: Job) -> bool:
        """One reprice, one choice with its claim, one claim given back."""
        state = self.core.state
        with state.transaction():
            state.providers[offer.provider] = replace(state.providers[offer.provider], offer=offer)
            state.market.refresh()
        with state.transaction():
            found = offers_module.choose(self.context(), wanted)
            if found:
                self._claim(found[0].provider.owner, wanted)
        if len(self.claims) > CLAIMS_HELD:
            with state.transaction():
                owner, held = self.claims.pop(self.random.randrange(len(self.claims)))
                state.leases_in_slots[owner] = tuple(
                    item for item in state.leases_in_slots[owner] if item != held
                )
                del state.leases[held]
                state.market.refresh()
        return bool(found)

    def _claim(self, owner: Address, wanted: Job) -> None:
        state, number = self.core.state, self.steps
        message = blank(
            Assignment,
            assignment_id=Hash32(number.to_bytes(32, "big")),
            provider=owner,
            pool=wanted.pool.id(),
            price_tier=PriceTier.ON_DEMAND,
        )
        digest = message.assignment_id
        state.leases[digest] = Lease(
            Envelope(message, UNSIGNED),
            digest,
            wanted.id,
            0,
            ZERO_HASH,
            0,
            ZERO_HASH,
            lease.Assigned(),
        )
        state.leases_in_slots[owner] = (*(state.leases_in_slots.get(owner) or ()), digest)
        self.claims.append((owner, digest))


def _gpus_of(kind: int) -> int:
    """GPUs in each slot of a class."""
    return (1, 1, 2, 4, 8)[kind % 5]


def measure(offers: int, matches: int) -> Figures:
    """Matches among `offers` offers."""
    market = Market(offers)
    gc.collect()
    gc.freeze()
    took: list[float] = []
    found = 0
    for number in range(matches + CLAIMS_HELD):
        if number == CLAIMS_HELD:
            took, found = [], 0
        offer = market.repriced()
        begun = time.perf_counter()
        found += market.match(offer, market.jobs[number % len(market.jobs)])
        took.append(time.perf_counter() - begun)
    gc.unfreeze()
    seconds = sum(took)
    took.sort()
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Figures(
        matches / seconds,
        1000 * took[len(took) // 2],
        1000 * took[len(took) * 99 // 100],
        found / matches,
        rss,
    )
