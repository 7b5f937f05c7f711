"""Jobs that wait for a provider, without the events that order them.

Tests of matching put them beside offers. Their messages carry no valid signature.
"""

from quorate_coordinator.core.model.entities import Job, Matching
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.classes import HostClass
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Ack, Session
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Amount,
    BlockNumber,
    Bps,
    Label,
    Price,
    Sequence,
    Signature,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.markets.scripted_market import an_order

NOBODY = ZERO_ADDRESS
UNSIGNED = Signature(bytes(65))
LIVES_SECONDS = 900


def waiting_job(
    spec: job_spec.JobSpec, host: HostClass, price_max: Price, now: UnixSeconds, number: int = 1
) -> Job:
    """Job `number`, ordered at `now` in one host class, at `price_max` per hour at most."""
    expiry = UnixSeconds(now + LIVES_SECONDS)
    order = replace(
        an_order(NOBODY, NOBODY, spec, number, expiry),
        max_price_per_hour=price_max,
        host_class=host.id(),
    )
    session = Session(NOBODY, NOBODY, NOBODY, Amount(1), expiry)
    return Job(
        hash_tuple("job", number),
        Submission(Envelope(order, UNSIGNED), Envelope(session, UNSIGNED), spec),
        now,
        Envelope(_ack(host, now), UNSIGNED),
        ZERO_HASH,
        host,
        ZERO_HASH,
        0,
        ZERO_HASH,
        Amount(0),
        Matching(now),
    )


def _ack(host: HostClass, now: UnixSeconds) -> Ack:
    return Ack(
        job_id=ZERO_HASH,
        host_class=host.id(),
        ack_time=now,
        slot_block=BlockNumber(0),
        eligible_root=ZERO_HASH,
        state_root=ZERO_HASH,
        log_root=ZERO_HASH,
        log_length=Sequence(0),
        secret_hash=ZERO_HASH,
        rule=Label.UNVERIFIED,
        fee_bps=Bps(0),
        escrowed=False,
    )
