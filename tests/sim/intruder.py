"""An intruder that sends forged, replayed, foreign and malformed messages.

All must be refused and change nothing. It may hold real keys: then it is a provider or coordinator
that breaks the rules, which must not help it either.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.lease import Lease
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.signed import Accept, Commit, Heartbeat, Reveal
from quorate_protocol.refusals import Refused
from quorate_protocol.units import (
    ZERO_HASH,
    ExitStatus,
    Hash32,
    Milliseconds,
    Round,
    Seconds,
    Sequence,
    Signature,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from sim import intruder_api, intruder_provider
from sim.network import Silence
from sim.parties import DOMAIN, FOREIGN, key
from sim.provider import Provider
from sim.world import World
from support.offers import an_offer, class_of

EVERY_SECONDS = 2.5
STRANGER = key("stranger")
Attack = tuple[Callable[[], object], str] | None
"""A message to send and the refusal codes that may answer it; None when there is no target now."""


@dataclass(slots=True)
class Intruder:
    """Sends one attack after another during the safety phase."""

    world: World
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = self.world.plan.stream("intruder")

    def start(self) -> None:
        """Starts the attacks, until the liveness phase."""
        if self.world.is_calm:
            return
        self._try()
        self.world.schedule.after(EVERY_SECONDS * self.random.uniform(0.3, 1.7), self.start)

    def _try(self) -> None:
        daemon = self.world.coordinator
        if not daemon.is_up:
            return
        kind = self.random.random()
        if kind < 0.4:
            target, attack = "coordinator", self.random.choice(FRAMES)(self)
        elif kind < 0.7:
            target, attack = (
                "coordinator",
                self.random.choice(intruder_api.ATTACKS)(self.world, self.random),
            )
        else:
            provider = self.random.choice(self.world.providers)
            if not provider.is_up:
                return
            target, attack = (
                provider.name,
                self.random.choice(intruder_provider.ATTACKS)(self.world, provider, self.random),
            )
        if attack is not None:
            self._expect(target, *attack)

    def _expect(self, target: str, act: Callable[[], object], codes: str) -> None:
        core = (
            self.world.coordinator.core
            if target == "coordinator"
            else self.world.checks.providers[target].core
        )
        before = core.snapshot() if self.random.random() < 0.15 else None
        try:
            act()
        except Refused as refused:
            assert refused.code.value in codes.split(), (
                f"an attack was refused as {refused.code.value}, not as one of {codes}: {refused}"
            )
            self.world.coverage.code(target, refused.code.value)
            assert before is None or core.snapshot() == before, (
                "a refused message changed the state"
            )
        except Silence:
            # The target is down or deaf, or it crashed at something else that was due at this
            # moment.
            return
        else:
            assert "ok" in codes.split(), (
                f"an attack on {target} was taken; expected one of {codes}"
            )

    # --------------------------------------------------------------------------------------- frames

    def frame(self, frame: frames.Frame) -> Callable[[], object]:
        """Sends a frame to the coordinator, outside the network."""
        data = frames.encode(frame)
        return lambda: self.world.coordinator.handle(data)

    def lease_in(self, *phases: type) -> Lease | None:
        """A lease of the coordinator in one of these phases."""
        found = [
            item
            for item in self.world.coordinator.core.state.leases.values()
            if isinstance(item.phase, phases)
        ]
        return self.random.choice(found) if found else None

    def operator_of(self, lease: Lease) -> Callable[[Hash32], Signature]:
        """Signs as the lease's provider."""
        return self.world.chain.keys[lease.provider].at(lease.assignment.message.accept_by).sign

    def owner_of(self, lease: Lease) -> Provider:
        """The lease's provider."""
        return next(one for one in self.world.providers if one.owner == lease.provider)

    def commit_for(self, lease: Lease, is_right_class: bool) -> Commit:
        """A commit that the provider never made."""
        spec = self.world.coordinator.core.state.jobs[lease.job_id].submission.spec
        (slot,) = self.owner_of(lease).slots
        right = class_of(spec, slot.host, slot.pool)
        class_id = right if is_right_class else Hash32(b"\x07" * 32)
        return Commit(
            lease.assignment_hash,
            class_id,
            Hash32(self.random.randbytes(32)),
            Hash32(self.random.randbytes(32)),
            Milliseconds(5),
            Round(1),
        )


