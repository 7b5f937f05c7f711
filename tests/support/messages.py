"""Messages and specs for tests that need one and do not look at most of its fields."""

from enum import Enum
from typing import Any, TypeVar, get_origin

from msgspec.structs import fields

from quorate_protocol.codec.cids import document_cid
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.signed import Order
from quorate_protocol.units import (
    WIRE_TYPES,
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Amount,
    Bps,
    Comparator,
    JobKind,
    Nonce,
    Price,
    PriceTier,
    Seconds,
    Small,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace

T = TypeVar("T")


def blank(kind: type[T], **known: object) -> T:
    """A message with these fields; all others are zero, or the first of their enumeration."""
    return kind(**({field.name: _zero(field.type) for field in fields(kind)} | known))


def _zero(hint: Any) -> object:
    if get_origin(hint) is tuple:
        return ()
    if isinstance(hint, type):
        return next(iter(hint)) if issubclass(hint, Enum) else hint()
    solidity, width = WIRE_TYPES[hint.__name__]
    return 0 if solidity.startswith("uint") else bytes(width)


def an_order(
    client: Address,
    coordinator: Address,
    spec: job_spec.JobSpec,
    nonce: int,
    expiry: int,
    /,
    **changes: object,
) -> Order:
    """Returns an order for one execution, at the price that the tests' providers ask.

    It accepts a job without witness and without verification. `changes` replace fields.
    """
    order = Order(
        client=client,
        coordinator=coordinator,
        spec_hash=spec.digest(),
        input_root=job_spec.input_root(spec),
        terms_hash=OrderTerms().digest(),
        price_tier=PriceTier.ON_DEMAND,
        max_price_per_hour=Price(200_000),
        budget=Amount(100_000),
        max_duration=spec.max_duration,
        max_executions=Small(1),
        audit_premium_bps=Bps(500),
        max_fee_bps=Bps(500),
        verify_tier=VerifyTier.STANDARD,
        comparator=Comparator.EXACT,
        caseable=True,
        pool=ZERO_HASH,
        witness=ZERO_ADDRESS,
        accept_unwitnessed=True,
        accept_unverified=True,
        sealed_key_hash=ZERO_HASH,
        max_recipients=Small(0),
        expiry=UnixSeconds(expiry),
        nonce=Nonce(nonce),
    )
    return replace(order, **changes)  # type: ignore[arg-type]


def a_spec(name: str) -> job_spec.JobSpec:
    """Returns the spec of a small job. Jobs with other names have other specs."""
    image = document_cid(b"image")
    return job_spec.JobSpec(
        JobKind.TASK,
        image,
        10,
        ("python3", "-c", "pass"),
        "",
        (job_spec.EnvVar("NAME", name),),
        "/scratch",
        (),
        job_spec.Resources(),
        Seconds(60),
        job_spec.Compare(),
    )
