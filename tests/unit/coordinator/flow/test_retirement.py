"""Tests that finished jobs leave the state.

The state stays small, and queries still find the jobs.
"""

from collections.abc import Iterator

import pytest

from quorate_coordinator.core import views
from quorate_coordinator.core.archived_run import archived
from quorate_coordinator.core.audit import faults
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.jobs import retirement
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.accusations import Case, Fault
from quorate_coordinator.core.model.nonces import LISTED_MAX, UsedNonces
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import ledger
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.codec.tables import Table
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Hash32, Nonce, UnixSeconds
from support.markets.archiving_market import ArchivingMarket
from support.markets.scripted_market import Party
from support.refusals import refuses


@pytest.fixture
def market() -> ArchivingMarket:
    return ArchivingMarket(*[Party(number) for number in range(5)])


def rows(core: CoordinatorCore) -> dict[str, int]:
    """Returns the number of rows of each table."""
    return {
        name: len(table) for name, table in vars(core.state).items() if isinstance(table, Table)
    }


def test_a_finished_job_leaves_and_can_still_be_read(market: ArchivingMarket) -> None:
    before = rows(market.core)
    history = market.history
    assert history is not None
    market.is_archive_down = True
    job_id = market.order(0, 1)
    client = market.clients[0].address
    market.until_decided(job_id)
    while not market.waiting:
        market.beat()
    seen = (
        history.view(job_id, client),
        history.view(job_id, None),
        history.lines_of_run(job_id, 0),
        history.lines(client, 0),
    )
    assert (
        seen[0].output is not None
        and seen[1].output is None
        and len(seen[2]) >= 6
        and seen[2] == seen[3]
    )
    ack = market.job(job_id).ack
    market.perform_archive()
    assert job_id not in market.core.state.jobs
    again = (
        history.view(job_id, client),
        history.view(job_id, None),
        history.lines_of_run(job_id, 0),
        history.lines(client, 0),
    )
    assert again == seen, "nobody notices"
    assert history.runs_of(client, 10) == [seen[0]] and history.ack(job_id) == ack
    assert history.lines(client, seen[2][-1].seq) == [] and history.is_over(job_id)
    with pytest.raises(Refused, match="unknown"):
        history.view(hash_of_nothing(), client)
    after = rows(market.core)
    grown = {name for name in before if after[name] > before[name]}
    # What is left: balances, passed audits, answered draws, which content its providers have had,
    # chain blocks, counters. Not the job.
    assert grown <= {
        "trust",
        "answers",
        "fetched",
        "leases_in_slots",
        "payees",
        "sending",
        "vouchers_due",
        "own_record",
        "counters",
        "nonces",
        "blocks",
    }, grown


def hash_of_nothing() -> Hash32:
    return Hash32(b"\x07" * 32)


@pytest.mark.rule("I2", "3.10")
def test_the_same_order_is_not_run_again(market: ArchivingMarket) -> None:
    job_id = market.order(0, 1)
    submitted = next(item.event for item in market.log if isinstance(item.event, ev.OrderReceived))
    market.until_archived(job_id)
    with refuses(Code.REPLAYED):
        market.send(submitted)
    assert not market.core.state.live
    assert market.history is not None and market.history.ack(job_id) is not None, (
        "and the API answers with the first Ack"
    )
    assert views.account_view(market.core.state, market.clients[0].address).next_nonce == 2


def test_late_messages_about_an_archived_job_are_refused(market: ArchivingMarket) -> None:
    job_id = market.order(0, 1)
    market.until_archived(job_id)
    late = [
        item.event
        for item in market.log
        if isinstance(item.event, ev.AcceptReceived | ev.CommitReceived | ev.RevealReceived)
    ]
    assert len(late) >= 6
    for event in late:
        with refuses(Code.UNKNOWN):
            market.send(event)


def test_repeated_or_unknown_archive_events_change_nothing(market: ArchivingMarket) -> None:
    done, live = market.order(0, 1), None
    market.until_archived(done)
    live = market.order(0, 2)
    before = market.core.snapshot()
    market.send(ev.RunsArchived((done, live, hash_of_nothing())))
    assert market.core.snapshot() == before, "a job under way stays"
    market.until_archived(live)


def test_a_job_stays_in_the_state_while_a_case_may_name_it() -> None:
    market = ArchivingMarket(*[Party(number, lies=number == 0) for number in range(5)])
    faulted = None
    for number in range(1, 20):
        job_id = market.order(0, number)
        market.until_decided(job_id)
        if any(
            fault.job_id == job_id for found in market.core.state.faults.values() for fault in found
        ):
            faulted = job_id
            break
    assert faulted is not None, "the liar is the cheapest"
    context = market.context()
    until = faults.heard_until(context, market.job(faulted))
    assert until > market.at + 30
    while market.at < until - 1:
        market.beat()
        assert faulted in market.core.state.jobs
    market.until_archived(faulted, seconds=10)