def _garbage(intruder: Intruder) -> Attack:
    unknown = [b'{"frame":{"kind":"Nothing"}}', b'{"frame":{"kind":"Ok"}, "a":1}']
    data = intruder.random.choice([b"{", b"\xff\xfe", b"[]", b'{"frame":1.5}', *unknown])
    return lambda: intruder.world.coordinator.handle(data), "malformed unknown-field"


def _spoilt_form(intruder: Intruder) -> Attack:
    whole = frames.encode(frames.Ok())
    data, code = intruder.random.choice(
        [
            (whole + b" ", "not-canonical"),
            (whole.replace(b'"Ok"', b'"Ok","more":1'), "unknown-field"),
            (b" " * ((1 << 20) + 1), "oversize"),
            (whole, "unsupported"),
        ]
    )
    return lambda: intruder.world.coordinator.handle(data), code


def _heartbeat(intruder: Intruder) -> Attack:
    world = intruder.world
    victim = intruder.random.choice(world.providers)
    beat = Heartbeat(victim.owner, Sequence(2**40), (), (), world.coordinator.now)
    stranger = Heartbeat(STRANGER.address, Sequence(1), (), (), world.coordinator.now)
    own = victim.operator.sign
    long_ago = UnixSeconds(world.coordinator.now - 100)
    late = Heartbeat(victim.owner, Sequence(2**40), (), (), long_ago)
    high = bytearray(seal(DOMAIN, beat, own).sig)
    high[32] = 0xFF
    envelope, code = intruder.random.choice(
        [
            (seal(DOMAIN, beat, _wrong_signer(intruder, victim, 2**62)), "wrong-signer"),
            (seal(FOREIGN, beat, own), "wrong-signer not-registered bad-signature"),
            (seal(DOMAIN, stranger, STRANGER.sign), "not-registered"),
            (seal(DOMAIN, late, own), "stale not-registered"),
            (Envelope(beat, Signature(bytes(64) + b"\x1b")), "bad-signature"),
            (Envelope(beat, Signature(bytes(high))), "bad-signature"),
        ]
    )
    return intruder.frame(frames.HeartbeatSent(envelope)), code + " not-registered" + _unheard(
        intruder, victim
    )


def _unheard(intruder: Intruder, victim: Provider) -> str:
    """One more code for a provider's own signature, while the coordinator does not know its new
    key.
    """
    known = intruder.world.coordinator.core.state.providers.get(victim.owner)
    return (
        ""
        if known is not None and known.operator_key == victim.operator.address
        else " wrong-signer"
    )


def _wrong_signer(
    intruder: Intruder, victim: Provider, moment: int
) -> Callable[[Hash32], Signature]:
    """A key that does not speak for a provider at this time.

    It is one of the provider's earlier or later keys, once the coordinator knows the rotation, else
    a stranger's.
    """
    valid = (victim.keys.at(moment), victim.keys.at(moment + 1))  # inclusive at both ends
    others = [
        ring_key for ring_key in (*victim.keys.past, victim.operator) if ring_key not in valid
    ]
    return others[-1].sign if others and not _unheard(intruder, victim) else STRANGER.sign


def _offer(intruder: Intruder) -> Attack:
    world, victim = intruder.world, intruder.random.choice(intruder.world.providers)
    expires, code, number, sign = intruder.random.choice(
        [
            (world.coordinator.clock.now - 1, "expired", 2**40, victim.operator.sign),
            (world.coordinator.clock.now + 10**6, "expired", 2**40, victim.operator.sign),
            (world.coordinator.clock.now + 60, "wrong-signer", 2**40, STRANGER.sign),
            (world.coordinator.clock.now + 60, "stale", 0, victim.operator.sign),
            (world.coordinator.clock.now + 60, "over-stake", 2**40, victim.operator.sign),
        ]
    )
    slots = victim.slots
    if code == "over-stake":
        slots = (replace(slots[0], count=Small(200)),)
    offer = an_offer(victim.owner, number, expires, slots)
    known = world.coordinator.core.state.providers.get(victim.owner)
    if number == 0 and (known is None or known.offer is None):
        return None
    frame = frames.OfferSent(OfferEnvelope(offer, seal(DOMAIN, offer.signed(), sign)))
    return intruder.frame(frame), code + " not-registered" + _unheard(intruder, victim)


