"""An intruder's attacks on the client API of the coordinator."""

from collections.abc import Callable
from random import Random

from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import Order, Session, Stop, Voucher, Witness
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import (
    Amount,
    Bps,
    Hash32,
    Nonce,
    Price,
    PriceTier,
    Round,
    Small,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace
from sim import intruder_readers, workload
from sim.client import Client
from sim.parties import DOMAIN, FOREIGN, key
from sim.plan import Market
from sim.world import World

Attack = tuple[Callable[[], object], str] | None
STRANGER = key("stranger")
FRESH = Nonce(10**9)
_UNTAKEN = "price-too-high too-few-owners no-offer bad-amount insufficient-funds"


def _order(world: World, random: Random) -> Attack:
    """An order with one thing wrong in it."""
    client, now = random.choice(world.clients), world.coordinator.clock.now
    spec = workload.make_spec(random, "spoilt", has_gpus=world.plan.has_gpus)
    changes: list[tuple[dict[str, object], str]] = [
        ({"expiry": UnixSeconds(now - 1)}, "expired"),
        ({"max_fee_bps": Bps(100)}, "price-too-high"),
        ({"budget": Amount(1)}, "bad-amount no-offer too-few-owners"),
        ({"max_price_per_hour": Price(10)}, "no-offer"),
        ({"verify_tier": VerifyTier.TEE}, "unsupported"),
        ({"max_executions": Small(9)}, "bad-amount"),
        (
            {"max_executions": Small(2), "accept_unverified": False},
            "bad-amount insufficient-funds no-offer too-few-owners price-too-high",
        ),
        ({"spec_hash": Hash32(b"\x05" * 32)}, "malformed"),
        ({"terms_hash": Hash32(b"\x05" * 32)}, "malformed"),
        ({"price_tier": PriceTier.SPOT}, "unsupported"),
        (
            {
                "max_price_per_hour": Price(2**40),
                "budget": Amount(2**90),
                "max_executions": Small(3),
            },
            "insufficient-funds no-offer too-few-owners",
        ),
        ({"coordinator": STRANGER.address}, "wrong-signer"),
    ]
    if world.plan.market is not Market.TINY:
        changes += [(order, _UNTAKEN) for order in (_lonely(world), _cheap(spec.max_duration))] * 2
    if world.plan.market is Market.TINY:
        changes += [
            ({"accept_unverified": False}, "too-few-owners no-offer insufficient-funds bad-amount")
        ] * 6
    chosen, codes = random.choice(changes)
    fields = {"expiry": UnixSeconds(world.coordinator.clock.now + 60), **chosen}
    submission = client.submission(spec, client.order(spec, random, nonce=FRESH, **fields))
    if world.plan.chain_outage is not None:
        codes += " busy"  # its newest block is too old for an Ack
    return lambda: world.coordinator.take_order(submission), codes + _unknown(world, client)


def _lonely(world: World) -> dict[str, object]:
    """A price that one owner of the class meets: 25 s of its work for nothing, if it were taken."""
    state, now = world.coordinator.core.state, world.coordinator.now
    prices = sorted(
        slot.on_demand
        for provider in state.providers.values()
        if provider.offer is not None and provider.is_alive(now)
        for slot in provider.offer.slots
    )
    most = Price(prices[1] - 1 if len(prices) > 1 else 90_000)
    return {"max_price_per_hour": most, "max_executions": Small(3), "budget": Amount(1_000_000)}


def _cheap(duration: int) -> dict[str, object]:
    """A budget for two executions, where a third decides when two differ."""
    two = 2 * (200_000 * duration // 3_600)
    return {
        "max_price_per_hour": Price(200_000),
        "max_executions": Small(3),
        "budget": Amount(two + two // 50),
    }


def _unknown(world: World, client: Client) -> str:
    """Before it reads the first block, the coordinator knows neither clients nor providers."""
    return (
        ""
        if client.account.address in world.coordinator.core.state.clients
        else " insufficient-funds no-offer unknown"
    )


def _replayed_order(world: World, random: Random) -> Attack:
    """A used nonce with another order; the same order again is only a repeat."""
    client = random.choice(world.clients)
    if not client.acked:
        return None
    known = next(item for item in client.submissions if item.order.digest(DOMAIN) in client.acked)
    if random.random() < 0.3 and world.coordinator.clock.now < known.order.message.expiry:
        return lambda: world.coordinator.take_order(known), "ok"
    order, expiry = known.order.message, UnixSeconds(world.coordinator.clock.now + 60)
    changed = replace(order, budget=Amount(order.budget + 1), expiry=expiry)
    submission = client.submission(known.spec, changed)
    return lambda: world.coordinator.take_order(submission), "replayed"


def _forged_order(world: World, random: Random) -> Attack:
    """An order signed for another chain, by a stranger, or under an unknown session."""
    client, now = random.choice(world.clients), world.coordinator.clock.now
    spec = workload.make_spec(random, "forged", has_gpus=world.plan.has_gpus)
    order: Order = client.order(spec, random, nonce=FRESH, expiry=UnixSeconds(now + 60))
    good = client.submission(spec, order)
    own = Session(
        STRANGER.address, STRANGER.address, order.coordinator, Amount(10**9), UnixSeconds(now + 60)
    )
    old = replace(good.session.message, expires=UnixSeconds(now - 1))
    submission, codes = random.choice(
        [
            (
                Submission(seal(FOREIGN, order, client.session_key.sign), good.session, spec),
                "wrong-signer bad-signature",
            ),
            (Submission(seal(DOMAIN, order, STRANGER.sign), good.session, spec), "wrong-signer"),
            (
                Submission(good.order, seal(DOMAIN, good.session.message, STRANGER.sign), spec),
                "wrong-signer",
            ),
            (Submission(good.order, seal(DOMAIN, old, client.account.sign), spec), "expired"),
            (
                Submission(
                    seal(DOMAIN, order, STRANGER.sign), seal(DOMAIN, own, STRANGER.sign), spec
                ),
                "wrong-signer",
            ),
        ]
    )
    return lambda: world.coordinator.take_order(submission), codes


def _poor_stranger(world: World, random: Random) -> Attack:
    """An order with good signatures and no money behind it."""
    spec = workload.make_spec(random, "poor", has_gpus=world.plan.has_gpus)
    expiry = UnixSeconds(world.coordinator.clock.now + 60)
    order = world.clients[0].order(
        spec, random, nonce=FRESH, client=STRANGER.address, expiry=expiry
    )
    session = Session(
        STRANGER.address,
        STRANGER.address,
        order.coordinator,
        Amount(10**9),
        UnixSeconds(world.coordinator.clock.now + 60),
    )
    submission = Submission(
        seal(DOMAIN, order, STRANGER.sign), seal(DOMAIN, session, STRANGER.sign), spec
    )
    if random.random() < 0.3:
        return lambda: world.coordinator.take_session(submission.session), "insufficient-funds"
    return lambda: world.coordinator.take_order(submission), "insufficient-funds"


def _voucher(world: World, random: Random) -> Attack:
    client = random.choice(world.clients)
    known = world.coordinator.core.state.clients.get(client.account.address)
    if known is None or not known.sessions:
        return None
    message = Voucher(client.account.address, key("coordinator").address, Amount(10**12))
    lower = replace(message, cumulative=Amount(max(0, known.vouched - 1)))
    sign = client.session_key.sign
    envelope, codes = random.choice(
        [
            (seal(DOMAIN, message, sign), "insufficient-funds"),
            (seal(DOMAIN, message, STRANGER.sign), "wrong-signer"),
            (seal(FOREIGN, message, sign), "wrong-signer bad-signature"),
            (seal(DOMAIN, lower, sign), "stale"),
            (seal(DOMAIN, replace(message, payee=STRANGER.address), sign), "wrong-signer"),
            (seal(DOMAIN, replace(message, payer=STRANGER.address), STRANGER.sign), "unknown"),
        ]
    )
    return lambda: world.coordinator.take_signed(envelope), codes


def _stop(world: World, random: Random) -> Attack:
    client, other = random.sample(world.clients, 2)
    job_id = (
        random.choice(list(client.acked))
        if client.acked and random.random() < 0.8
        else Hash32(b"\x06" * 32)
    )
    stop = seal(DOMAIN, Stop(job_id, world.coordinator.clock.now), other.session_key.sign)
    return lambda: world.coordinator.take_signed(stop), "not-yours unknown"


def _witness(world: World, random: Random) -> Attack:
    commits = list(world.checks.commits)
    commit_hash = (
        random.choice(commits) if commits and random.random() < 0.9 else Hash32(b"\x08" * 32)
    )
    signer = random.choice([STRANGER, world.clients[0].session_key])
    acked = Hash32(random.randbytes(32))
    message = Witness(commit_hash, acked, Round(1), world.coordinator.clock.now)
    envelope: Envelope[Witness] = seal(DOMAIN, message, signer.sign)
    return lambda: world.coordinator.take_signed(envelope), "wrong-signer unknown too-late"


ATTACKS: tuple[Callable[[World, Random], Attack], ...] = (
    _order,
    _order,
    _order,
    _replayed_order,
    _forged_order,
    _poor_stranger,
    _voucher,
    _stop,
    _witness,
    intruder_readers.late_witness,
    *(intruder_readers.read_run,) * 4,
)
