"""Attacks on a provider, by an intruder or by a coordinator that breaks the rules."""

from collections.abc import Callable
from random import Random

from quorate_node.core import events, phases
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DAY
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import (
    Assignment,
    Commit,
    CommitEntry,
    CommitReceipt,
    CommitSet,
    Stop,
    Verdict,
    Voucher,
)
from quorate_protocol.units import (
    ZERO_HASH,
    Amount,
    Hash32,
    Label,
    Outcome,
    Ppm,
    Price,
    PriceTier,
    Round,
    Sequence,
    Signature,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from sim import workload
from sim.parties import DOMAIN, FOREIGN, key
from sim.provider import Provider
from sim.world import World

Attack = tuple[Callable[[], object], str] | None
STRANGER, STATEMENT = key("stranger"), key("statement")
SOME = Hash32(b"\x0a" * 32)


def _send(provider: Provider, frame: frames.Frame) -> Callable[[], object]:
    data = frames.encode(frame)
    return lambda: provider.handle(data)


def _garbage(world: World, provider: Provider, random: Random) -> Attack:
    whole = frames.encode(frames.Ok())
    data, code = random.choice(
        [
            (b"{", "malformed"),
            (whole + b"x", "malformed"),
            (whole + b" ", "not-canonical"),
            (whole.replace(b'"Ok"', b'"Ok","more":1'), "unknown-field"),
            (b" " * ((1 << 20) + 1), "oversize"),
        ]
    )
    return lambda: provider.handle(data), code


def _not_for_providers(world: World, provider: Provider, random: Random) -> Attack:
    return _send(provider, frames.Ok()), "unsupported"


def _assignment(world: World, provider: Provider, random: Random) -> Attack:
    spec = workload.make_spec(random, "forged", has_gpus=world.plan.has_gpus)
    accept_by = UnixSeconds(provider.now + 5)
    good = Assignment(
        Hash32(random.randbytes(32)),
        provider.coordinator,
        provider.owner,
        spec.digest(),
        provider.slots[0].pool.id(),
        PriceTier.ON_DEMAND,
        Price(10**6),
        spec.max_duration,
        accept_by,
    )
    message, sign, domain, codes = random.choice(
        [
            (good, STRANGER.sign, DOMAIN, "wrong-signer"),
            (good, STATEMENT.sign, FOREIGN, "wrong-signer bad-signature"),
            (replace(good, coordinator=STRANGER.address), STRANGER.sign, DOMAIN, "wrong-signer"),
            (replace(good, provider=STRANGER.address), STATEMENT.sign, DOMAIN, "not-yours"),
            (
                replace(good, accept_by=UnixSeconds(provider.now - 1)),
                STATEMENT.sign,
                DOMAIN,
                "too-late",
            ),
            (
                replace(good, accept_by=UnixSeconds(provider.now + DAY)),
                STATEMENT.sign,
                DOMAIN,
                "too-early",
            ),
        ]
    )
    envelope = seal(domain, message, sign)
    if random.random() < 0.1:
        envelope, codes = Envelope(good, Signature(bytes(65))), "bad-signature"
    return _send(provider, frames.AssignmentSent(envelope, spec, ())), codes


def _live(provider: Provider) -> list[phases.Execution]:
    """The executions of the coordinator in whose name the intruder speaks."""
    return [item for item in provider.core.live() if item.coordinator == provider.coordinator]


def _bound(provider: Provider, random: Random) -> tuple[Hash32, Commit] | None:
    """An execution that the provider has committed and not finished."""
    kinds = phases.Committed | phases.Receipted | phases.Revealed
    by_itself = {
        **provider.copier.copied,
        **provider.copier.borrowed,
    }  # a copier reveals without any attack
    live = [item for item in _live(provider) if item.assignment_hash not in by_itself]
    found = [
        (item.assignment_hash, item.phase.commit) for item in live if isinstance(item.phase, kinds)
    ]
    return random.choice(found) if found else None


def _commit_set(world: World, provider: Provider, random: Random) -> Attack:
    """A CommitSet that must not make it reveal: from a stranger, from another time, or without its
    commit.
    """
    bound = _bound(provider, random)
    if bound is None:
        return None
    lease, commit = bound
    entry = CommitEntry(lease, provider.owner, digest(DOMAIN, commit))
    now = provider.now
    good = CommitSet(SOME, Small(0), (entry,), (SOME,), Round(1), SOME, Ppm(0), (), SOME, SOME, now)
    message, sign, codes = random.choice(
        [
            (good, STRANGER.sign, "wrong-signer"),
            (replace(good, closed_at=UnixSeconds(now - 60)), STATEMENT.sign, "stale equivocation"),
            (
                replace(good, closed_at=UnixSeconds(now + 60)),
                STATEMENT.sign,
                "too-early equivocation",
            ),
            (replace(good, ordered=()), STATEMENT.sign, "unknown"),
        ]
    )
    phase = provider.core.executions[lease].phase
    is_revealed = isinstance(phase, phases.Revealed)
    if isinstance(phase, phases.Committed) and phase.is_misdated and codes != "wrong-signer":
        codes = "stale"  # no CommitSet opens a result whose receipt does not pay the whole run
    if is_revealed and random.random() < 0.5:
        message, sign, codes = good, STATEMENT.sign, "equivocation"
    return _send(provider, frames.CommitSetSent(lease, seal(DOMAIN, message, sign))), codes


def _early_set(world: World, provider: Provider, random: Random) -> Attack:
    """A CommitSet before the commit: there is nothing to reveal."""
    early = [
        item.assignment_hash for item in _live(provider) if isinstance(item.phase, phases.PREPARING)
    ]
    if not early:
        return None
    message = CommitSet(
        SOME, Small(0), (), (), Round(1), SOME, Ppm(0), (), SOME, SOME, provider.now
    )
    return _send(
        provider, frames.CommitSetSent(early[0], seal(DOMAIN, message, STATEMENT.sign))
    ), "wrong-phase"


def _verdict(world: World, provider: Provider, random: Random) -> Attack:
    bound = _bound(provider, random)
    lease = bound[0] if bound else SOME
    message = Verdict(
        SOME,
        Sequence(9),
        Label.QUORUM_2,
        Outcome.ACCEPTED,
        Small(1),
        (),
        (lease,),
        (),
        SOME,
        provider.now,
    )
    return _send(
        provider, frames.VerdictSent(lease, seal(DOMAIN, message, STRANGER.sign))
    ), "wrong-signer unknown"


def _voucher(world: World, provider: Provider, random: Random) -> Attack:
    """A voucher of a stranger, or for another tab; one over less than is known changes nothing."""
    known = provider.core.debt(provider.coordinator).vouched
    good = Voucher(provider.coordinator, provider.owner, Amount(known + 10**6))
    message, sign, domain, codes = random.choice(
        [
            (good, STRANGER.sign, DOMAIN, "wrong-signer"),
            (good, provider.operator.sign, DOMAIN, "wrong-signer"),
            (good, STATEMENT.sign, FOREIGN, "wrong-signer bad-signature"),
            (replace(good, payee=STRANGER.address), STATEMENT.sign, DOMAIN, "not-yours"),
            (replace(good, payer=STRANGER.address), STRANGER.sign, DOMAIN, "wrong-signer"),
            (replace(good, cumulative=Amount(known)), STATEMENT.sign, DOMAIN, "ok"),
            (replace(good, cumulative=Amount(2**127)), STATEMENT.sign, DOMAIN, "bad-amount"),
        ]
    )
    return _send(provider, frames.VoucherSent(seal(domain, message, sign))), codes


def _receipt(world: World, provider: Provider, random: Random) -> Attack:
    bound = _bound(provider, random)
    commit_hash = digest(DOMAIN, bound[1]) if bound else SOME
    envelope = seal(DOMAIN, CommitReceipt(commit_hash, provider.now), STRANGER.sign)
    return _send(provider, frames.ReceiptSent(envelope)), "wrong-signer unknown"


def _stop(world: World, provider: Provider, random: Random) -> Attack:
    """Another coordinator tries to stop an execution that is not its own."""
    live = _live(provider)
    stop = seal(DOMAIN, Stop(SOME, provider.now), STRANGER.sign)
    if not live:
        return _send(provider, frames.StopSent(ZERO_HASH, stop)), "unknown"
    return lambda: provider.submit(
        events.StopReceived(live[0].assignment_hash, stop, STRANGER.address)
    ), "not-yours"


ATTACKS: tuple[Callable[[World, Provider, Random], Attack], ...] = (
    _garbage,
    _not_for_providers,
    _assignment,
    _assignment,
    _commit_set,
    _commit_set,
    _commit_set,
    _early_set,
    _verdict,
    _voucher,
    _receipt,
    _stop,
)