def _others_accept(intruder: Intruder) -> Attack:
    # An Assignment without an answer comes first: only there the coordinator judges a quote.
    open_lease = intruder.lease_in(leases.Assigned)
    lease = open_lease or intruder.lease_in(leases.Accepted, leases.Committed)
    if lease is None:
        return None
    accept = Accept(
        lease.assignment_hash,
        intruder.owner_of(lease).host.digest(),
        Seconds(0),
        Seconds(1),
        Seconds(0),
        intruder.world.coordinator.now,
    )
    long = Accept(
        lease.assignment_hash,
        intruder.owner_of(lease).host.digest(),
        Seconds(intruder.random.choice([3_000, 10**6])),
        Seconds(1),
        Seconds(0),
        intruder.world.coordinator.now,
    )
    old = Accept(
        lease.assignment_hash,
        intruder.owner_of(lease).host.digest(),
        Seconds(0),
        Seconds(1),
        Seconds(0),
        UnixSeconds(1),
    )
    own = intruder.operator_of(lease)
    provider = next(item for item in intruder.world.providers if item.owner == lease.provider)
    envelope, code = intruder.random.choice(
        [
            (
                seal(
                    DOMAIN,
                    accept,
                    _wrong_signer(intruder, provider, lease.assignment.message.accept_by),
                ),
                "wrong-signer",
            ),
            (seal(FOREIGN, accept, own), "wrong-signer bad-signature"),
            (seal(DOMAIN, long, own), "bad-amount wrong-phase too-late"),
            (seal(DOMAIN, old, own), "stale wrong-phase too-late"),
        ]
    )
    return intruder.frame(frames.AcceptSent(envelope)), code + _unheard(intruder, provider)


def _others_commit(intruder: Intruder) -> Attack:
    is_wrong = intruder.random.random() < 0.4
    others = () if is_wrong else (leases.Assigned, leases.Committed, leases.Revealed, leases.Lapsed)
    lease = intruder.lease_in(leases.Accepted, *others)
    if lease is None:
        return None
    own, world = intruder.operator_of(lease), intruder.world
    provider = next(item for item in world.providers if item.owner == lease.provider)
    other = _wrong_signer(intruder, provider, lease.assignment.message.accept_by)
    right, wrong = intruder.commit_for(lease, True), intruder.commit_for(lease, False)
    choices = [(own, wrong, True)] if is_wrong else [(other, right, True), (own, right, False)]
    sign, commit, is_stored = intruder.random.choice(choices)
    if is_stored:
        world.coordinator.staging.setdefault(commit.encrypted_output, (ZERO_HASH, ZERO_HASH))
    code = "wrong-signer" if sign == other else ("wrong-class" if is_stored else "not-stored")
    if is_stored and sign != other:
        code += " wrong-phase equivocation too-late"
    return intruder.frame(frames.CommitSent(seal(DOMAIN, commit, sign))), code + _unheard(
        intruder, provider
    )


def _reveal(intruder: Intruder) -> Attack:
    lease = intruder.lease_in(leases.Accepted, leases.Committed, leases.Closed, leases.Revealed)
    known = (
        lease.assignment_hash
        if lease is not None and intruder.random.random() < 0.8
        else Hash32(b"\x09" * 32)
    )
    provider = lease.provider if lease is not None else STRANGER.address
    reveal = Reveal(
        known, provider, ExitStatus(0), ZERO_HASH, Hash32(intruder.random.randbytes(32))
    )
    return intruder.frame(
        frames.RevealSent(reveal)
    ), "does-not-open wrong-phase unknown not-stored too-late"


def _replay(intruder: Intruder) -> Attack:
    """Repeats an earlier message: it must be taken as a repeat, or refused."""
    seen = intruder.world.coordinator.wiretap
    if not seen:
        return None
    return intruder.frame(
        intruder.random.choice(seen)
    ), "ok wrong-phase too-late does-not-open stale equivocation unknown wrong-signer"


FRAMES: tuple[Callable[[Intruder], Attack], ...] = (
    _garbage,
    _spoilt_form,
    _heartbeat,
    _offer,
    _others_accept,
    _others_commit,
    _others_commit,
    _reveal,
    _reveal,
    _replay,
)
