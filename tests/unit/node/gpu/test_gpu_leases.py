"""The core chooses the GPUs of each lease, and gives none of them twice (I2)."""

import pytest

from quorate_node.core import effects, events
from quorate_node.core.jury_duty import Repeating, Voting
from quorate_node.core.phases import Accepted, Committed, Declined, Execution, Lapsed, Publishing
from quorate_node.core.provider_core import ProviderCore
from quorate_protocol.messages.offer import WITHDRAWN
from quorate_protocol.units import ZERO_HASH, Address, DeclineReason, Hash32, Price
from quorate_protocol.values import replace
from support.markets.gpu_provider import (
    ONE,
    PAIR,
    assign,
    assigned,
    gpu_driver,
    gpu_slots,
    gpu_spec,
    gpu_terms,
)
from support.markets.provider_world import (
    COORDINATOR,
    CPUS,
    PROVIDER,
    STATEMENT_KEY,
    Driver,
    case_names,
    case_opened,
    jury_drawn,
    make_spec,
    script,
)

CASE = case_names()[1]


def held(driver: Driver) -> list[str]:
    """UUIDs of all leases that have not committed, in order."""
    return [uuid for item in driver.core.live() if item.occupies_slot for uuid in item.gpus]


def free(driver: Driver) -> dict[bytes, int]:
    return {item.pool: item.free for item in driver.core.free_slots()}


def reason(driver: Driver, lease: Hash32) -> str:
    phase = driver.execution(lease).phase
    assert isinstance(phase, Declined), f"it is {type(phase).__name__}"
    return phase.text


@pytest.mark.rule("I2", "4.34")
def test_each_lease_gets_its_own_gpus_until_its_commit() -> None:
    driver = gpu_driver(gpu_slots(ONE, ("A",), ("B",)))
    first, second = (assign(driver, number, ONE, gpu_spec()) for number in (1, 2))
    assert [driver.execution(lease).gpus for lease in (first, second)] == [("A",), ("B",)]
    assert "every run slot is taken" in reason(driver, assign(driver, 3, ONE, gpu_spec()))
    driver.advance(second, Committed)
    fourth = assign(driver, 4, ONE, gpu_spec())
    assert driver.execution(fourth).gpus == ("B",)
    assert free(driver) == {CPUS.id(): 1, ONE.id(): 0}, "the CPU slot has a room of its own"


@pytest.mark.rule("I2", "4.34")
def test_two_coordinators_get_different_gpus() -> None:
    terms = gpu_terms(gpu_slots(ONE, ("A",), ("B",)))
    other = Address(b"\x77" * 20)
    keys = {**terms.statement_keys, other: STATEMENT_KEY.address}
    driver = Driver(ProviderCore(replace(terms, statement_keys=keys)))
    for number, coordinator in ((1, COORDINATOR), (2, other), (3, other)):
        driver.do(assigned(driver, number, ONE, gpu_spec(), coordinator=coordinator))
    assert held(driver) == ["A", "B"], "the third Assignment gets none"
    taken = [item.coordinator for item in driver.core.live()]
    assert taken == [COORDINATOR, other]


@pytest.mark.rule("4.34")
def test_a_slot_of_two_gpus_is_one_lease() -> None:
    driver = gpu_driver(gpu_slots(PAIR, ("A", "B"), ("C", "D")))
    lease = assign(driver, 1, PAIR, gpu_spec(2))
    assert driver.execution(lease).gpus == ("A", "B")
    [start] = [
        effect
        for event in (events.AcceptDelivered(lease), events.InputsFetched(lease))
        for effect in driver.do(event)
        if isinstance(effect, effects.StartTask)
    ]
    assert start.gpus == ("A", "B"), "the executor gets exactly these"


@pytest.mark.rule("I2", "4.34")
@pytest.mark.parametrize("is_replayed", [False, True])
def test_a_restart_with_other_slots_gives_no_gpu_twice(is_replayed: bool) -> None:
    """The owner makes two slots of one GPU each from a slot of two, while a lease has both."""
    driver = gpu_driver(gpu_slots(PAIR, ("A", "B"), ("C", "D")))
    first = assign(driver, 1, PAIR, gpu_spec(2))
    if is_replayed:
        twin = ProviderCore(driver.core.terms)
        twin.restore(driver.core.snapshot())
        driver.core = twin
    other = gpu_terms(gpu_slots(ONE, ("A",), ("B",), ("C",), ("D",)))
    driver.do(events.Configured(other))
    driver.do(events.GpusRead(("A", "B", "C", "D")))
    assert isinstance(driver.execution(first).phase, Accepted), "what runs goes on"
    assert free(driver)[ONE.id()] == 2
    leases = [assign(driver, number, ONE, gpu_spec()) for number in (2, 3)]
    assert [driver.execution(lease).gpus for lease in leases] == [("C",), ("D",)]
    assert "every run slot" in reason(driver, assign(driver, 4, ONE, gpu_spec()))
    assert len(set(held(driver))) == len(held(driver)) == 4


