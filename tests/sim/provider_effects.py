"""Performs a simulated provider's effects: messages, containers, and its part in the court.

Containers are on a simulated machine, so they outlive the daemon.
"""

from collections.abc import Callable
from typing import assert_never

from quorate_node.core import effects, events, jury_duty, machines
from quorate_node.core.phases import Execution, Lapsed, Over
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import Terms
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.messages import frames, offer_gossip
from quorate_protocol.messages.classes import Host
from quorate_protocol.messages.commitment import result_digest
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.offer import WITHDRAWN, OfferEnvelope, SlotOffer
from quorate_protocol.messages.offer_gossip import OfferGossip
from quorate_protocol.messages.ports import TaskState
from quorate_protocol.messages.signed import JuryVote
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, ExitStatus, Hash32, Milliseconds, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from sim import second_coordinator, workload
from sim.chain import Chain
from sim.container import Container
from sim.copier import Copier
from sim.network import Answer, Network
from sim.operator_keys import OperatorKeys
from sim.parties import DOMAIN, START
from sim.plan import LYING, Behaviour
from sim.process import Again, Finish, Process
from support.offers import an_offer

SEND_SECONDS = 2.0
METER_LIE_MS = 8_000
FIRST = "coordinator"


class ProviderEffects(Process[events.Event, effects.Effect]):
    """The part of a provider that performs the core's effects. Subclasses run its life."""

    number: int
    network: Network
    chain: Chain
    owner: Address
    keys: OperatorKeys
    planned: Behaviour
    behaviour: Behaviour
    manner: str
    slots: tuple[SlotOffer, ...]
    host: Host
    groups: tuple[tuple[str, ...], ...]  # UUIDs of the GPUs of each run slot
    lost_gpus: frozenset[str]
    terms: Terms
    containers: dict[str, Container]
    sealed: dict[Hash32, tuple[Hash32, Hash32]]
    copier: Copier
    coordinator: Address
    calls: dict[str, Callable[[bytes], object]]  # frame handlers of the coordinators by name
    publish: Callable[[str, bytes], None]
    upload: Callable[[Hash32, Hash32, Hash32], object]
    peek: Callable[[Hash32], list[Hash32]]
    core: ProviderCore

    @property
    def operator(self) -> KeySigner:
        """The operator key that is valid now."""
        return self.keys.current

    def signer_of(self, lease: Hash32) -> KeySigner:
        """The key that was valid at the Assignment's acceptBy: no other counts (PROTOCOL §2)."""
        return self.keys.at(self.core.executions[lease].assignment.message.accept_by)

    def keep_evidence(self, effect: effects.KeepEvidence) -> None:
        """Keeps what shows an execution of a funded order on chain."""
        raise NotImplementedError

    def perform(self, effect: effects.Effect, finish: Finish) -> None:
        """Performs an effect, as `EffectPerformer.perform` of the daemon does."""
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
            case effects.StopTask():
                self._stop(effect.assignment_hash.hex())
                finish(None)
            case effects.RemoveTask():
                self.containers.pop(effect.assignment_hash.hex(), None)
                finish(None)
            case effects.ForgetLease():
                finish(None)
            case effects.KeepEvidence():
                self.keep_evidence(effect)
                finish(None)
            case _:
                found = self.core.executions.get(effect.assignment_hash)
                if found is None or all(duty.key != effect.key for duty in machines.duties(found)):
                    finish(None)  # the phase has moved on
                else:
                    self._perform_lease(effect, finish)

    def effect_refused(self, effect: effects.Effect, refused: Refused) -> None:
        """Handles a refusal, as `EffectPerformer.refused` of the daemon does."""
        match effect:
            case (
                effects.SendAccept()
                | effects.FetchInputs()
                | effects.StartTask()
                | effects.PublishOutput()
            ):
                self.report(
                    events.TaskFailed(effect.assignment_hash, f"{type(effect).__name__}: {refused}")
                )
            case effects.SendCommit() if refused.code is not Code.NOT_STORED:
                assert refused.code is not Code.WRONG_SIGNER, (
                    f"I3: {self.name} signed with the key of acceptBy, and is not believed"
                )
                self.report(events.TaskFailed(effect.assignment_hash, f"commit refused: {refused}"))
            case effects.Reexecute():
                self.report(events.Reexecuted(effect.case_id, ZERO_HASH))
            case _:
                pass  # the daemon only logs it

    def _perform_lease(self, effect: effects.LeaseEffect, finish: Finish) -> None:
        match effect:
            case effects.SendAccept():
                frame: frames.Frame = frames.AcceptSent(
                    seal(DOMAIN, effect.accept, self.signer_of(effect.assignment_hash).sign)
                )
                self._send_of(
                    effect.assignment_hash,
                    frame,
                    self._answered(finish, events.AcceptDelivered(effect.assignment_hash)),
                )
            case effects.SendDecline():
                given_up = self.core.executions[effect.assignment_hash]
                if self.clock.now > effect.give_up_at or self.pretends(given_up):
                    finish(None)
                    return
                self._send_of(
                    effect.assignment_hash,
                    frames.DeclineSent(
                        seal(DOMAIN, effect.decline, self.signer_of(effect.assignment_hash).sign)
                    ),
                    self._answered(finish),
                )
            case effects.FetchInputs():
                self._fetch(effect, finish)
            case effects.StartTask():
                if self.crash_chance > 0 and self.random.random() < 0.03:
                    finish(Refused(Code.UNKNOWN, "no such image"))
                    return
                if self._is_in_use(effect):
                    finish(Again(1.0))  # the engine still ends another container with this GPU
                    return
                self._start(effect)
                self._later(0.05, events.TaskStarted(effect.assignment_hash), finish)
            case effects.WatchTask():
                self._watch(effect.assignment_hash, finish)
            case effects.PublishOutput():
                late = self._late(effect.assignment_hash)
                seconds = 3.0 if self.behaviour is Behaviour.PEEKER else 0.1 + late
                self.schedule.after(
                    seconds, self.in_this_life(lambda: self._collect(effect, finish))
                )
            case effects.SendCommit():
                self._send_commit(effect, finish)
            case effects.SendMeter():
                self._send_meter(effect, finish)
            case effects.SendReveal():
                self._send_reveal(effect, finish)
            case effects.StopTask() | effects.RemoveTask() | effects.ForgetLease():
                raise AssertionError("done by perform")
            case _:
                assert_never(effect)

    def _later(self, seconds: float, event: events.Event, finish: Finish) -> None:
        then = self._then(event, finish)
        self.schedule.after(seconds, self.in_this_life(lambda: then(None)))

    def _then(self, event: events.Event, finish: Finish) -> Finish:
        """Reports the event if the effect succeeded, then finishes."""

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

    def send(
        self, frame: frames.Frame, answered: Callable[[Answer], None], to: str = FIRST
    ) -> None:
        """Sends a frame to one coordinator."""
        data = frames.encode(frame)
        self.network.request(self.name, to, lambda: self.calls[to](data), answered, SEND_SECONDS)

    def send_others(self, frame: frames.Frame) -> None:
        """Sends a frame to the other coordinators, without waiting."""
        for name in self.calls.keys() - {FIRST}:
            self.send(frame, lambda answer: None, name)

    def is_of_first(self, lease: Hash32) -> bool:
        """Whether a lease is one of the coordinator that is checked."""
        found = self.core.executions.get(lease)
        return found is None or found.coordinator == self.coordinator

    def _send_of(
        self, lease: Hash32, frame: frames.Frame, answered: Callable[[Answer], None]
    ) -> None:
        """Sends a frame to the coordinator of a lease."""
        self.send(frame, answered, FIRST if self.is_of_first(lease) else second_coordinator.NAME)

    def _send_offer(self, effect: effects.SendOffer, finish: Finish) -> None:
        if effect.seq < self.core.scalars.offer_seq:
            finish(None)
            return
        expires = effect.expires
        if expires == WITHDRAWN and self.behaviour is Behaviour.DENIER:
            expires = UnixSeconds(
                self.clock.now + self.terms.limits.offer_ttl
            )  # it wants to be drawn, and then to choose
        offer = an_offer(self.owner, effect.seq, expires, self.core.offered_slots() or self.slots)
        facts = self.core.scalars
        offer = replace(offer, store_bytes=facts.store_bytes, bandwidth=facts.bandwidth)
        offer = replace(offer, kinds=self.terms.policy.kinds)
        frame = frames.OfferSent(
            OfferEnvelope(offer, seal(DOMAIN, offer.signed(), self.operator.sign))
        )
        self.send_others(frame)
        self.publish(self.name, offer_gossip.encode(OfferGossip(frame.offer)))
        done = self._answered(finish)
        not_yet = (Code.NOT_REGISTERED, Code.OVER_STAKE)
        self.send(
            frame,
            lambda answer: done(
                None if isinstance(answer, Refused) and answer.code in not_yet else answer
            ),
        )

    def _send_commit(self, effect: effects.SendCommit, finish: Finish) -> None:
        commit = (
            self.copier.commit(effect.commit)
            if self.behaviour is Behaviour.COPIER and self.is_of_first(effect.assignment_hash)
            else effect.commit
        )
        done, sign = self._answered(finish), self.signer_of(effect.assignment_hash).sign

        def answered(answer: Answer) -> None:
            if isinstance(answer, Refused) and answer.code is Code.NOT_STORED:
                self._upload(
                    effect.assignment_hash, effect.commit.encrypted_output, lambda _: done(None)
                )
                return
            done(answer)
            if self.behaviour is Behaviour.EQUIVOCATOR:
                other = replace(effect.commit, commitment=sha256(effect.commit.commitment))
                equivocal = frames.CommitSent(seal(DOMAIN, other, sign))
                self._send_of(effect.assignment_hash, equivocal, lambda _: None)

        sent = frames.CommitSent(seal(DOMAIN, commit, sign))
        self._send_of(effect.assignment_hash, sent, answered)

    def _send_meter(self, effect: effects.SendMeter, finish: Finish) -> None:
        lease, claimed = effect.assignment_hash, effect.usage_ms
        if self.behaviour in LYING:
            claimed = Milliseconds(claimed + METER_LIE_MS)

        def answered(answer: Answer) -> None:
            is_early = isinstance(answer, Refused) and answer.code is Code.TOO_EARLY
            if answer is None or is_early:
                finish(Again(1.0))
                return
            refusal = str(answer) if isinstance(answer, Refused) else ""
            self.report(events.MeterAnswered(lease, effect.usage_ms, refusal))
            finish(None)

        self._send_of(
            lease, frames.Metered(lease, claimed, effect.exit_status), self._guard(answered)
        )

    def _guard(self, act: Callable[[Answer], None]) -> Callable[[Answer], None]:
        life = self.life
        return lambda answer: act(answer) if self.is_up and self.life == life else None

    def _send_reveal(self, effect: effects.SendReveal, finish: Finish) -> None:
        if self.behaviour is Behaviour.MUTE:
            finish(None)
            return
        answered = self._answered(finish)
        again = self.in_this_life(lambda: self.send(frames.RevealSent(effect.reveal), answered))
        self.schedule.after(self._late_to_reveal(effect.assignment_hash), again)

    def _upload(
        self, lease: Hash32, ciphertext: Hash32, answered: Callable[[Answer], None]
    ) -> None:
        if not self.is_of_first(lease):
            self.schedule.after(0.05, self.in_this_life(lambda: answered(True)))
            return
        salt, output = self.sealed[ciphertext]
        self.network.request(
            self.name, FIRST, lambda: self.upload(ciphertext, salt, output), answered, SEND_SECONDS
        )

    # -------------------------------------------------------------------------------------- machine

    def _fetch(self, effect: effects.FetchInputs, finish: Finish) -> None:
        if self.behaviour is Behaviour.SLEEPER:
            return  # Never fetches; the Tick at commitBy ends the execution.
        gone, passed = self.plan.inputs_gone, self.schedule.now - START
        is_gone = gone is not None and 0 <= passed - gone.start < gone.seconds
        # The last source is the coordinator's store.
        has_it = any(workload.can_fetch(effect.spec, who) for who in (self.name, FIRST))
        if is_gone or not has_it:
            failed = events.TaskFailed(effect.assignment_hash, "no source had an input")
            self._later(1.0, failed, finish)
            return
        if (
            self.behaviour is Behaviour.HONEST
            and self.crash_chance > 0
            and self.random.random() < 0.02
        ):
            self._later(
                1.0,
                events.TaskFailed(
                    effect.assignment_hash, "a source gave other bytes than its CID says"
                ),
                finish,
            )
            return
        seconds, rate = self.random.uniform(0.05, 0.6), 0
        if effect.spec.fetch_allowance():
            chance = self.plan.stream(f"fetch/{effect.assignment_hash.hex()}")
            seconds *= chance.choice((1, 5, 20))  # in its cache, within the allowance, beyond
            rate = chance.choice((3 << 20, 30 << 20, 300 << 20))
        self._later(
            seconds + self._late(effect.assignment_hash),
            events.InputsFetched(effect.assignment_hash, rate),
            finish,
        )

    def pretends(self, found: Execution) -> bool:
        """Whether it says of a lease that it still fetches, although it has given it up."""
        return self.behaviour is Behaviour.SLEEPER and isinstance(found.phase, Lapsed)

    def _late(self, lease: Hash32, chance: float = 0.2) -> float:
        """A delay beyond every deadline, sometimes; none for a lease that is late at its reveal."""
        if self.behaviour is not Behaviour.LATE or _is_late_at_reveal(lease):
            return 0.0
        return self.random.uniform(5, 90) if self.random.random() < chance else 0.0

    def _late_to_reveal(self, lease: Hash32) -> float:
        """A delay of a Reveal. The provider must commit in time, or nobody would ask for it."""
        if self.behaviour is not Behaviour.LATE or not _is_late_at_reveal(lease):
            return 0.0
        return self.random.uniform(5, 40)

    def _start(self, effect: effects.StartTask) -> None:
        lease_id = effect.assignment_hash.hex()
        if lease_id not in self.containers:
            now = self.schedule.now_ms
            ends = now + workload.truth(effect.spec, self.name, self.host).milliseconds
            if effect.spec.kind.is_rental:
                ends = min(ends, now + int(effect.spec.max_duration) * 1000)
            self.containers[lease_id] = Container(effect.spec, now, ends, effect.gpus)
            self.containers[lease_id].has_lost_gpu = not self.lost_gpus.isdisjoint(effect.gpus)

    def _stop(self, lease_id: str) -> None:
        found = self.containers.get(lease_id)
        if found is not None and found.ends_ms > self.schedule.now_ms:
            found.ends_ms, found.is_stopped = self.schedule.now_ms, True

    def look_at_gpus(self) -> None:
        """Tells the core which GPUs the driver lists, if that has changed."""
        listed = self.terms.gpus - self.lost_gpus
        if self.is_up and listed != self.core.terms.gpus - self.core.gone():
            self.report(events.GpusRead(tuple(sorted(listed))))

    def state_of(self, item: Container) -> TaskState:
        return TaskState.RUNNING if item.ends_ms > self.schedule.now_ms else TaskState.EXITED

    def _is_in_use(self, effect: effects.StartTask) -> bool:
        """A container still ends whose lease is over, as the daemon asks it."""
        over = [it for it in self.core.executions.values() if isinstance(it.phase, Over | Lapsed)]
        ending = [self.containers.get(it.lease_id) for it in over if it.pool == effect.pool]
        return any(it in self.running_containers() for it in ending if it is not None)

    def running_containers(self) -> list[Container]:
        """The containers that run now."""
        return [item for item in self.containers.values() if item.ends_ms > self.schedule.now_ms]

    def running(self) -> int:
        """How many containers run now."""
        return len(self.running_containers())

    def _watch(self, lease: Hash32, finish: Finish) -> None:
        found = self.containers.get(lease.hex())
        if found is None:
            self._later(0, events.TaskFailed(lease, "its container vanished"), finish)
        elif found.ends_ms > self.schedule.now_ms:
            wait = min(0.5, (found.ends_ms - self.schedule.now_ms) / 1000)
            self.schedule.after(wait, self.in_this_life(lambda: self._watch(lease, finish)))
        else:
            pads = self.plan.has_boasters or self.manner == "pad"
            boast = int(found.spec.max_duration) * 1000 if pads else 0
            usage = Milliseconds(max(boast, found.ends_ms - found.started_ms))
            status = (
                workload.STOPPED
                if found.is_stopped
                else workload.truth(found.spec, self.name, self.host).status
            )
            self.look_at_gpus()
            self._later(0, events.TaskExited(lease, status, usage), finish)

    def _collect(self, effect: effects.PublishOutput, finish: Finish) -> None:
        lease = effect.assignment_hash
        if lease not in self.core.executions:
            finish(None)  # the execution was forgotten in the meantime
            return
        if lease not in self.collected:
            if lease.hex() not in self.containers:
                self._later(0, events.TaskFailed(lease, "its outputs vanished"), finish)
                return
            self.collected[lease] = self._output(lease, self.core.executions[lease].spec)
        self.schedule.after(
            0.05 + self._late(lease, 0.6), self.in_this_life(lambda: self._seal(effect, finish))
        )

    def _seal(self, effect: effects.PublishOutput, finish: Finish) -> None:
        output = self.collected[effect.assignment_hash]
        ciphertext = sha256(effect.salt + output)
        self.sealed[ciphertext] = (effect.salt, output)
        published = events.OutputPublished(effect.assignment_hash, output, ciphertext)
        again = self.in_this_life(
            lambda: self._upload(
                effect.assignment_hash, ciphertext, self._answered(finish, published)
            )
        )
        self.schedule.after(self._late(effect.assignment_hash), again)

    def _output(self, lease: Hash32, spec: JobSpec) -> Hash32:
        found = self.containers.get(lease.hex())
        if found is not None and found.has_lost_gpu:
            return sha256(b"broken" + self.name.encode() + spec.encode())
        if found is not None and found.is_stopped:
            return sha256(b"partial" + str(found.ends_ms - found.started_ms).encode())
        if self.behaviour not in LYING and workload.kind_of(spec) == workload.COIN:
            return workload.toss(spec, lease)
        if self.behaviour is Behaviour.PEEKER:
            seen = self.peek(lease)
            return self.random.choice(seen) if seen else self._lie(spec)
        if self.behaviour in LYING:
            return self._lie(spec)
        return workload.truth(spec, self.name, self.host).output

    def _lie(self, spec: JobSpec) -> Hash32:
        """A false output. Colluders all give the same; two other liars never agree.

        An owner with most slots of a class decides the results there (docs/trust).
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
                self.chain.vote(effect, seal(DOMAIN, vote, self.operator.sign), then)
            case effects.SendJuryReveal():
                self.chain.reveal(effect, self.owner, self._guarded(finish))

    def _reexecute(self, effect: effects.Reexecute, finish: Finish) -> None:
        spec = self.chain.specs.get(effect.spec_hash)
        is_away = not self.plan.party and self.random.random() < 0.04
        if self.planned is Behaviour.SLEEPER or is_away:
            return  # a juror that does not vote must not stop a court
        if spec is None:
            self._later(5.0, events.Reexecuted(effect.case_id, ZERO_HASH), finish)
            return
        ran = workload.truth(spec, self.name, self.host)
        is_mine = self.core.terms.class_of(effect.pool, spec) == effect.class_id
        digest = ran.result() if is_mine else ZERO_HASH
        if self.behaviour in LYING:
            digest = result_digest(ExitStatus(ran.status), self._lie(spec))
        then = self._then(events.Reexecuted(effect.case_id, digest), finish)

        def act() -> None:
            self.look_at_gpus()
            then(None)

        self.schedule.after(ran.milliseconds / 1000, self.in_this_life(act))


def _is_late_at_reveal(lease: Hash32) -> bool:
    """Whether a late provider does all of a lease in time, except its Reveal: every second one."""
    return lease[0] % 2 == 0
