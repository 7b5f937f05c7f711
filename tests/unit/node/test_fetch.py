"""What a provider is paid for its fetches, and which bandwidth its offer names."""

import pytest

from quorate_node.core import effects, events
from quorate_node.core.phases import Committed, Fetching
from quorate_node.core.provider_core import FETCH_RATES_KEPT, ProviderCore
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.messages.job_spec import Input
from quorate_protocol.messages.offer import BANDWIDTH_DEFAULT, in_steps
from quorate_protocol.units import ExitStatus, Hash32, Milliseconds, Seconds
from quorate_protocol.values import replace
from support.markets.provider_world import Driver, make_spec, make_terms


def fresh() -> Driver:
    return Driver(ProviderCore(make_terms()))


MB, GB = 10**6, 10**9
RAN = Milliseconds(1500)


def committed_usage(declared: int, seconds: int) -> int:
    """What the Commit says after a fetch of so many seconds and a run of 1.5 s."""
    spec = replace(make_spec(), inputs=(Input(document_cid(b"m"), "/inputs/m", declared),))
    spec = replace(spec, start_within=Seconds(3600))
    driver = fresh()
    lease = driver.assign(spec=spec)
    driver.do(events.AcceptDelivered(lease))
    driver.do(events.InputsFetched(lease), after=seconds)
    driver.do(events.TaskStarted(lease))
    driver.do(events.TaskExited(lease, ExitStatus(0), RAN))
    driver.do(events.OutputPublished(lease, Hash32(bytes(32)), Hash32(b"\x99" * 32)))
    phase = driver.execution(lease).phase
    assert isinstance(phase, Committed)
    return phase.commit.usage_ms


@pytest.mark.rule("4.17")
@pytest.mark.parametrize(
    ("declared", "seconds", "paid"),
    [
        (1 * GB, 50, 0),
        (10 * GB, 200, 0),
        (10 * GB + 99 * MB, 200, 0),
        (10 * GB + 100 * MB, 200, 1),
        (12 * GB, 200, 20),
        (12 * GB, 8, 7),  # whole seconds of a clock may be one too many
        (12 * GB, 0, 0),  # it was in the cache
    ],
)
def test_a_fetch_beyond_10_gb_is_paid_by_the_agreed_rate(
    declared: int, seconds: int, paid: int
) -> None:
    assert committed_usage(declared, seconds) == RAN + 1000 * paid


def fetch(driver: Driver, number: int, rate: int) -> tuple[effects.Effect, ...]:
    lease = driver.assign(number)
    driver.advance(lease, Fetching)
    due = driver.do(events.InputsFetched(lease, rate))
    driver.do(events.TaskFailed(lease, "test"))
    return due


@pytest.mark.rule("4.88")
def test_the_offer_names_the_fastest_of_the_last_fetches_in_steps() -> None:
    driver = fresh()
    driver.do(events.OfferDue())
    assert driver.core.scalars.bandwidth == BANDWIDTH_DEFAULT
    assert not [it for it in fetch(driver, 1, 0) if isinstance(it, effects.SendOffer)], "too few"
    due = fetch(driver, 2, 11 * MB)
    assert [it for it in due if isinstance(it, effects.SendOffer)], "slower than assumed"
    assert driver.core.scalars.bandwidth == in_steps(11 * MB)
    fetch(driver, 3, 90 * MB)
    due = fetch(driver, 4, 1)
    assert driver.core.scalars.bandwidth == in_steps(90 * MB), "a client's gateway may be slow"
    assert not [it for it in due if isinstance(it, effects.SendOffer)]
    for number in range(FETCH_RATES_KEPT):
        fetch(driver, 5 + number, 12 * MB)
    assert driver.core.scalars.bandwidth == in_steps(12 * MB)
