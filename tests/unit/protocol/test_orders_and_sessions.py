"""What a client must have signed before the coordinator matches its order (PROTOCOL §2, §3, §4).

The tests cover every field of Order and Session by which a coordinator could be deceived.
"""

from collections.abc import Callable
from functools import partial

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.signed import Order, Session
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import orders
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import (
    Amount,
    Bps,
    Comparator,
    Hash32,
    Price,
    PriceTier,
    Small,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner, recover
from support.markets.scripted_market import COORDINATOR, DOMAIN, Market, Party
from support.messages import a_spec

STRANGER = KeySigner(b"\x63" * 32)
OTHER = Hash32(b"\x09" * 32)


def submitted() -> tuple[Market, Submission]:
    """Returns a market and a valid order as the client sends it."""
    market, seen = Market(*[Party(number) for number in range(3)]), []
    market.send = seen.append  # type: ignore[method-assign]
    market.order(0, 1)
    event = next(item for item in seen if isinstance(item, ev.OrderReceived))
    return market, event.submission


MARKET, GOOD = submitted()
CHECK = partial(
    orders.validate,
    domain=DOMAIN,
    recover=recover,
    coordinator=COORDINATOR.address,
    now=MARKET.at,
    limits=DEVNET,
)


def ordered(**changes: object) -> Submission:
    message: Order = replace(GOOD.order.message, **changes)  # type: ignore[arg-type]
    return replace(GOOD, order=seal(DOMAIN, message, MARKET.sessions[0].sign))


def in_session(**changes: object) -> Submission:
    message: Session = replace(GOOD.session.message, **changes)  # type: ignore[arg-type]
    return replace(GOOD, session=seal(DOMAIN, message, MARKET.clients[0].sign))


def test_a_valid_order_is_accepted() -> None:
    CHECK(GOOD)
    CHECK(ordered(expiry=UnixSeconds(MARKET.at + 1)))
    CHECK(ordered(expiry=UnixSeconds(MARKET.at + 30 * 86_400)))
    CHECK(in_session(expires=UnixSeconds(MARKET.at + DEVNET.session_max)))


ORDERS: list[tuple[dict[str, object], Code]] = [
    ({"client": STRANGER.address}, Code.WRONG_SIGNER),
    ({"coordinator": STRANGER.address}, Code.WRONG_SIGNER),
    ({"spec_hash": OTHER}, Code.MALFORMED),
    ({"input_root": OTHER}, Code.MALFORMED),
    ({"terms_hash": OTHER}, Code.MALFORMED),
    ({"price_tier": PriceTier.SPOT}, Code.UNSUPPORTED),
    ({"price_tier": PriceTier.RESERVED}, Code.UNSUPPORTED),
    ({"expiry": UnixSeconds(MARKET.at)}, Code.EXPIRED),
    ({"expiry": UnixSeconds(MARKET.at + 30 * 86_400 + 1)}, Code.EXPIRED),
    ({"verify_tier": VerifyTier.TEE}, Code.UNSUPPORTED),
    ({"verify_tier": VerifyTier.NONE}, Code.MALFORMED),
    ({"comparator": Comparator.NUMERIC}, Code.UNSUPPORTED),
    ({"sealed_key_hash": OTHER}, Code.UNSUPPORTED),
    ({"max_executions": Small(0)}, Code.BAD_AMOUNT),
    ({"max_executions": Small(8)}, Code.BAD_AMOUNT),
    ({"max_fee_bps": Bps(2_001)}, Code.BAD_AMOUNT),
    ({"audit_premium_bps": Bps(10_001)}, Code.BAD_AMOUNT),
    ({"max_price_per_hour": Price(0)}, Code.BAD_AMOUNT),
    ({"budget": Amount(0)}, Code.BAD_AMOUNT),
]
SESSIONS: list[tuple[dict[str, object], Code]] = [
    ({"coordinator": STRANGER.address}, Code.WRONG_SIGNER),
    ({"client": STRANGER.address}, Code.WRONG_SIGNER),
    ({"session_key": STRANGER.address}, Code.WRONG_SIGNER),
    ({"expires": UnixSeconds(MARKET.at)}, Code.EXPIRED),
    ({"expires": UnixSeconds(MARKET.at + DEVNET.session_max + 61)}, Code.EXPIRED),
]


@pytest.mark.rule("3.7", "3.10")
@pytest.mark.parametrize(
    ("make", "changes", "code"),
    [
        *((ordered, changes, code) for changes, code in ORDERS),
        *((in_session, changes, code) for changes, code in SESSIONS),
    ],
)
def test_each_field_that_deceives_is_refused(
    make: Callable[..., Submission], changes: dict[str, object], code: Code
) -> None:
    with pytest.raises(Refused) as refused:
        CHECK(make(**changes))
    assert refused.value.code is code


@pytest.mark.rule("3.72")
def test_terms_with_a_bad_name_or_another_version_are_refused_by_name() -> None:
    for terms, field in (
        (OrderTerms("Not A Name"), "name"),
        (OrderTerms(""), "name"),
        (OrderTerms("a" * 64), "name"),
        (OrderTerms(version=2), "version"),
    ):
        with pytest.raises(Refused, match=field):
            CHECK(replace(ordered(terms_hash=terms.digest()), terms=terms))
    good = OrderTerms("train-2")
    CHECK(replace(ordered(terms_hash=good.digest()), terms=good))


@pytest.mark.rule("3.73")
def test_an_order_of_another_price_tier_is_told_which_one_is_taken() -> None:
    with pytest.raises(Refused, match="priceTier must be 2 .on demand., not 3"):
        CHECK(ordered(price_tier=PriceTier.RESERVED))


@pytest.mark.rule("3.7")
def test_signatures_of_others_and_for_another_chain_are_refused() -> None:
    elsewhere = Domain(DOMAIN.chain_id + 1, DOMAIN.verifying_contract)
    message, session = GOOD.order.message, GOOD.session.message
    for bad in (
        replace(GOOD, order=seal(DOMAIN, message, STRANGER.sign)),
        replace(GOOD, order=seal(DOMAIN, message, MARKET.clients[0].sign)),
        replace(GOOD, order=seal(elsewhere, message, MARKET.sessions[0].sign)),
        replace(GOOD, session=seal(DOMAIN, session, MARKET.sessions[0].sign)),
        replace(GOOD, session=seal(elsewhere, session, MARKET.clients[0].sign)),
    ):
        with pytest.raises(Refused) as refused:
            CHECK(bad)
        assert refused.value.code is Code.WRONG_SIGNER


@pytest.mark.rule("3.27")
@pytest.mark.parametrize(
    ("change", "name"),
    [({"egress": ("huggingface.co",)}, "egress"), ({"seal_key": OTHER}, "sealKey")],
)
def test_an_order_that_a_jury_could_not_repeat_is_refused(
    change: dict[str, object], name: str
) -> None:
    """Only rentals have them, and no rental is caseable."""
    spec = replace(a_spec("job-1"), **change)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=f"{name}: only a rental has it"):
        CHECK(replace(ordered(spec_hash=spec.digest()), spec=spec))
