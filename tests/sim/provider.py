"""A provider's daemon around the real core, on a machine whose containers outlive the daemon."""

from collections.abc import Callable

from quorate_node.core import effects, events
from quorate_node.core.phases import Running
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import reconcile
from quorate_node.core.terms import GpuDriver, Policy, RunSlots, SlotResources, Terms
from quorate_node.market import announcements
from quorate_node.market.frame_handler import FrameHandler
from quorate_protocol.limits import DAY
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.signed import Decline, FreeSlots, Heartbeat, LeaseProgress
from quorate_protocol.refusals import Refused
from quorate_protocol.units import (
    Address,
    DeclineReason,
    Hash32,
    JobKind,
    Price,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
    WorkStage,
)
from quorate_protocol.values import replace
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.keys.crypto import recover
from sim import second_coordinator, workload
from sim.chain import Chain
from sim.container import Container
from sim.copier import Copier
from sim.network import Network, Silence
from sim.operator_keys import OperatorKeys
from sim.owner_money import OwnerMoney
from sim.parties import BEACON, DOMAIN, key
from sim.plan import LYING, SAFETY_SECONDS, Behaviour, GpuLoss, Plan
from sim.process import Watcher
from sim.provider_effects import FIRST, ProviderEffects
from sim.schedule import Schedule
from support.offers import a_slot, machine_of

CODEC: PackedCodec[events.Event, effects.Effect] = PackedCodec(events.Event, effects.Effect)


