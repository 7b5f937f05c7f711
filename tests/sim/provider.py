"""A provider's daemon around the real core, on a machine whose containers outlive the daemon."""

from collections.abc import Callable
from typing import assert_never

from quorate_node.core import effects, events, execution, jury_duty
from quorate_node.core.phases import Committed, Running
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import reconcile
from quorate_node.core.terms import Policy, Room, Terms
from quorate_node.messaging.frame_handler import FrameHandler
from quorate_protocol.crypto.commitment import commitment, result_digest
from quorate_protocol.crypto.hashing import sha256
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.offer import WITHDRAWN, Hardware, Offer, OfferEnvelope, SlotOffer
from quorate_protocol.messages.signed import Commit, Heartbeat, JuryReveal, JuryVote, Reveal
from quorate_protocol.ports import Sandbox, TaskState
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    ZERO_HASH,
    ExitStatus,
    Hash32,
    JobKind,
    Milliseconds,
    Price,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.keys.crypto import KeySigner, recover
from sim import workload
from sim.chain import Chain
from sim.container import Container
from sim.network import Answer, Network, Silence
from sim.operator_keys import OperatorKeys
from sim.parties import BEACON, DOMAIN, HOST, key
from sim.plan import LYING, Behaviour, Plan
from sim.process import Again, Finish, Process, Watcher
from sim.schedule import Schedule

SEND_SECONDS = 2.0
CODEC: PackedCodec[events.Event, effects.Effect] = PackedCodec(events.Event, effects.Effect)