@pytest.mark.rule("I2", "4.34")
def test_jury_duty_takes_gpus_like_a_lease() -> None:
    driver = gpu_driver(gpu_slots(ONE, ("A",), ("B",)))
    assign(driver, 1, ONE, gpu_spec())
    driver.do(case_opened(pool=ONE.id()))
    due = driver.do(jury_drawn(PROVIDER))
    [repeat] = [effect for effect in due if isinstance(effect, effects.Reexecute)]
    assert repeat.gpus == ("B",) and free(driver)[ONE.id()] == 0
    driver.do(events.Reexecuted(CASE, Hash32(b"\x0a" * 32)))
    assert free(driver)[ONE.id()] == 1


@pytest.mark.rule("4.35")
def test_a_juror_whose_gpu_is_gone_votes_void() -> None:
    driver = gpu_driver(gpu_slots(ONE, ("A",)))
    driver.do(case_opened(pool=ONE.id()))
    driver.do(jury_drawn(PROVIDER))
    assert isinstance(driver.core.jury[CASE].phase, Repeating)
    due = driver.do(events.GpusRead(()))
    phase = driver.core.jury[CASE].phase
    assert isinstance(phase, Voting) and phase.digest == ZERO_HASH
    assert any(isinstance(effect, effects.SendVote) for effect in due)
    driver.do(events.Reexecuted(CASE, Hash32(b"\x0c" * 32)))
    assert driver.core.jury[CASE].phase == phase, "what the broken GPU gave is not voted"


@pytest.mark.rule("4.35")
@pytest.mark.parametrize("steps", range(5))
def test_a_lease_whose_gpu_is_gone_is_given_up_in_every_phase(steps: int) -> None:
    driver = gpu_driver(gpu_slots(PAIR, ("A", "B")), gpu_slots(ONE, ("C",)))
    lease, other = assign(driver, 1, PAIR, gpu_spec(2)), assign(driver, 2, ONE, gpu_spec())
    for event in script(lease)[:steps]:
        driver.do(event)
    due = driver.do(events.GpusRead(("A", "C")))
    phase = driver.execution(lease).phase
    assert isinstance(phase, Lapsed) and phase.commit is None and "GPU B is gone" in phase.why
    assert phase.decline is not None and phase.decline.reason is DeclineReason.GAVE_UP
    assert {type(effect) for effect in due} >= {effects.SendDecline, effects.StopTask}
    assert held(driver) == ["C"], "the other lease goes on"
    assert isinstance(driver.execution(other).phase, Accepted)
    driver.do(events.OutputPublished(lease, Hash32(b"\x55" * 32), Hash32(b"\x66" * 32)))
    assert driver.execution(lease).commit() is None, "wrong work is not committed"


@pytest.mark.rule("4.35")
def test_a_committed_lease_stays_when_its_gpu_is_gone() -> None:
    driver = gpu_driver(gpu_slots(ONE, ("A",)))
    lease = assign(driver, 1, ONE, gpu_spec())
    driver.advance(lease, Committed)
    driver.do(events.GpusRead(()))
    assert isinstance(driver.execution(lease).phase, Committed)


@pytest.mark.rule("4.35")
def test_the_offer_shrinks_at_once_and_grows_again() -> None:
    driver = gpu_driver(gpu_slots(ONE, ("A",), ("B",)), gpu_slots(PAIR, ("C", "D")))
    [first] = driver.do(events.OfferDue())
    assert isinstance(first, effects.SendOffer)
    [second] = driver.do(events.GpusRead(("A", "D")))
    assert isinstance(second, effects.SendOffer) and second.seq > first.seq
    offered = {slot.pool.id(): slot.count for slot in driver.core.offered_slots()}
    assert offered == {CPUS.id(): 1, ONE.id(): 1}
    assert free(driver) == {CPUS.id(): 1, ONE.id(): 1, PAIR.id(): 0}
    text = reason(driver, assign(driver, 1, PAIR, gpu_spec(2)))
    assert "are gone, too hot, or in the owner's use" in text
    assert driver.do(events.GpusRead(("A", "D", "X"))) == (), "nothing that is offered changed"
    [third] = driver.do(events.GpusRead(("A", "B", "C", "D")))
    assert isinstance(third, effects.SendOffer)
    assert driver.core.offered_slots() == driver.core.terms.slots


@pytest.mark.rule("4.35")
def test_a_new_price_offers_no_gpu_that_is_gone() -> None:
    driver = gpu_driver(gpu_slots(ONE, ("A",), ("B",)))
    driver.do(events.GpusRead(("A",)))
    [plain, gpus] = driver.core.terms.classes
    dearer = replace(plain, offer=replace(plain.offer, on_demand=Price(90_000)))
    driver.do(events.Configured(replace(driver.core.terms, classes=(dearer, gpus))))
    assert {slot.pool.id(): slot.count for slot in driver.core.offered_slots()}[ONE.id()] == 1


@pytest.mark.rule("4.35")
def test_a_provider_without_any_gpu_left_withdraws_its_offer() -> None:
    terms = replace(gpu_terms(), classes=(gpu_slots(ONE, ("A",)),))
    driver = Driver(ProviderCore(terms))
    driver.do(events.OfferDue())
    [gone] = driver.do(events.GpusRead(()))
    assert isinstance(gone, effects.SendOffer) and gone.expires == WITHDRAWN
    [back] = driver.do(events.GpusRead(("A",)))
    assert isinstance(back, effects.SendOffer) and back.expires > driver.now