class Provider(ProviderEffects):
    """One provider."""

    def __init__(
        self,
        number: int,
        plan: Plan,
        schedule: Schedule,
        network: Network,
        chain: Chain,
        watcher: Watcher,
    ) -> None:
        name = f"provider-{number}"
        super().__init__(name, plan, schedule, watcher, CODEC)
        self.number, self.network, self.chain = number, network, chain
        self.owner, self.keys = key("owner", number).address, OperatorKeys(number)
        self.coordinator = key("coordinator").address
        self.planned = self.behaviour = plan.behaviours[number]
        self.is_leaving = self.is_rotating = False
        self.manner = ""  # of an owner that means harm: postpone, pad
        price = 90_000 if self.planned in LYING else 100_000 + 5_000 * number
        pool = plan.pool_of(number)
        self.host = machine_of(pool)
        if plan.has_two_classes and number % 3 == 1:
            self.host = replace(self.host, level="v4")
        count = min(self.random.choice([1, 1, 2]), 1 + (not plan.has_spot))
        slot = a_slot(pool, price, count, host=self.host)
        self.slots = (replace(slot, spot=Price(price // 2)) if plan.has_spot else slot,)
        self.groups = tuple(
            tuple(f"GPU-{number}-{place}-{index}" for index in range(pool.gpus))
            for place in range(self.slots[0].count if plan.has_gpus else 0)
        )
        self.lost_gpus = frozenset[str]()
        self.terms = self._terms(plan)
        self.containers: dict[str, Container] = {}  # survive the daemon
        self.collected: dict[Hash32, Hash32] = {}  # lease -> output on disk; survives the daemon
        self.sealed: dict[
            Hash32, tuple[Hash32, Hash32]
        ] = {}  # ciphertext -> (salt, output); survives too
        self.copier = Copier(self)
        self.calls: dict[str, Callable[[bytes], object]] = {}  # set by the world
        self.publish: Callable[[str, bytes], None] = lambda source, data: None
        self.upload: Callable[[Hash32, Hash32, Hash32], object] = lambda cid, salt, output: None
        self.under_old_keys: set[Hash32] = (
            set()
        )  # executions that were live when the key was rotated
        self.money = OwnerMoney(self)
        self.receipt_of: Callable[[Hash32], Receipt | None] = lambda job_id: None
        self.peek: Callable[[Hash32], list[Hash32]] = (
            lambda lease: []
        )  # outputs of the same job that somebody can see
        self.core: ProviderCore
        # only its `event` is used here
        self._inbox = FrameHandler(None, self.coordinator, DOMAIN, recover)  # type: ignore[arg-type]

    def _terms(self, plan: Plan) -> Terms:
        room = SlotResources(64_000, 1 << 36, 1 << 40, 1 << 40, 1 << 40)
        kinds = (JobKind.TASK, JobKind.DEV_ENVIRONMENT)
        policy = Policy(Price(0), (), kinds, trust=plan.trust)
        keys = {self.coordinator: key("statement").address}
        if plan.has_second_coordinator:
            keys[second_coordinator.ACCOUNT.address] = second_coordinator.STATEMENT.address
        sandbox = Sandbox.PROCESS if plan.party == workload.NO_ENGINE else Sandbox.NOOP
        classes = tuple(RunSlots(item, room, self.groups) for item in self.slots)
        driver = GpuDriver("550.54.15", "12.4") if plan.has_gpus else GpuDriver()
        opens_all = plan.has_boasters or (
            plan.party == "pads usage" and self.number == len(plan.behaviours) - 1
        )  # its software also opens a result that is not paid as long as it claims
        limits = replace(plan.limits, accept_within=Seconds(DAY)) if opens_all else plan.limits
        market = self.owner, DOMAIN, limits, BEACON, keys, classes, sandbox, policy
        return Terms(*market, driver=driver)

    # ----------------------------------------------------------------------------------------- life

    def keep_evidence(self, effect: effects.KeepEvidence) -> None:
        """Implements `ProviderEffects`."""
        self.money.keep(effect)

    def fresh_core(self) -> ProviderCore:
        """Implements `Process`."""
        return ProviderCore(self.terms)

    @property
    def any_core(self) -> ProviderCore:
        """Implements `Process`."""
        return self.core

    def set_core(self, core: object) -> None:
        """Implements `Process`."""
        assert isinstance(core, ProviderCore)
        self.core = core

    def awake(self) -> None:
        """Starts as the daemon does: compares what still runs, then starts its timers."""
        observed = {lease: self.state_of(item) for lease, item in self.containers.items()}
        found = reconcile(self.core.live(), self.core.jury.values(), observed, self.core.terms)
        for event in found.failures:
            self.report(event)
        going_on = {
            item.lease_id for item in self.core.live() if isinstance(item.phase, Running)
        } & observed.keys()
        for stray in found.strays:
            self.containers.pop(stray, None)
        assert going_on <= self.containers.keys(), "I6: a restart ended what was running"
        if not self.is_up:
            return
        is_draining = self.behaviour is Behaviour.DENIER or self.is_leaving or self.is_rotating
        if is_draining != self.core.scalars.is_draining:
            self.report(events.DrainRequested(is_draining))
        if self.plan.party:
            self.report(events.StoreRead(workload.STORE_ROOM))
        self.schedule.after(
            self.random.uniform(0, 0.5), self.in_this_life(lambda: self.report(events.OfferDue()))
        )
        self.every(20, lambda: self.report(events.OfferDue()))
        self.every(5, self._beat)
        self.every(1, self._tick)
        self.every(1, self._follow_chain)
        self.money.start()
        self.every(1, self.money.look)
        if self.groups:
            self.look_at_gpus()
            self.every(10, self.look_at_gpus)

    def die(self, is_disk_complete: bool = True) -> None:
        """Crashes; sometimes the whole machine crashes with its containers."""
        if self.is_up and self.random.random() < 0.25:
            self.containers.clear()
        super().die(is_disk_complete)

    def calm_down(self) -> None:
        """Makes this provider honest and running from now on."""
        self.behaviour, self.crash_chance = Behaviour.HONEST, 0.0
        self.clock.correct()
        self._go_on()

    def lose_gpu(self, loss: GpuLoss) -> None:
        """A GPU falls off its bus for some time. What runs on it gives a wrong output."""
        uuid = self.groups[0][loss.at > SAFETY_SECONDS / 2]
        self.lost_gpus |= {uuid}
        for item in self.running_containers():
            item.has_lost_gpu |= uuid in item.gpus
        self.schedule.after(loss.seconds, lambda: self._find_gpu(uuid))

    def _find_gpu(self, uuid: str) -> None:
        """Nobody resets it while a container is left on it."""
        if any(uuid in item.gpus for item in self.containers.values()):
            self.schedule.after(5.0, lambda: self._find_gpu(uuid))
        else:
            self.lost_gpus -= {uuid}

    def leave(self) -> None:
        """Its owner exits: running jobs are finished, no new ones are taken."""
        self.is_leaving = True
        self.chain.leave(self.owner)
        if self.is_up:
            self._drain(True)

    def rotate(self) -> None:
        """Its owner changes the operator key while jobs run.

        New jobs are taken only when no Assignment can still be answered with the old key.
        """
        self.is_rotating = True
        if self.is_up and not self.core.scalars.is_draining:
            self.report(events.DrainRequested(True))
        self.schedule.after(1, self._rotate_when_answered)

    def _rotate_when_answered(self) -> None:
        going = (
            [
                item
                for item in self.core.live()
                if item.assignment.message.coordinator == self.coordinator
            ]
            if self.is_up
            else []
        )
        if not self.is_up or any(
            item.assignment.message.accept_by >= self.schedule.now for item in going
        ):
            self.schedule.after(1, self._rotate_when_answered)
            return
        self.chain.rotate(self.owner)
        self.under_old_keys.update(item.assignment_hash for item in going)
        self.is_rotating = False
        self._go_on()

    def _go_on(self) -> None:
        is_draining = self.behaviour is Behaviour.DENIER or self.is_leaving or self.is_rotating
        if self.is_up and self.core.scalars.is_draining and not is_draining:
            self._drain(False)

    def _drain(self, is_on: bool) -> None:
        """Drains as the daemon does: the offer is withdrawn, and sent again afterwards."""
        self.report(events.DrainRequested(is_on))
        if self.is_up:
            self.report(events.OfferDue())

    def _tick(self) -> None:
        if self.core.next_due() <= self.now:
            self.report(events.Tick())

    def _beat(self) -> None:
        seq, free = Sequence(self.schedule.now_ms), self.core.free_slots()
        if self.behaviour is Behaviour.DENIER:  # it wants to be drawn, and then to choose
            free = tuple(FreeSlots(slot.pool.id(), slot.count, Small(0)) for slot in self.slots)
        for name in self.calls:
            account = self.coordinator if name == FIRST else second_coordinator.ACCOUNT.address
            beat = Heartbeat(self.owner, seq, free, self._named(account), self.clock.now)
            sent = frames.HeartbeatSent(seal(DOMAIN, beat, self.operator.sign))
            self.send(sent, lambda answer: None, name)

    def _named(self, coordinator: Address) -> tuple[LeaseProgress, ...]:
        """The leases that a heartbeat names. A silent provider names none; a sleeper says of those
        that it has given up that it fetches.
        """
        if self.behaviour is Behaviour.SILENT:
            return ()
        pretended = tuple(
            LeaseProgress(item.assignment_hash, WorkStage.FETCHING)
            for item in self.core.executions.values()
            if self.pretends(item) and item.coordinator == coordinator
        )
        return announcements.named(self.core.live(), coordinator) + pretended

    def _follow_chain(self) -> None:
        for event in self.chain.news_for(self.name):
            try:
                self.submit(event)
            except Refused:
                pass  # counted by the watcher; the follower continues
            except Silence:
                return
            self.chain.took(self.name)

    def handle(self, data: bytes) -> object:
        """Takes one frame of the coordinator."""
        if not self.is_up or self.behaviour is Behaviour.DEAF:
            raise Silence
        frame = frames.decode(data)
        if isinstance(frame, frames.CommitSetSent) and self.copier.has(frame.assignment_hash):
            self.copier.reveal(frame.assignment_hash, tries=10)
            return frames.Ok()
        event = self._inbox.event(frame)
        if isinstance(event, events.AssignmentReceived):
            if self._postpones(event):
                return frames.Ok()
            event = self._as_here(event)
        self.submit(event)
        return frames.Ok()

    def _as_here(self, event: events.AssignmentReceived) -> events.AssignmentReceived:
        """The event with what the daemon reads from its machine: its store, and the image."""
        if not self.plan.party:
            return event
        if self.manner == "decline":
            event = replace(event, is_rotating=self.random.random() < 0.6)
        return replace(event, store_room=workload.STORE_ROOM)

    def _postpones(self, event: events.AssignmentReceived) -> bool:
        """Whether this owner says of every Assignment that it has no slot free, as it had."""
        if self.manner != "postpone" or not self.is_up:
            return False
        start_by = UnixSeconds(self.now + self.plan.limits.decline_ahead_max)
        lease = event.assignment.digest(DOMAIN)
        decline = Decline(lease, DeclineReason.BUSY, start_by, self.now)
        self.send(
            frames.DeclineSent(seal(DOMAIN, decline, self.operator.sign)), lambda answer: None
        )
        return True
