"""Tests that the matching columns find the same offers as a plain scan, whatever order of changes
built them.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate_coordinator.core import coordinator_core
from quorate_coordinator.core.jobs.job_queue import Ranking
from quorate_coordinator.core.matching import fetched_content, offers
from quorate_coordinator.core.model import column_store, columns, lease
from quorate_coordinator.core.model.columns import Bucket
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.core.model.entities import Job, PoolSlots, Provider
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.row import (
    PRESENT,
    PRICED,
    SPREAD_BITS,
    SPREAD_MASK,
    Needs,
    Row,
    key_of,
)
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import Rules, StepContext
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.classes import CPUS, Pool
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.offer import CACHED_PREFIX_BYTES
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.rules.reputation.fold import CompletionTime, Trusts
from quorate_protocol.rules.trust_record import Trust
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    BlockNumber,
    Bps,
    JobKind,
    Price,
    PriceTier,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from sim.run import play
from support.markets import matching_scan
from support.markets.matching_scan import choose as scan
from support.markets.waiting_jobs import NOBODY, UNSIGNED, waiting_job
from support.messages import a_spec, blank
from support.offers import a_slot, an_offer

NOW = UnixSeconds(1_000_000)
GIB = 1 << 30
HOSTS = (CPUS, Pool("A100 SXM 80GB", "", Small(2)))
IMAGES = tuple(f"registry.example/image@sha256:{number:064x}" for number in range(3))


def owner_of(number: int) -> Address:
    return Address(number.to_bytes(20, "big"))


# ----------------------------------------------------------------------------------------- a bucket

rows = st.builds(
    lambda number, price, bits, until, memory: (number, price, bits, until, memory),
    st.integers(0, 40),
    st.integers(1, 6),
    st.sampled_from([1, 3, 7]),
    st.integers(90, 110),
    st.integers(1, 3),
)
changes = st.lists(st.one_of(rows, st.integers(0, 40)), max_size=120)


@settings(max_examples=150, deadline=None)
@given(
    changes,
    st.integers(0, 7),
    st.integers(0, SPREAD_MASK),
    st.integers(1, 30),
    st.integers(1, 3),
    st.sampled_from([1, 3, 7]),
)
def test_the_cheapest_row_is_the_first_of_a_plain_sort(
    steps: "list[tuple[int, int, int, int, int] | int]",
    price_max: int,
    start: int,
    limit: int,
    memory: int,
    bits: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_store, "TAIL_MIN", 5)  # so that merges happen often
        patch.setattr(columns, "CHUNK_FIRST", 4)
        bucket, known = Bucket(), dict[Address, Row]()
        for step in steps:
            if isinstance(step, int):
                bucket.remove(owner_of(step))
                known.pop(owner_of(step), None)
            else:
                number, price, features, until, size = step
                row = Row(key_of(price, number), features, until, size, 1)
                bucket.put(owner_of(number), row)
                known[owner_of(number)] = row
        found = bucket.owners_at(
            bucket.cheapest(Needs(bits, memory, 1), price_max, 100, start, limit)
        )
        patch.setattr(columns, "REST_MIN", 0)  # so that searches alone cause a merge
        patch.setattr(columns, "REST_ROWS", 10**6)
        rested = bucket.owners_at(
            bucket.cheapest(Needs(bits, memory, 1), price_max, 100, start, limit)
        )
    assert rested == found
    good = {
        owner: row
        for owner, row in known.items()
        if row.bits & bits == bits
        and row.until > 100
        and row.memory >= memory
        and row.key >> SPREAD_BITS <= price_max
    }
    order = sorted(
        good,
        key=lambda owner: (good[owner].key >> SPREAD_BITS, (good[owner].key - start) & SPREAD_MASK),
    )
    assert found == order[:limit]
    assert len(bucket) == len(known)


def test_providers_of_equal_price_are_chosen_equally_often() -> None:
    bucket = Bucket()
    for number in range(5000):
        bucket.put(owner_of(number), Row(key_of(100, number), 7, 200, 1, 1))
    first = {
        bucket.owners_at(
            bucket.cheapest(
                Needs(7, 1, 1), 100, 100, int.from_bytes(hash_tuple(step)[:3], "big"), 1
            )
        )[0]
        for step in range(2000)
    }
    # 2000 uniform draws from 5000 would give about 1650 different providers
    assert len(first) > 1500


def test_a_tail_that_is_only_searched_is_merged() -> None:
    bucket, needs = Bucket(), Needs(PRESENT | PRICED, 1, 1)
    for number in range(40):
        bucket.put(owner_of(number), Row(key_of(100 - number, number), 7, 200, 1, 1))
    kept = bucket.first(needs, 100, 100)
    assert bucket.owners_at(kept) == [owner_of(39)]
    for _ in range(columns.REST_MIN + 1):
        assert bucket.owners_at(bucket.cheapest(needs, 100, 100, 0, 2)) == [
            owner_of(39),
            owner_of(38),
        ]
        assert bucket.owners_at(bucket.first(needs, 100, 100)) == [owner_of(39)], (
            "the kept answer refers to rows that a merge has moved"
        )
    assert kept.tolist() != bucket.first(needs, 100, 100).tolist(), "nothing was merged"


def test_needs_that_found_no_offer_are_tried_again_when_a_fitting_offer_comes() -> None:
    bucket, needs = Bucket(), Needs(7, 2, 1)
    bucket.put(owner_of(1), Row(key_of(50, 1), 7, 200, 1, 1))
    assert not bucket.cheapest(needs, 100, 100, 0, 1).size
    assert bucket.fail(needs, 100)
    bucket.put(owner_of(2), Row(key_of(150, 2), 7, 200, 5, 1))  # too expensive
    bucket.put(owner_of(1), Row(key_of(50, 1), 7, 300, 1, 1))  # the same offer, with a later expiry
    assert bucket.newly_meetable() == {}
    bucket.put(owner_of(2), Row(key_of(90, 2), 7, 200, 5, 1))
    assert bucket.newly_meetable() == {needs: 90}
    assert bucket.newly_meetable() == {}


def test_expired_offers_are_not_found_and_count_as_new_when_renewed() -> None:
    bucket, needs = Bucket(), Needs(7, 1, 1)
    bucket.put(owner_of(1), Row(key_of(50, 1), 7, 100, 1, 1))
    assert not bucket.cheapest(needs, 100, 100, 0, 1).size
    assert bucket.fail(needs, 100)
    bucket.put(owner_of(1), Row(key_of(50, 1), 7, 120, 1, 1))
    assert bucket.newly_meetable() == {needs: 50}


# ------------------------------------------------------------------------------------------- a book

Size = tuple[int, int, int]  # thousandths of a core, bytes, bytes of one GPU
sizes = st.tuples(
    st.integers(1, 4).map(lambda cores: cores * 1000),
    st.sampled_from([1 * GIB, 4 * GIB]),
    st.sampled_from([24 * GIB, 80 * GIB]),
)
providers = st.tuples(
    sizes,
    st.integers(0, 4),  # price
    st.integers(1, 2),  # count
    st.integers(0, 2),  # held
    st.integers(-2, 5),  # seconds to live
    st.booleans(),  # frozen
    st.sampled_from([(JobKind.TASK,), (JobKind.TASK, JobKind.SERVICE), (JobKind.SERVICE,)]),
    st.integers(0, 3),  # network
    st.integers(0, 2),  # strikes
    st.booleans(),  # caches the first image
    st.tuples(st.integers(0, 2), st.sampled_from([GIB, 1 << 53]), st.sampled_from([0, 124])),
)
requests = st.one_of(
    st.builds(job_spec.Resources, st.integers(100, 3000), st.sampled_from([1 * GIB, 2 * GIB])),
    st.builds(
        lambda count, model, vram, capability, cuda: job_spec.Resources(
            1000, GIB, gpu=job_spec.GpuRequest(count, model, vram, capability, cuda)
        ),
        st.integers(1, 3),
        st.sampled_from(["", "A100", "a100 80GB", "l4", "H100", "rtx 9999"]),
        st.sampled_from([1, 40 * GIB]),
        st.sampled_from([0, 75, 81, 89, 100]),
        st.sampled_from([0, 124, 125]),
    ),
)
# how many images its list has, room of its store, CUDA
Facts = tuple[int, int, int]
ANY: Facts = (0, 1 << 53, 124)
Machine = tuple[Size, int, int, int, int, bool, tuple[JobKind, ...], int, int, bool, Facts]


PLAIN: Machine = ((4000, 4 * GIB, 0), 2, 1, 0, 5, False, (JobKind.TASK,), 0, 0, False, ANY)
LIES_ABOUT_ITS_CACHE = 8  # the number of a provider that never had what its offer names


def fill(state: State, machine: Machine, number: int, host: Pool) -> None:
    """Puts one provider with its leases and record into the state."""
    size, price, count, held, life, is_away, kinds, network, strikes, caches, facts = machine
    listed, store, cuda = facts
    owner = owner_of(number + 1)
    millis, memory, vram = size
    slot = a_slot(
        host, price * 1000, count, cpu_millis=millis, memory_bytes=memory, vram_bytes=vram
    )
    slot = replace(slot, cuda=cuda if host.is_gpu else 0)
    cached = (job_spec.image_digest(IMAGES[0])[:CACHED_PREFIX_BYTES],) if caches else ()
    offer = replace(
        an_offer(owner, 1, NOW + life + 1, (slot,)),
        kinds=kinds,
        cached=cached,
        images=tuple(map(job_spec.image_digest, IMAGES[:listed])),
        store_bytes=store,
        sandboxes=("noop",) if number % 3 else ("bwrap", "not-known-yet"),
    )
    if caches and number != LIES_ABOUT_ITS_CACHE:
        state.fetched[owner] = cached
    alive, away = UnixSeconds(NOW + life), UnixSeconds(NOW + 9 if is_away else 0)
    state.providers[owner] = Provider(
        owner,
        number,
        owner,
        owner,
        hash_tuple(network),
        offer,
        Sequence(1),
        alive,
        unsecured_until=away,
    )
    for index in range(held):
        message = blank(
            Assignment,
            assignment_id=hash_tuple(number, index),
            provider=owner,
            pool=host.id(),
            price_tier=PriceTier.ON_DEMAND,
        )
        digest = hash_tuple("lease", number, index)
        state.leases[digest] = Lease(
            Envelope(message, UNSIGNED), digest, ZERO_HASH, 0, ZERO_HASH, 0, lease.Assigned()
        )
        state.leases_in_slots[owner] = (*(state.leases_in_slots.get(owner) or ()), digest)
    if strikes:
        state.trust[owner] = Trusts(
            {ZERO_HASH: Trust(strikes=(UnixSeconds(NOW - 5),) * strikes)},
            audits_passed=9 * number,
            answers=(False,) * strikes + (True,) * number,
            times=(CompletionTime(Seconds(10), Seconds(10 * strikes + number)),),
        )


def waiting_for(
    resources: job_spec.Resources,
    host: Pool,
    price: int,
    image: str = IMAGES[0],
    refused: tuple[Address, ...] = (),
    sandbox: str = "",
) -> Job:
    """A job with these needs that waits for its primary, at `price` per hour at most."""
    spec = replace(a_spec("job"), image=image, resources=resources, sandbox=sandbox)
    return replace(waiting_job(spec, host, Price(price), NOW), refused_by=refused)


def turn_of(state: State, step: int = 0) -> StepContext:
    """Returns the context of step number `step`."""
    rules = Rules(Domain(1, NOBODY), NOBODY, NOBODY, lambda _: UNSIGNED, DEVNET, Bps(0), 0, b"", ())
    return StepContext(state, rules, NOW, hash_tuple("step", step), list[Effect]())


@settings(max_examples=150, deadline=None)
@given(
    st.lists(providers, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), providers), max_size=8),
    requests,
    st.integers(1, 4),
    st.integers(1, 3),
    st.sets(st.integers(1, 12), max_size=3),
    st.sampled_from(IMAGES),
    st.sets(st.integers(0, 11), max_size=6),
    st.sampled_from(["", "", "noop", "bwrap"]),
)
def test_the_same_provider_is_chosen_as_by_a_scan(
    market: list[Machine],
    changed: list[tuple[int, Machine]],
    resources: job_spec.Resources,
    price: int,
    wanted: int,
    refused: set[int],
    image: str,
    staked: set[int],
    sandbox: str,
) -> None:
    host = HOSTS[resources.gpu is not None]
    state = State()
    with state.transaction():
        for number, machine in enumerate(market):
            fill(state, machine, number, host)
        slots = [
            StakeSlot(i, owner_of(n + 1), NOBODY, NOBODY, ZERO_HASH, BlockNumber(0))
            for i, n in enumerate(sorted(staked))
        ]
        state.pool_slots[host.id()] = PoolSlots(tuple(slots))
    asked = waiting_for(
        resources,
        host,
        price * 1000,
        image,
        tuple(owner_of(number) for number in sorted(refused)),
        sandbox,
    )
    offers.choose(turn_of(state), asked)  # builds the index before the changes
    state.begin()
    for number, machine in changed:
        fill(state, machine, number, host)
    assert offers.choose(turn_of(state, 1), asked, wanted) == scan(turn_of(state, 1), asked, wanted)
    state.rollback()
    assert offers.choose(turn_of(state, 2), asked, wanted) == scan(turn_of(state, 2), asked, wanted)
    restored = State()
    restored.restore(state.snapshot())
    assert offers.choose(turn_of(restored, 2), asked, wanted) == offers.choose(
        turn_of(state, 2), asked, wanted
    )


@pytest.mark.rule("4.69")
def test_content_that_a_provider_has_never_fetched_is_not_believed() -> None:
    state, host = State(), HOSTS[0]
    asked = waiting_for(job_spec.Resources(), host, 5000)
    with state.transaction():
        for number in range(4):
            fill(state, (*PLAIN[:7], number, 0, False, ANY), number, host)
        fill(state, (*PLAIN[:7], 8, 0, True, ANY), LIES_ABOUT_ITS_CACHE, host)
    liar = owner_of(LIES_ABOUT_ITS_CACHE + 1)
    seen = {offers.choose(turn_of(state, step), asked)[0].provider.owner for step in range(40)}
    assert len(seen) > 2, "its price counts like every other's"
    with state.transaction():
        fetched_content.note_commit(turn_of(state), liar, asked.submission.spec)
        fetched_content.note_commit(turn_of(state), liar, asked.submission.spec)
    assert len(state.fetched[liar]) == 1
    for step in range(40):
        assert offers.choose(turn_of(state, step), asked)[0].provider.owner == liar


@pytest.mark.rule("5.119")
def test_at_equal_price_a_provider_with_the_image_and_without_strikes_is_taken() -> None:
    state, host = State(), HOSTS[0]
    with state.transaction():
        for number in range(5):
            fill(state, PLAIN, number, host)
        fill(state, (*PLAIN[:7], 1, 0, True, ANY), 5, host)
        fill(state, (*PLAIN[:7], 2, 1, False, ANY), 6, host)
    asked = waiting_for(job_spec.Resources(), host, 5000)
    for step in range(20):
        ranked = [item.provider.owner for item in offers.choose(turn_of(state, step), asked, 3)]
        assert ranked[0] == owner_of(6) and ranked[-1] == owner_of(7)
        assert ranked[1] in {owner_of(number) for number in range(1, 6)}, (
            "one provider of the network, no matter which"
        )


@pytest.mark.rule("4.67", "4.68")
def test_a_record_ranks_an_offer_beside_its_price() -> None:
    """The last offer is 3 % dearer than the others, and it is taken while their records are
    worse.
    """
    state, host = State(), HOSTS[0]
    records = (
        Trusts(answers=(True,) * 18 + (False,) * 2),  # two of twenty missed: 5 %
        Trusts(times=(CompletionTime(Seconds(10), Seconds(14)),)),  # 40 % later than quoted: 8 %
        Trusts({ZERO_HASH: Trust(strikes=(UnixSeconds(NOW - 5),))}),  # a strike: 5 %
    )
    with state.transaction():
        for number, known in enumerate(records):
            dear = (PLAIN[0], 1000, *PLAIN[2:7])
            fill(state, (*dear, number, 0, False, ANY), number, host)
            state.trust[owner_of(number + 1)] = known
        fill(state, (PLAIN[0], 1030, *PLAIN[2:7], 9, 0, False, ANY), 9, host)
    asked = waiting_for(job_spec.Resources(), host, 5_000_000)
    for step in range(20):
        first, *_, last = offers.choose(turn_of(state, step), asked, 4)
        assert first.provider.owner == owner_of(10) and last.provider.owner == owner_of(2)
    with state.transaction():
        state.trust[owner_of(3)] = Trusts(audits_passed=100, answers=(True,) * 20)
    (best,) = offers.choose(turn_of(state), asked)
    assert best.provider.owner == owner_of(3), "one more line of the log changes the rank"


@pytest.mark.rule("2.19")
def test_the_chosen_class_is_the_fitting_one_with_the_most_owners() -> None:
    state, host = State(), Pool("T4", "", Small(1))
    small: Machine = ((1000, GIB, 16 * GIB), 2, 1, 2, 5, False, (JobKind.TASK,), 0, 0, False, ANY)
    other = Pool("L4", "", Small(1))
    with state.transaction():
        fill(state, small, 0, host)
        fill(state, ((4000, 4 * GIB, 16 * GIB), *small[1:]), 1, other)
        state.pool_slots[host.id()] = PoolSlots(
            (StakeSlot(0, owner_of(1), NOBODY, NOBODY, ZERO_HASH, BlockNumber(0)),)
        )
    gpu = job_spec.GpuRequest(1, "", 0)
    spec = waiting_for(job_spec.Resources(gpu=gpu), host, 5000).submission.spec
    big = waiting_for(job_spec.Resources(2000, 2 * GIB, gpu=gpu), host, 5000).submission.spec
    assert offers.class_for(turn_of(state), ZERO_HASH, spec, Price(5000)) == host.id(), (
        "busy providers count too"
    )
    assert offers.class_for(turn_of(state), ZERO_HASH, big, Price(5000)) == other.id()
    assert offers.class_for(turn_of(state), host.id(), big, Price(5000)) is None
    assert offers.class_for(turn_of(state), ZERO_HASH, spec, Price(1999)) is None
    turn = turn_of(state)
    assert offers.offers_for(turn, host.id(), spec, Price(5000), is_free=False) == (1, 2000)
    assert offers.offers_for(turn, host.id(), spec, Price(5000), is_free=True) == (0, None)


@pytest.mark.rule("4.37")
def test_a_class_with_fewer_gpus_in_a_slot_is_matched_first() -> None:
    state, pair = State(), HOSTS[1]
    size = (4000, 4 * GIB, 80 * GIB)
    machine: Machine = (size, 2, 1, 0, 5, False, (JobKind.TASK,), 0, 0, False, ANY)
    eight = replace(pair, gpus=Small(8))
    with state.transaction():
        for number in range(3):
            fill(state, machine, number, eight)
        fill(state, machine, 3, pair)

    def chosen(count: int) -> Pool | None:
        asked = job_spec.Resources(1000, GIB, gpu=job_spec.GpuRequest(count, "A100", 0))
        spec = waiting_for(asked, pair, 5000).submission.spec
        found = offers.class_for(turn_of(state), ZERO_HASH, spec, Price(5000))
        return None if found is None else state.market.pools[found]

    assert [chosen(count) for count in (1, 2, 3, 8, 9)] == [pair, pair, eight, eight, None]


def test_an_image_named_by_cid_counts_as_cached() -> None:
    state, host = State(), HOSTS[0]
    image = document_cid(b"archive")
    with state.transaction():
        for number in range(4):
            fill(state, (*PLAIN[:7], number, 0, False, ANY), number, host)
        provider = state.providers[owner_of(3)]
        assert provider.offer is not None
        state.fetched[owner_of(3)] = cached = (job_spec.image_digest(image)[:8],)
        state.providers[owner_of(3)] = replace(
            provider, offer=replace(provider.offer, cached=cached)
        )
    asked = waiting_for(job_spec.Resources(), host, 5000, image)
    assert {offers.choose(turn_of(state, step), asked)[0].provider.owner for step in range(10)} == {
        owner_of(3)
    }


SEEDS = (2, 8, 11)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_market_takes_the_same_course_with_scans(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, course, violation, _ = play(seed)
    assert violation is None
    monkeypatch.setattr(coordinator_core, "JobQueue", matching_scan.ScanQueue)
    monkeypatch.setattr(offers, "choose", matching_scan.choose)
    assert play(seed)[1] == course


def test_a_ranking_drops_outdated_entries() -> None:
    ranking: Ranking[str, tuple[int, str]] = Ranking()
    for number in range(10_000):
        ranking.set(f"key {number % 10}", (number, ""))
    ranking.set("key 0", None)
    assert len(ranking) == 9 and len(ranking._heap) <= 2 * 10 + 65
    assert ranking.first() == ((9991, ""), "key 1")
    assert ranking.take_until(9993) == ["key 1", "key 2", "key 3"]
    ranking.set("key 1", (1, ""))
    assert ranking.first() == ((1, ""), "key 1")
