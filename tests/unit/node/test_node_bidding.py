"""Tests each reason to decline an Assignment, and that there is no other reason."""

import pytest

from quorate_content.dag.cid import raw_cid
from quorate_node.core import bidding, effects, events
from quorate_node.core.bidding import Bid, decide
from quorate_node.core.effects import SendAccept, SendDecline
from quorate_node.core.phases import Declined
from quorate_node.core.provider_core import ProviderCore
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.job_spec import GIB, GpuRequest, JobSpec, Resources
from quorate_protocol.messages.offer import BANDWIDTH_DEFAULT, WITHDRAWN
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.rules import quotes
from quorate_protocol.units import DeclineReason, Hash32, Price
from quorate_protocol.values import replace
from support.markets.provider_world import (
    COORDINATOR,
    NOW,
    STATEMENT_KEY,
    Driver,
    make_assignment,
    make_spec,
    make_terms,
    signed_assignment,
)


def bid(spec: JobSpec, **changes: object) -> Bid:
    return Bid(replace(make_assignment(spec), **changes), spec, make_terms())  # type: ignore[arg-type]


def reason(asked: Bid) -> DeclineReason | None:
    answer = decide(asked)
    assert answer is None or answer.text, "a reason has a sentence"
    return answer.reason if answer else None


def test_fitting_job_is_accepted() -> None:
    assert reason(bid(make_spec())) is None


SPECS = [
    ({"egress": ("huggingface.co",)}, {}, DeclineReason.MISMATCH),
    ({"seal_key": Hash32(b"\x01" * 32)}, {}, DeclineReason.MISMATCH),
    ({"working_dir": "relative"}, {}, DeclineReason.MISMATCH),
    ({}, {"cpu_millis": 2001}, DeclineReason.RESOURCES),
    ({}, {"memory_bytes": 2 * GIB + 1}, DeclineReason.RESOURCES),
    ({}, {"scratch_bytes": 9 * GIB}, DeclineReason.RESOURCES),
    ({}, {"output_bytes": GIB + 1}, DeclineReason.RESOURCES),
    ({}, {"gpu": GpuRequest(1, "", 0)}, DeclineReason.RESOURCES),
]


@pytest.mark.rule("3.27")
@pytest.mark.parametrize(("changes", "resources", "expected"), SPECS)
def test_spec_that_does_not_fit_is_declined_with_its_reason(
    changes: dict[str, object], resources: dict[str, object], expected: DeclineReason
) -> None:
    """The coordinator needs the reason to decide what to do next."""
    asked = replace(Resources(), **resources)  # type: ignore[arg-type]
    spec = replace(make_spec(), resources=asked, **changes)  # type: ignore[arg-type]
    assert reason(bid(spec)) is expected


def test_owner_decides_the_price_floor() -> None:
    asked = bid(make_spec())
    policy = replace(asked.terms.policy, price_floor=Price(100_001))
    assert reason(replace(asked, terms=replace(asked.terms, policy=policy))) is DeclineReason.PRICE


def test_job_may_demand_a_sandbox() -> None:
    """The job names the sandbox as the offer does. A job with a GPU never runs under gVisor."""
    asked = bid(
        replace(
            make_spec(),
            sandbox="bwrap",
            image="bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy",
            image_bytes=1,
        )
    )
    assert reason(asked) is DeclineReason.SANDBOX
    assert reason(replace(asked, terms=make_terms(sandbox=Sandbox.BWRAP))) is None
    assert reason(bid(replace(make_spec(), sandbox="none"))) is DeclineReason.MISMATCH
    gpu = replace(Resources(), gpu=GpuRequest(1, "", 0))
    asked = replace(
        bid(replace(make_spec(), sandbox="docker-runsc", resources=gpu)),
        terms=make_terms(sandbox=Sandbox.DOCKER_RUNSC),
    )
    assert reason(asked) is DeclineReason.RESOURCES