@pytest.mark.rule("4.36")
@pytest.mark.parametrize(
    ("requirement", "is_taken"),
    [
        ("", True),
        ("cuda>=12.4", True),
        ("cuda>=12.6", False),
        ("cuda>=12.6 brand=tesla,driver>=535,driver<536", False),
        ("cuda>=12.6 brand=tesla,driver>=550,driver<551", True),
        ("nonsense", True),
    ],
)
def test_an_image_for_a_newer_driver_is_declined_with_both_versions(
    requirement: str, is_taken: bool
) -> None:
    driver = gpu_driver(gpu_slots(ONE, ("A",)))
    event = assigned(driver, 1, ONE, gpu_spec(), requirement)
    driver.do(event)
    [found] = driver.core.executions.values()
    assert isinstance(found, Execution) and found.occupies_slot == is_taken
    if not is_taken:
        text = reason(driver, found.assignment_hash)
        assert "needs CUDA 12.6" in text and "driver 550.54.15" in text and "CUDA 12.4" in text


@pytest.mark.rule("4.37")
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (gpu_spec(2), "it has 1 GPUs, the job asks for 2"),
        (gpu_spec(1, "H100"), "its model is L40S, the job asks for H100"),
        (gpu_spec(1, vram_bytes_min=80 << 30), "GB of memory"),
        (gpu_spec(1, compute_capability_min=90), "its compute capability is 8.9"),
        (make_spec(), "the slot has GPUs, and the job asks for none"),
        (gpu_spec(1, "nvidia l40s", vram_bytes_min=40 << 30, compute_capability_min=89), ""),
        (gpu_spec(), ""),
    ],
)
def test_a_gpu_slot_takes_only_jobs_for_its_gpus(spec, why: str) -> None:  # type: ignore[no-untyped-def]
    driver = gpu_driver(gpu_slots(ONE, ("A",)))
    lease = assign(driver, 1, ONE, spec)
    if why:
        assert why in reason(driver, lease)
    else:
        assert isinstance(driver.execution(lease).phase, Accepted)


def test_a_cpu_slot_takes_no_job_for_gpus() -> None:
    driver = gpu_driver(gpu_slots(ONE, ("A",)))
    assert "it has no GPU" in reason(driver, assign(driver, 1, CPUS, gpu_spec()))
    assert driver.execution(assign(driver, 2, CPUS, make_spec())).gpus == ()


def test_terms_with_a_gpu_in_two_slots_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="two run slots"):
        gpu_driver(gpu_slots(ONE, ("A",)), gpu_slots(PAIR, ("B", "A")))


def test_a_lease_in_publishing_holds_its_gpu() -> None:
    driver = gpu_driver(gpu_slots(ONE, ("A",)))
    lease = assign(driver, 1, ONE, gpu_spec())
    driver.advance(lease, Publishing)
    assert held(driver) == ["A"] and free(driver)[ONE.id()] == 0


@pytest.mark.rule("3.26", "4.35")
@pytest.mark.parametrize("steps", range(5))
def test_a_game_of_the_owner_ends_no_lease_and_lets_no_new_one_in(steps: int) -> None:
    """It starts in the middle of a fetch, of a run, and of the collection of outputs."""
    driver = gpu_driver(gpu_slots(ONE, ("A",), ("B",)))
    driver.do(events.OfferDue())
    lease = assign(driver, 1, ONE, gpu_spec())
    for event in script(lease)[:steps]:
        driver.do(event)
    before = driver.execution(lease)
    [fewer] = driver.do(events.GpusRead(("A", "B"), kept_back=("A",)))
    assert isinstance(fewer, effects.SendOffer) and fewer.expires != WITHDRAWN
    [other] = driver.do(events.GpusRead(("A", "B"), kept_back=("A", "B")))
    assert isinstance(other, effects.SendOffer)
    assert ONE.id() not in {slot.pool.id() for slot in driver.core.offered_slots()}
    assert driver.execution(lease) == before, "what runs goes on"
    assert "owner's use" in reason(driver, assign(driver, 2, ONE, gpu_spec()))
    for event in script(lease)[steps:]:
        driver.do(event)
    assert not isinstance(driver.execution(lease).phase, Lapsed)
    [back] = driver.do(events.GpusRead(("A", "B")))
    assert isinstance(back, effects.SendOffer) and back.expires != WITHDRAWN


def test_a_juror_serves_while_the_owner_uses_the_gpu() -> None:
    """Who misses a vote loses money, and withdraws from no duty by a game."""
    driver = gpu_driver(gpu_slots(ONE, ("A",)))
    driver.do(events.GpusRead(("A",), kept_back=("A",)))
    driver.do(case_opened(pool=ONE.id()))
    driver.do(jury_drawn(PROVIDER))
    assert isinstance(driver.core.jury[CASE].phase, Repeating)