class Provider(Process[events.Event, effects.Effect]):
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
        price = 90_000 if self.planned in LYING else 100_000 + 5_000 * number
        self.slots = (
            SlotOffer(HOST, Small(self.random.choice([1, 1, 2])), Price(0), Price(price), Price(0)),
        )
        self.terms = self._terms(plan)
        self.containers: dict[str, Container] = {}  # survive the daemon
        self.collected: dict[Hash32, Hash32] = {}  # lease -> output on disk; survives the daemon
        self.sealed: dict[
            Hash32, tuple[Hash32, Hash32]
        ] = {}  # ciphertext -> (salt, output); survives too
        self.copied: dict[
            Hash32, Commit
        ] = {}  # a copier's own assignment -> the commit that it took
        self.borrowed: dict[
            Hash32, Reveal
        ] = {}  # likewise -> what opens a commitment that it made in another's name
        self.call: Callable[[bytes], object] = lambda data: (
            None
        )  # the coordinator's gate, set by the world
        self.upload: Callable[[Hash32, Hash32, Hash32], object] = lambda cid, salt, output: None
        self.under_old_keys: set[Hash32] = (
            set()
        )  # executions that were under way when the key was rotated
        self.wiretap: list[
            frames.Frame
        ] = []  # what a copier can see of others; shared, set by the world
        self.peek: Callable[[Hash32], list[Hash32]] = (
            lambda lease: []
        )  # outputs of the same job that are open to somebody
        self.core: ProviderCore
        # only its `event` is used here
        self._inbox = FrameHandler(None, self.coordinator, DOMAIN, recover)  # type: ignore[arg-type]

    def _terms(self, plan: Plan) -> Terms:
        room = Room(64_000, 1 << 36, 1 << 40, 1 << 40, 1 << 40)
        policy = Policy(
            Price(0),
            (),
            (JobKind.TASK,),
            room,
            input_bytes_per_second=1 << 40,
            upload_bytes_per_second=1 << 40,
        )
        keys = {self.coordinator: key("statement").address}
        return Terms(
            self.owner, DOMAIN, plan.limits, BEACON, keys, self.slots, Sandbox.NOOP, policy
        )

    # ----------------------------------------------------------------------------------------- life

    def fresh_core(self) -> ProviderCore:
        """As `Process`."""
        return ProviderCore(self.terms)

    @property
    def any_core(self) -> ProviderCore:
        """As `Process`."""
        return self.core

    def set_core(self, core: object) -> None:
        """As `Process`."""
        assert isinstance(core, ProviderCore)
        self.core = core

    def awake(self) -> None:
        """What the daemon does first: looks at what still runs, then reports for work."""
        observed = {lease: self._state(item) for lease, item in self.containers.items()}
        found = reconcile(self.core.live(), self.core.jury.values(), observed)
        for event in found.happened:
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
        if is_draining != self.core.facts.is_draining:
            self.report(events.DrainRequested(is_draining))
        self.schedule.after(
            self.random.uniform(0, 0.5), self.in_this_life(lambda: self.report(events.OfferDue()))
        )
        self.every(20, lambda: self.report(events.OfferDue()))
        self.every(5, self._beat)
        self.every(1, self._tick)
        self.every(1, self._follow_chain)

    def die(self, is_disk_complete: bool = True) -> None:
        """Now and then the whole machine goes down, and its containers with it."""
        if self.is_up and self.random.random() < 0.25:
            self.containers.clear()
        super().die(is_disk_complete)

    def calm_down(self) -> None:
        """From now on this provider is honest and awake."""
        self.behaviour, self.crash_chance = Behaviour.HONEST, 0.0
        self.clock.correct()
        self._go_on()

    def leave(self) -> None:
        """Its owner exits: what runs is finished, nothing new is taken."""
        self.is_leaving = True
        self.chain.leave(self.owner)
        if self.is_up:
            self._drain(True)

    def rotate(self) -> None:
        """Its owner changes the operator key while jobs run: nothing new is taken until no
        Assignment can still be answered by the old.
        """
        self.is_rotating = True
        if self.is_up and not self.core.facts.is_draining:
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
        self.under_old_keys.update(item.hash for item in going)
        self.is_rotating = False
        self._go_on()

    def _go_on(self) -> None:
        is_draining = self.behaviour is Behaviour.DENIER or self.is_leaving or self.is_rotating
        if self.is_up and self.core.facts.is_draining and not is_draining:
            self._drain(False)

    def _drain(self, is_on: bool) -> None:
        """As the daemon: its offer goes, and comes again."""
        self.report(events.DrainRequested(is_on))
        if self.is_up:
            self.report(events.OfferDue())

    @property
    def operator(self) -> KeySigner:
        """The key of today."""
        return self.keys.current

    def _signer_of(self, lease: Hash32) -> KeySigner:
        """The key that was valid at the Assignment's acceptBy: no other counts (PROTOCOL §2)."""
        return self.keys.at(self.core.executions[lease].assignment.message.accept_by)

    def _tick(self) -> None:
        if self.core.next_due() <= self.now:
            self.report(events.Tick())

    def _beat(self) -> None:
        seq = Sequence(self.schedule.now_ms)
        beat = Heartbeat(self.owner, seq, self.core.free_slots(), self.clock.now)
        self._send(
            frames.HeartbeatSent(seal(DOMAIN, beat, self.operator.sign)), lambda answer: None
        )

    def _follow_chain(self) -> None:
        for event in self.chain.news_for(self.name):
            try:
                self.submit(event)
            except Refused:
                pass  # counted by the watcher; a follower goes on
            except Silence:
                return
            self.chain.took(self.name)
        final = self.chain.newest_final(self.owner)
        if final is not None and final[1] > (self.core.claimed.get(self.coordinator) or 0):
            self.report(events.EpochFinal(self.coordinator, Sequence(final[0]), final[1]))

    def handle(self, data: bytes) -> object:
        """One frame of the coordinator."""
        if not self.is_up or self.behaviour is Behaviour.DEAF:
            raise Silence
        frame = frames.decode(data)
        if isinstance(frame, frames.CommitSetSent) and frame.assignment_hash in {
            **self.copied,
            **self.borrowed,
        }:
            self._reveal_copy(frame.assignment_hash, tries=10)
            return frames.Ok()
        self.submit(self._inbox.event(frame))
        return frames.Ok()

    # -------------------------------------------------------------------------------------- effects

    def perform(self, effect: effects.Effect, finish: Finish) -> None:
        """As `Performer.perform` of the daemon."""
        match effect:
            case effects.SendOffer():
                self._send_offer(effect, finish)
            case effects.SendVote() | effects.SendJuryReveal() | effects.Reexecute():
                duty = self.core.jury.get(effect.case_id)
                if duty is not None and any(
                    due.key == effect.key for due in jury_duty.duties(duty)
                ):
                    self._court(effect, finish)
                else:
                    finish(None)
            case effects.SendClaim():
                self.chain.claim(
                    effect,
                    self.owner,
                    self._then(events.ClaimConfirmed(effect.coordinator, effect.final), finish),
                )
            case effects.StopTask():
                self._stop(effect.lease.hex())
                finish(None)
            case effects.RemoveTask():
                self.containers.pop(effect.lease.hex(), None)
                finish(None)
            case effects.Forget() | effects.WithdrawCredit():
                finish(None)
            case _:
                found = self.core.executions.get(effect.lease)
                if found is None or all(duty.key != effect.key for duty in execution.duties(found)):
                    finish(None)  # overtaken
                else:
                    self._perform_lease(effect, finish)

    def effect_refused(self, effect: effects.Effect, refused: Refused) -> None:
        """As `Performer.refused` of the daemon."""
        match effect:
            case (
                effects.SendAccept()
                | effects.Fetch()
                | effects.StartTask()
                | effects.PublishOutput()
            ):
                self.report(events.Failed(effect.lease, f"{type(effect).__name__}: {refused}"))
            case effects.SendCommit() if refused.code is not Code.NOT_STORED:
                assert refused.code is not Code.WRONG_SIGNER, (
                    f"I3: {self.name} signed with the key of acceptBy, and is not believed"
                )
                self.report(events.Failed(effect.lease, f"commit refused: {refused}"))
            case effects.Reexecute():
                self.report(events.Reexecuted(effect.case_id, effect.index, ZERO_HASH))
            case _:
                pass  # logged by the daemon, nothing else

    def _perform_lease(self, effect: effects.LeaseEffect, finish: Finish) -> None:
        match effect:
            case effects.SendAccept():
                frame: frames.Frame = frames.AcceptSent(
                    seal(DOMAIN, effect.accept, self._signer_of(effect.lease).sign)
                )
                self._send(frame, self._answered(finish, events.AcceptDelivered(effect.lease)))
            case effects.SendDecline():
                if self.clock.now > effect.give_up_at:
                    finish(None)
                    return
                self._send(
                    frames.DeclineSent(
                        seal(DOMAIN, effect.decline, self._signer_of(effect.lease).sign)
                    ),
                    self._answered(finish),
                )
            case effects.Fetch():
                self._fetch(effect, finish)
            case effects.StartTask():
                if self.crash_chance > 0 and self.random.random() < 0.03:
                    finish(Refused(Code.UNKNOWN, "no such image"))
                    return
                self._start(effect)
                self._later(0.05, events.Started(effect.lease), finish)
            case effects.WatchTask():
                self._watch(effect.lease, finish)
            case effects.PublishOutput():
                seconds = 3.0 if self.behaviour is Behaviour.PEEKER else 0.1 + self._late()
                self.schedule.after(
                    seconds, self.in_this_life(lambda: self._collect(effect, finish))
                )
            case effects.SendCommit():
                self._send_commit(effect, finish)
            case effects.SendReveal():
                self._send_reveal(effect, finish)
            case effects.StopTask() | effects.RemoveTask() | effects.Forget():
                raise AssertionError("done by perform")
            case _:
                assert_never(effect)

    def _later(self, seconds: float, event: events.Event, finish: Finish) -> None:
        then = self._then(event, finish)
        self.schedule.after(seconds, self.in_this_life(lambda: then(None)))

    def _then(self, event: events.Event, finish: Finish) -> Finish:
        """Reports the event when it worked, then finishes."""

        def act(result: Again | Refused | None) -> None:
            if result is None:
                self.report(event)
            finish(result)

        return self._guarded(act)

    def _guarded(self, act: Finish) -> Finish:
        life = self.life
        return lambda result: act(result) if self.is_up and self.life == life else None

    def _answered(
        self, finish: Finish, event: events.Event | None = None
    ) -> Callable[[Answer], None]:
        then = self._then(event, finish) if event is not None else self._guarded(finish)

        def act(answer: Answer) -> None:
            if answer is None:
                then(Again(1.0))
            else:
                then(answer if isinstance(answer, Refused) else None)

        return act

    # ------------------------------------------------------------------------------------- messages

    def _send(self, frame: frames.Frame, answered: Callable[[Answer], None]) -> None:
        data = frames.encode(frame)
        self.network.request(
            self.name, "coordinator", lambda: self.call(data), answered, SEND_SECONDS
        )

    def _send_offer(self, effect: effects.SendOffer, finish: Finish) -> None:
        if effect.seq < self.core.facts.offer_seq:
            finish(None)
            return
        hardware, expires = Hardware(64, 1 << 37, 1 << 41), effect.expires
        if expires == WITHDRAWN and self.behaviour is Behaviour.DENIER:
            expires = UnixSeconds(
                self.clock.now + self.terms.limits.offer_ttl
            )  # it wants to be drawn, and to choose
        offer = Offer(
            self.owner,
            effect.seq,
            expires,
            self.slots,
            hardware,
            "noop",
            Small(0),
            (JobKind.TASK,),
            "eu",
            ZERO_HASH,
            ZERO_HASH,
            (),
        )
        frame = frames.OfferSent(
            OfferEnvelope(offer, seal(DOMAIN, offer.signed(), self.operator.sign))
        )
        done = self._answered(finish)
        not_yet = (Code.NOT_REGISTERED,)
        self._send(
            frame,
            lambda answer: done(
                None if isinstance(answer, Refused) and answer.code in not_yet else answer
            ),
        )

    def _send_commit(self, effect: effects.SendCommit, finish: Finish) -> None:
        commit = (
            self._copied(effect.commit) if self.behaviour is Behaviour.COPIER else effect.commit
        )
        done, sign = self._answered(finish), self._signer_of(effect.lease).sign

        def answered(answer: Answer) -> None:
            if isinstance(answer, Refused) and answer.code is Code.NOT_STORED:
                self._upload(effect.commit.encrypted_output, lambda _: done(None))
                return
            done(answer)
            if self.behaviour is Behaviour.EQUIVOCATOR:
                other = replace(effect.commit, commitment=sha256(effect.commit.commitment))
                self._send(frames.CommitSent(seal(DOMAIN, other, sign)), lambda _: None)

        self._send(frames.CommitSent(seal(DOMAIN, commit, sign)), answered)

    def _copied(self, mine: Commit) -> Commit:
        """Another's commitment over the own assignment: worthless, because the other's name is
        inside it. Or its name over the own.
        """
        seen = [
            frame.commit.message for frame in self.wiretap if isinstance(frame, frames.CommitSent)
        ]
        others = [
            item
            for item in seen
            if item.class_id == mine.class_id and item.assignment_hash != mine.assignment_hash
        ]
        if mine.assignment_hash in self.borrowed or (
            mine.assignment_hash not in self.copied and self.random.random() < 0.3
        ):
            return self._in_anothers_name(mine)
        if not others:
            return mine
        model = self.copied.setdefault(mine.assignment_hash, others[-1])
        return replace(mine, commitment=model.commitment, encrypted_output=model.encrypted_output)

    def _in_anothers_name(self, mine: Commit) -> Commit:
        lease = mine.assignment_hash
        phase = self.core.executions[lease].phase
        if lease not in self.borrowed:
            assert isinstance(phase, Committed), "a Commit is sent by what has committed"
            self.borrowed[lease] = replace(
                phase.reveal,
                provider=key("owner", (self.number + 1) % len(self.plan.behaviours)).address,
            )
        opened = self.borrowed[lease]
        result = result_digest(opened.exit_status, opened.output_digest)
        return replace(mine, commitment=commitment(lease, opened.provider, opened.salt, result))

    def _send_reveal(self, effect: effects.SendReveal, finish: Finish) -> None:
        if self.behaviour is Behaviour.MUTE:
            finish(None)
            return
        answered = self._answered(finish)
        again = self.in_this_life(lambda: self._send(frames.RevealSent(effect.reveal), answered))
        self.schedule.after(self._late(0.4), again)

    def _reveal_copy(self, lease: Hash32, tries: int) -> None:
        """Opens a copied commitment with what the other opened it with, as soon as that can be
        seen; one in its name in its name.
        """
        if lease in self.borrowed:
            self._send(frames.RevealSent(self.borrowed[lease]), lambda answer: None)
            return
        model = self.copied[lease].assignment_hash
        seen = [
            frame.reveal
            for frame in self.wiretap
            if isinstance(frame, frames.RevealSent) and frame.reveal.assignment_hash == model
        ]
        if seen:
            name = self.random.choice([seen[0].provider, self.owner, self.owner])
            self._send(
                frames.RevealSent(replace(seen[0], assignment_hash=lease, provider=name)),
                lambda answer: None,
            )
        elif tries:
            self.schedule.after(0.5, self.in_this_life(lambda: self._reveal_copy(lease, tries - 1)))

    def _upload(self, ciphertext: Hash32, answered: Callable[[Answer], None]) -> None:
        salt, output = self.sealed[ciphertext]
        self.network.request(
            self.name,
            "coordinator",
            lambda: self.upload(ciphertext, salt, output),
            answered,
            SEND_SECONDS,
        )

    # -------------------------------------------------------------------------------------- machine

    def _fetch(self, effect: effects.Fetch, finish: Finish) -> None:
        if self.behaviour is Behaviour.SLEEPER:
            return  # never: the Tick at commitBy ends it
        if (
            self.behaviour is Behaviour.HONEST
            and self.crash_chance > 0
            and self.random.random() < 0.02
        ):
            self._later(
                1.0,
                events.Failed(effect.lease, "a source gave other bytes than its CID says"),
                finish,
            )
            return
        self._later(
            self.random.uniform(0.05, 0.6) + self._late(), events.Fetched(effect.lease), finish
        )

    def _late(self, chance: float = 0.2) -> float:
        """Beyond every deadline, sometimes."""
        return (
            self.random.uniform(5, 90)
            if self.behaviour is Behaviour.LATE and self.random.random() < chance
            else 0.0
        )

    def _start(self, effect: effects.StartTask) -> None:
        lease_id = effect.lease.hex()
        if lease_id not in self.containers:
            now = self.schedule.now_ms
            self.containers[lease_id] = Container(
                effect.spec, now, now + workload.truth(effect.spec, self.name).milliseconds
            )

    def _stop(self, lease_id: str) -> None:
        found = self.containers.get(lease_id)
        if found is not None and found.ends_ms > self.schedule.now_ms:
            found.ends_ms, found.is_stopped = self.schedule.now_ms, True

    def _state(self, item: Container) -> TaskState:
        return TaskState.RUNNING if item.ends_ms > self.schedule.now_ms else TaskState.EXITED

    def running(self) -> int:
        """Containers that run now."""
        return sum(1 for item in self.containers.values() if item.ends_ms > self.schedule.now_ms)

    def _watch(self, lease: Hash32, finish: Finish) -> None:
        found = self.containers.get(lease.hex())
        if found is None:
            self._later(0, events.Failed(lease, "its container vanished"), finish)
        elif found.ends_ms > self.schedule.now_ms:
            wait = min(0.5, (found.ends_ms - self.schedule.now_ms) / 1000)
            self.schedule.after(wait, self.in_this_life(lambda: self._watch(lease, finish)))
        else:
            boast = int(found.spec.max_duration) * 1000 if self.plan.has_boasters else 0
            usage = Milliseconds(max(boast, found.ends_ms - found.started_ms))
            status = (
                workload.STOPPED
                if found.is_stopped
                else workload.truth(found.spec, self.name).status
            )
            self._later(0, events.Exited(lease, status, usage), finish)

    def _collect(self, effect: effects.PublishOutput, finish: Finish) -> None:
        lease = effect.lease
        if lease not in self.core.executions:
            finish(None)  # forgotten in the meantime
            return
        if lease not in self.collected:
            if lease.hex() not in self.containers:
                self._later(0, events.Failed(lease, "its outputs vanished"), finish)
                return
            self.collected[lease] = self._output(lease, self.core.executions[lease].spec)
        self.schedule.after(
            0.05 + self._late(0.6), self.in_this_life(lambda: self._seal(effect, finish))
        )

    def _seal(self, effect: effects.PublishOutput, finish: Finish) -> None:
        output = self.collected[effect.lease]
        ciphertext = sha256(effect.salt + output)
        self.sealed[ciphertext] = (effect.salt, output)
        published = events.OutputPublished(effect.lease, output, ciphertext)
        again = self.in_this_life(
            lambda: self._upload(ciphertext, self._answered(finish, published))
        )
        self.schedule.after(self._late(), again)

    def _output(self, lease: Hash32, spec: JobSpec) -> Hash32:
        found = self.containers.get(lease.hex())
        if found is not None and found.is_stopped:
            return sha256(b"partial" + str(found.ends_ms - found.started_ms).encode())
        if self.behaviour is Behaviour.PEEKER:
            seen = self.peek(lease)
            return self.random.choice(seen) if seen else self._lie(spec)
        return (
            self._lie(spec) if self.behaviour in LYING else workload.truth(spec, self.name).output
        )

    def _lie(self, spec: JobSpec) -> Hash32:
        """Of a ring all give the same; two others never agree: whoever owns most slots of a
        class decides there (docs/trust).
        """
        return workload.lie(spec, "the ring" if self.planned is Behaviour.COLLUDER else self.name)

    # ---------------------------------------------------------------------------------------- court

    def _court(self, effect: effects.CourtEffect, finish: Finish) -> None:
        match effect:
            case effects.Reexecute():
                self._reexecute(effect, finish)
            case effects.SendVote():
                vote = JuryVote(effect.case_id, self.owner, effect.ballot)
                then = self._then(events.VoteConfirmed(effect.case_id), finish)
                self.chain.vote(effect.key, seal(DOMAIN, vote, self.operator.sign), then)
            case effects.SendJuryReveal():
                opened = JuryReveal(effect.case_id, self.owner, effect.digests, effect.salt)
                self.chain.reveal(effect.key, opened, self._guarded(finish))

    def _reexecute(self, effect: effects.Reexecute, finish: Finish) -> None:
        spec = self.chain.specs.get(effect.spec_hash)
        if self.planned is Behaviour.SLEEPER or self.random.random() < 0.04:
            return  # no-shows do not hold up a court
        if spec is None:
            self._later(5.0, events.Reexecuted(effect.case_id, effect.index, ZERO_HASH), finish)
            return
        ran = workload.truth(spec, self.name)
        digest = ran.result()
        if self.behaviour in LYING:
            digest = result_digest(ExitStatus(ran.status), self._lie(spec))
        self._later(
            ran.milliseconds / 1000, events.Reexecuted(effect.case_id, effect.index, digest), finish
        )
