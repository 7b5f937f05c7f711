"""A second coordinator that shares the providers: a shell without a core, clients and money.

It keeps what providers tell it (offers, heartbeats), and assigns short jobs to them. It assigns
slots that the last heartbeat reported free, and sometimes one more, as a coordinator that missed a
heartbeat does. It takes commits, and never opens a batch: so its jobs are not paid, and their run
slots are free again after the commits.
"""

from collections.abc import Callable
from random import Random

from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.signed import Assignment, CommitReceipt
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Hash32, PriceTier, Seconds, UnixSeconds
from quorate_protocol.values import replace
from sim import workload
from sim.coverage import Coverage
from sim.network import Answer, Network
from sim.parties import DOMAIN, key
from sim.plan import Plan
from sim.schedule import Schedule

NAME = "coordinator-2"
ACCOUNT, STATEMENT = key("coordinator", 1), key("statement", 1)
PAUSE_SECONDS = (0.3, 2.5)
HURRY_CHANCE = 0.25  # that it assigns a slot which the last heartbeat did not report free
ANSWER_SECONDS = 2.0
DURATION_SECONDS = Seconds(6)
LONG_SECONDS = Seconds(75)  # longer than a juror can wait for a run slot


class SecondCoordinator:
    """Assigns jobs until the safety phase ends."""

    def __init__(
        self, plan: Plan, schedule: Schedule, network: Network, coverage: Coverage
    ) -> None:
        self.plan, self.schedule, self.network, self.coverage = plan, schedule, network, coverage
        self.random: Random = plan.stream(NAME)
        self.is_calm = False
        self.peers: dict[Address, tuple[str, Callable[[bytes], object]]] = {}
        self.offers: dict[Address, OfferEnvelope] = {}
        self.free: dict[Address, int] = {}
        self.leases: dict[Hash32, Address] = {}
        self._number = 0

    def start(self) -> None:
        """Assigns again and again."""
        if self.is_calm:
            return
        self._assign()
        self.schedule.after(self.random.uniform(*PAUSE_SECONDS), self.start)

    def handle(self, data: bytes) -> object:
        """Takes one frame of a provider."""
        match frames.decode(data):
            case frames.OfferSent(offer):
                self._take_offer(offer)
            case frames.HeartbeatSent(beat):
                owner = beat.message.provider
                self.free[owner] = sum(item.free for item in beat.message.free_slots)
            case frames.AcceptSent(accept):
                self.coverage.facts["leases of a second coordinator"] += (
                    accept.message.assignment_hash in self.leases
                )
            case frames.DeclineSent():
                self.coverage.facts["declined to a second coordinator"] += 1
            case frames.CommitSent(commit):
                owner = self.leases[commit.message.assignment_hash]
                receipt = CommitReceipt(
                    digest(DOMAIN, commit.message), UnixSeconds(self.schedule.now)
                )
                self._send(owner, frames.ReceiptSent(seal(DOMAIN, receipt, STATEMENT.sign)))
            case _:
                pass
        return frames.Ok()

    def _take_offer(self, offer: OfferEnvelope) -> None:
        owner = offer.offer.provider
        known = self.offers.get(owner)
        if known is None or offer.offer.seq > known.offer.seq:
            self.offers[owner] = offer

    def _assign(self) -> None:
        hurries = self.random.random() < HURRY_CHANCE
        fit = [owner for owner in sorted(self.offers) if hurries or self.free.get(owner, 0) > 0]
        if not fit:
            return
        self._assign_to(self.random.choice(fit), DURATION_SECONDS)

    def occupy(self) -> None:
        """Assigns a long job to each provider that reported a free run slot."""
        for owner in sorted(self.offers):
            if self.free.get(owner, 0) > 0:
                self._assign_to(owner, LONG_SECONDS)

    def _assign_to(self, owner: Address, duration: Seconds) -> None:
        self.free[owner] = max(0, self.free.get(owner, 0) - 1)
        self._number += 1
        made = workload.make_spec(
            self.random, f"{NAME}-{self._number}", has_gpus=self.plan.has_gpus
        )
        spec = replace(made, max_duration=duration)
        if duration == LONG_SECONDS:
            spec = replace(spec, argv=("run", "times-out", "0", made.argv[3]))
        slot = self.offers[owner].offer.slots[0]
        message = Assignment(
            assignment_id=Hash32(self.random.randbytes(32)),
            coordinator=ACCOUNT.address,
            provider=owner,
            spec_hash=spec.digest(),
            pool=slot.pool.id(),
            price_tier=PriceTier.ON_DEMAND,
            price_per_hour=slot.on_demand,
            max_duration=spec.max_duration,
            accept_by=UnixSeconds(self.schedule.now + self.plan.limits.accept_within),
        )
        self.leases[digest(DOMAIN, message)] = owner
        self._send(owner, frames.AssignmentSent(seal(DOMAIN, message, STATEMENT.sign), spec, ()))

    def _send(self, owner: Address, frame: frames.Frame) -> None:
        name, handle = self.peers[owner]
        data = frames.encode(frame)

        def answered(answer: Answer) -> None:
            self.coverage.facts["refused to a second coordinator"] += isinstance(answer, Refused)

        self.network.request(NAME, name, lambda: handle(data), answered, ANSWER_SECONDS)
