"""Jobs that wait for a provider, without the events that order them.

Tests of matching put them beside offers. Their messages carry no valid signature.
"""

from quorate_coordinator.core.model.entities import Job, Matching
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Ack, Session
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Amount,
    Label,
    Price,
    Signature,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.messages import an_order, blank

NOBODY = ZERO_ADDRESS
UNSIGNED = Signature(bytes(65))
LIVES_SECONDS = 900


def waiting_job(
    spec: job_spec.JobSpec, host: Pool, price_max: Price, now: UnixSeconds, number: int = 1
) -> Job:
    """Job `number`, ordered at `now` in one pool, at `price_max` per hour at most."""
    expiry = UnixSeconds(now + LIVES_SECONDS)
    order = replace(
        an_order(NOBODY, NOBODY, spec, number, expiry), max_price_per_hour=price_max, pool=host.id()
    )
    session = Session(NOBODY, NOBODY, NOBODY, Amount(1), expiry)
    return Job(
        hash_tuple("job", number),
        Submission(Envelope(order, UNSIGNED), Envelope(session, UNSIGNED), spec),
        now,
        Envelope(blank(Ack, pool=host.id(), ack_time=now, rule=Label.UNVERIFIED), UNSIGNED),
        ZERO_HASH,
        host,
        (host,),
        (0,),
        ZERO_HASH,
        Amount(0),
        Matching(now),
    )