def test_a_job_stays_in_the_state_while_its_case_is_open(market: ArchivingMarket) -> None:
    market.is_archive_down = True
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    while not market.waiting:
        market.beat()
    case = Case(hash_of_nothing(), next(iter(market.parties)), job_id, None)
    with market.core.state.transaction():
        market.core.state.cases[case.execution] = case
    market.is_archive_down = False
    market.perform_archive()
    for _ in range(2 * retirement.LOOK_AGAIN_SECONDS):
        market.beat()
        assert job_id in market.core.state.jobs
    with market.core.state.transaction():
        del market.core.state.cases[case.execution]
    market.until_archived(job_id, seconds=2 * retirement.LOOK_AGAIN_SECONDS)


def test_a_kill_before_or_after_archiving_loses_nothing(market: ArchivingMarket) -> None:
    """The kill comes before or after the archive's write and the journal's write. A replay and a
    restored snapshot both go on from there.
    """
    first, second = market.order(0, 1), market.order(0, 2)
    market.is_archive_down = True
    market.until_decided(first, second)
    while sum(len(effect.jobs) for effect in market.waiting) < 2:
        market.beat()
    expected = {
        job_id: archived(market.core.state, market.job(job_id)) for job_id in (first, second)
    }
    pending = list(market.waiting)
    for is_written in (False, True):
        for core in restarted(market):
            market.core, market.waiting = core, list(pending)
            market.history = RunReader(core.state, market.archive)
            assert set(core.state.jobs) == {first, second}, "nobody was told that they may go"
            if is_written:
                market.write()
            assert {
                view.job_id for view in market.history.runs_of(market.clients[0].address, 9)
            } == {first, second}, "in both, shown once"
    market.perform_archive()
    market.is_archive_down = False
    for core in restarted(market):
        assert not core.state.jobs and not core.state.leases
        market.core, market.waiting = core, list(pending)
        # the effect was not marked done, so it runs once more and changes nothing
        market.perform_archive()
        assert {job_id: market.archive.run(job_id) for job_id in expected} == expected


def restarted(market: ArchivingMarket) -> Iterator[CoordinatorCore]:
    """Yields two cores that must equal the market's core: one replayed from the first event, one
    restored from a snapshot.
    """
    log = list(market.log)
    replayed = CoordinatorCore(market.core.rules, ledger.check)
    for item in log:
        replayed.step(item)
    assert replayed.snapshot() == market.core.snapshot()
    yield replayed
    restored = CoordinatorCore(market.core.rules, ledger.check)
    restored.restore(replayed.snapshot())
    yield restored


def test_a_stopped_job_leaves_at_once() -> None:
    market = ArchivingMarket(*[Party(number, is_deaf=True) for number in range(5)])
    job_id = market.order(0, 1)
    market.at += 700
    market.send(ev.Tick())
    market.send(ev.Tick())
    assert job_id not in market.core.state.jobs and not market.core.state.leases
    over = market.archive.run(job_id)
    assert over is not None and over.run.phase == "ended" and not market.core.needs_tick(market.at)


def test_nonces_are_bounded_and_none_is_used_twice() -> None:
    used = UsedNonces()
    assert used.next() == 0
    for nonce in (5, 3, 9, 7):
        assert not used.is_used(Nonce(nonce))
        used = used.using(Nonce(nonce))
    assert used.listed == (3, 5, 7, 9) and used.next() == 10
    assert all(used.is_used(Nonce(nonce)) for nonce in (3, 5, 7, 9)) and not used.is_used(Nonce(4))
    for nonce in range(100, 100 + LISTED_MAX):
        used = used.using(Nonce(nonce))
    assert len(used.listed) == LISTED_MAX and all(
        used.is_used(Nonce(nonce)) for nonce in (0, 3, 4, 5, 9, 100)
    )
    assert not used.is_used(Nonce(50)), "above all that were forgotten"


def test_faults_and_cases_are_bounded(market: ArchivingMarket) -> None:
    state, owner = market.core.state, next(iter(market.parties))
    with state.transaction():
        for number in range(faults.CASES_KEPT + 50):
            state.cases[str(number)] = Case(
                str(number), owner, (), (), is_convicted=number % 2 == 0
            )
        state.cases["open"] = Case("open", owner, (), ())
        state.faults[owner] = (Fault(ZERO_HASH, ZERO_HASH, owner, UnixSeconds(1)),)
        faults.forget_old_cases(
            StepContext(state, market.core.rules, UnixSeconds(market.at), ZERO_HASH)
        )
    assert (
        len(state.cases) == faults.CASES_KEPT + 1
        and "0" not in state.cases
        and "open" in state.cases
    )
