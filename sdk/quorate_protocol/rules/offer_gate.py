"""Judges offers that arrive by gossip, before they are passed on (PROTOCOL §3, Offers).

The gate is synchronous, does no IO, and may be called by several threads. It reads the market from
an immutable snapshot that its owner replaces from time to time. What any peer can see is wrong with
the bytes alone is rejected: its forwarder should have seen it too. What depends on time, on the
snapshot or on other messages is ignored, because an honest forwarder may know more or less.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.envelope import Recover
from quorate_protocol.messages.offer import WITHDRAWN, OfferEnvelope, validate
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Seconds, Sequence, UnixSeconds

OWNERS_MAX = 100_000  # whose newest sequence number the gate remembers; the oldest is forgotten
OFFERS_PER_SECOND = 0.2
OFFERS_BURST = 10.0
_DEPENDS_ON_TIME = (Code.EXPIRED,)


class Judgement(Enum):
    """What a gossip network does with a message."""

    ACCEPT = "accept"  # deliver it and pass it on
    IGNORE = "ignore"  # drop it; its forwarder did nothing wrong
    REJECT = "reject"  # drop it and count it against its forwarder


class OwnerStanding(Struct, frozen=True):
    """What the chain says about one provider."""

    operator_key: Address
    stake_slots: dict[Hash32, int]  # active stake slots by pool


class MarketSnapshot(Struct, frozen=True):
    """The registered providers at some block. It is never changed, only replaced."""

    owners: Mapping[Address, OwnerStanding]


class Judged(Struct, frozen=True):
    """The judgement of one message. `offer` and `key` are set when it is accepted; `reason` says
    why it is not.
    """

    judgement: Judgement
    reason: str = ""
    offer: OfferEnvelope | None = None
    key: Address | None = None  # that signed the offer


class _Known(Struct):
    """The newest offer of an owner, and how many further ones it may send now."""

    seq: Sequence
    allowance: float
    at: float  # when `allowance` was computed


class OfferGate:
    """Judges the messages of one deployment's topic. Offers are charged to their owner, and only
    after their signature was checked. So neither a forwarder nor a forger uses up an owner's rate.
    """

    def __init__(
        self, domain: Domain, offer_ttl: Seconds, recover: Recover, snapshot: MarketSnapshot
    ) -> None:
        """`recover` must be safe to call from several threads."""
        self._domain, self._offer_ttl, self._recover = domain, offer_ttl, recover
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._known: OrderedDict[Address, _Known] = OrderedDict()

    def replace_snapshot(self, snapshot: MarketSnapshot) -> None:
        self._snapshot = snapshot

    def judge(self, data: bytes, now: float) -> Judged:
        try:
            envelope = offer_gossip.decode(data).offer
            key = validate(
                envelope, self._domain, self._recover, UnixSeconds(int(now)), self._offer_ttl
            )
        except Refused as refused:
            judgement = Judgement.IGNORE if refused.code in _DEPENDS_ON_TIME else Judgement.REJECT
            return Judged(judgement, str(refused))
        reason = _stake_problem(envelope, key, self._snapshot) or self._admit(envelope, now)
        if reason:
            return Judged(Judgement.IGNORE, reason)
        return Judged(Judgement.ACCEPT, "", envelope, key)

    def _admit(self, envelope: OfferEnvelope, now: float) -> str:
        """Counts a valid offer for its owner. Returns why it is not admitted, or ""."""
        owner, seq = envelope.offer.provider, envelope.offer.seq
        with self._lock:
            known = self._known.get(owner)
            if known is None:
                known = self._known[owner] = _Known(Sequence(0), OFFERS_BURST, now)
                if len(self._known) > OWNERS_MAX:
                    self._known.popitem(last=False)
            elif seq <= known.seq:
                return f"offer: seq {seq} is not above {known.seq}"
            passed = max(0.0, now - known.at)
            known.allowance = min(OFFERS_BURST, known.allowance + passed * OFFERS_PER_SECOND)
            known.at = max(known.at, now)
            self._known.move_to_end(owner)
            if known.allowance < 1.0:
                return "offer: its provider sends offers too often"
            known.allowance -= 1.0
            known.seq = seq
        return ""


def _stake_problem(envelope: OfferEnvelope, key: Address, snapshot: MarketSnapshot) -> str:
    """Why the snapshot does not back an offer, or ""."""
    offer = envelope.offer
    standing = snapshot.owners.get(offer.provider)
    if standing is None:
        return f"provider 0x{offer.provider.hex()} is not registered"
    if key != standing.operator_key:
        return f"0x{key.hex()} is not the operator key of 0x{offer.provider.hex()}"
    if offer.expires == WITHDRAWN:
        return ""
    for slot in offer.slots:
        staked = standing.stake_slots.get(slot.pool.id(), 0)
        if slot.count > staked:
            return f"offer: {slot.count} run slots, and their owner has {staked} stake slots"
    return ""