def test_quotes_grow_with_the_bytes_to_move_and_are_bounded() -> None:
    """The quotes are part of commitBy."""
    large = bid(replace(make_spec(), resources=replace(Resources(), output_bytes=4096 * GIB)))
    declined = bidding.decide(large)
    assert declined is not None and declined.reason is DeclineReason.RESOURCES
    archive = replace(make_spec(), image=document_cid(b"image"), image_bytes=1)
    rate = BANDWIDTH_DEFAULT
    short, long = (quotes.fetch_seconds_max(item, rate) for item in (archive, make_spec()))
    assert short == 62 < long < 300, "the size of a registry's image is not known yet"
    assert quotes.fetch_seconds_max(make_spec(), 1) == make_spec().start_within


@pytest.mark.rule("4.2")
def test_busy_decline_says_when_a_slot_frees() -> None:
    """The time is within the protocol's bound, so the coordinator waits for this provider."""
    driver = Driver(ProviderCore(make_terms()))
    driver.assign(1)
    second = driver.execution(driver.assign(2)).phase
    assert isinstance(second, Declined) and second.decline.reason is DeclineReason.BUSY
    assert NOW < second.decline.start_by <= NOW + DEVNET.decline_ahead_max


@pytest.mark.rule("3.8", "3.9")
def test_draining_provider_declines_and_announces_no_free_slots() -> None:
    driver = Driver(ProviderCore(make_terms()))
    driver.do(events.DrainRequested(True))
    phase = driver.execution(driver.assign(1)).phase
    assert isinstance(phase, Declined) and phase.decline.reason is DeclineReason.DRAINING
    assert [slot.free for slot in driver.core.free_slots()] == [0]
    (withdrawn,) = driver.do(events.OfferDue())
    assert isinstance(withdrawn, effects.SendOffer) and withdrawn.expires == WITHDRAWN
    driver.do(events.DrainRequested(False))
    (renewed,) = driver.do(events.OfferDue())
    assert isinstance(renewed, effects.SendOffer) and renewed.expires > NOW
    assert renewed.seq > withdrawn.seq
    assert driver.execution(driver.assign(2)).occupies_slot


def test_repeated_assignment_gets_the_same_answer() -> None:
    """The effect has the same key. So the answer may be sent again, but it is never decided
    again.
    """
    driver, spec = Driver(ProviderCore(make_terms())), make_spec()
    event = events.AssignmentReceived(signed_assignment(spec), spec, (), STATEMENT_KEY.address)
    assert driver.do(event) == driver.do(event, after=2)
    (accept,) = driver.do(event)
    assert isinstance(accept, SendAccept) and accept.accept.time == NOW
    full = events.AssignmentReceived(
        signed_assignment(spec, 2, driver.now), spec, (), STATEMENT_KEY.address
    )
    first, again = driver.do(full), driver.do(full, after=1)
    assert first == again and isinstance(first[0], SendDecline)
    assert first[0].coordinator == COORDINATOR


def test_job_whose_output_does_not_fit_into_the_store_is_declined() -> None:
    """Such a job would run without pay. Outputs are kept for two weeks, and many outputs of four
    gigabytes cost a client only a few cents.
    """
    spec = replace(
        make_spec(),
        image=str(raw_cid(b"image")),
        image_bytes=1 * GIB,
        resources=replace(Resources(), output_bytes=GIB),
    )
    driver = Driver(ProviderCore(make_terms(3)))

    def answer(number: int, slot_resources: int) -> type:
        arrived = events.AssignmentReceived(
            signed_assignment(spec, number),
            spec,
            (),
            STATEMENT_KEY.address,
            store_room=slot_resources,
        )
        return type(driver.do(arrived)[0])

    assert answer(1, 2 * GIB - 1) is SendDecline
    assert answer(2, 2 * GIB) is SendAccept
    assert answer(3, 4 * GIB - 1) is SendDecline, (
        "the image that is being fetched and the output that comes count too"
    )
    lease = next(iter(driver.core.live())).assignment_hash
    driver.do(events.AcceptDelivered(lease))
    driver.do(events.InputsFetched(lease))
    driver.do(events.TaskStarted(lease))
    assert answer(4, 3 * GIB - 1) is SendDecline
    assert answer(5, 3 * GIB) is SendAccept
