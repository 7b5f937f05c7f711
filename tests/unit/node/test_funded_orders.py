"""Tests what a provider keeps of orders with an escrow of their own, and when it shows that."""

from pathlib import Path

import pytest

from quorate_contracts.generated import jobs
from quorate_node.core import effects, events
from quorate_node.core.phases import Committed, Receipted
from quorate_node.core.provider_core import ProviderCore
from quorate_node.owner.funded_orders import (
    FundedExecution,
    JobOnChain,
    Standing,
    State,
    forget,
    is_secured,
    is_worthless,
    keep,
    kept,
    standing,
)
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.commitment import assignment_id
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.frames import EscrowedOrder
from quorate_protocol.messages.signed import Order
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, Price, Small, UnixSeconds
from quorate_protocol.values import replace
from support.markets.provider_world import (
    COORDINATOR,
    DOMAIN,
    NOW,
    PROVIDER,
    STATEMENT_KEY,
    Driver,
    commit_set,
    make_assignment,
    make_spec,
    make_terms,
    receipt,
    verdict,
)
from support.messages import an_order

CLIENT = Address(b"\x66" * 20)
OTHER = Address(b"\x88" * 20)
BLIND = Hash32(b"\x07" * 32)
BUDGET = Amount(10_000)
GROUP = Hash32(b"\x0a" * 32)
UNTIL = UnixSeconds(NOW + 1000)


def funded_order(**changes: object) -> Order:
    """Returns an order of the job that `make_spec` describes."""
    wanted = {
        "max_price_per_hour": Price(100_000),
        "budget": BUDGET,
        "max_executions": Small(3),
        "accept_unwitnessed": False,
        "accept_unverified": False,
    }
    return an_order(CLIENT, COORDINATOR, make_spec(), 1, NOW + 60, **(wanted | changes))


def begun(order: Order) -> tuple[Driver, Hash32]:
    """Returns a provider that works on execution 2 of the order, and its lease."""
    driver, spec = Driver(ProviderCore(make_terms())), make_spec()
    named = assignment_id(digest(DOMAIN, order), 2, BLIND)
    assignment = replace(make_assignment(spec), assignment_id=named)
    envelope = seal(DOMAIN, assignment, STATEMENT_KEY.sign)
    driver.do(events.AssignmentReceived(envelope, spec, (), STATEMENT_KEY.address))
    return driver, digest(DOMAIN, assignment)


def closed(driver: Driver, lease: Hash32, order: Order, index: int = 2) -> events.CommitSetReceived:
    """Returns the CommitSet of the order's job, with the order itself."""
    event = commit_set(driver.execution(lease), driver.now)
    message = replace(event.commit_set.message, job_id=digest(DOMAIN, order), blinds=(BLIND,))
    sealed = seal(DOMAIN, message, STATEMENT_KEY.sign)
    return replace(event, commit_set=sealed, escrowed=EscrowedOrder(order, index))


@pytest.mark.rule("6.81")
def test_evidence_is_kept_before_the_result_is_revealed() -> None:
    order = funded_order()
    driver, lease = begun(order)
    driver.advance(lease, Receipted)
    keep_it, reveal = driver.do(closed(driver, lease, order))
    assert keep_it == effects.KeepEvidence(lease, COORDINATOR, order, 2, BLIND)
    assert isinstance(reveal, effects.SendReveal) and keep_it.lane == reveal.lane
    twin = ProviderCore(make_terms())
    twin.restore(driver.core.snapshot())
    assert twin.resume() == (keep_it, reveal)


@pytest.mark.rule("6.81")
def test_a_provider_that_could_show_nothing_reveals_nothing() -> None:
    """Its Commit is sent again, and the answer is the receipt that it lacks."""
    order = funded_order()
    driver, lease = begun(order)
    driver.advance(lease, Committed)
    assert driver.refusal(closed(driver, lease, order)) is Code.WRONG_PHASE
    driver.do(receipt(driver.execution(lease)))
    assert len(driver.do(closed(driver, lease, order))) == 2


@pytest.mark.parametrize("wrong", ["index", "order", "spec", "coordinator"])
def test_an_order_that_is_not_that_of_the_execution_is_left_out(wrong: str) -> None:
    """The pay is then the coordinator's debt."""
    changes: dict[str, dict[str, object]] = {
        "spec": {"spec_hash": GROUP},
        "coordinator": {"coordinator": OTHER},
    }
    order = funded_order(**changes.get(wrong, {}))
    driver, lease = begun(order)
    driver.advance(lease, Receipted)
    event = closed(driver, lease, order, 3 if wrong == "index" else 2)
    if wrong == "order":
        event = replace(event, escrowed=EscrowedOrder(funded_order(budget=Amount(1)), 2))
    (reveal,) = driver.do(event)
    assert isinstance(reveal, effects.SendReveal)


@pytest.mark.rule("6.74", "6.83")
@pytest.mark.parametrize("is_before", [True, False])
def test_pay_of_a_funded_order_is_no_debt_once_the_chain_shows_its_escrow(is_before: bool) -> None:
    """Until then it is: a coordinator that says `escrowed` without money gains nothing."""
    order = funded_order()
    driver, lease = begun(order)
    driver.advance(lease, Receipted)
    driver.do(closed(driver, lease, order))
    assert driver.core.owed(COORDINATOR).open > 0
    if is_before:
        driver.do(events.OrderFunded(lease))
        assert driver.core.owed(COORDINATOR).open == 0
    said = replace(verdict(lease).verdict.message, job_id=digest(DOMAIN, order))
    sealed = seal(DOMAIN, said, STATEMENT_KEY.sign)
    driver.do(events.VerdictReceived(lease, sealed, STATEMENT_KEY.address))
    assert (driver.core.owed(COORDINATOR).held > 0) is not is_before
    driver.do(events.OrderFunded(lease))
    assert driver.core.owed(COORDINATOR).held == 0 and driver.core.pays[lease].is_escrowed


# ---------------------------------------------------------------------------------------- the chain


def execution(order: Order | None = None) -> FundedExecution:
    """Returns the evidence of an execution that was revealed at NOW."""
    order = order or funded_order()
    driver, lease = begun(order)
    driver.advance(lease, Receipted)
    phase = driver.execution(lease).phase
    assert isinstance(phase, Receipted)
    commit = seal(DOMAIN, phase.commit, STATEMENT_KEY.sign)
    assignment = driver.execution(lease).assignment
    return FundedExecution(order, 2, BLIND, assignment, commit, phase.receipt, phase.reveal, NOW)


def job(count: int = 0, last: int = NOW, until: int = UNTIL, is_over: int = 0) -> jobs.Job:
    return jobs.Job(BUDGET, UnixSeconds(until), last, last, count, is_over)


def shown(*owners: tuple[Address, Hash32]) -> tuple[jobs.Shown, ...]:
    return tuple(
        jobs.Shown(CLIENT, ZERO_HASH, owner, Amount(1), group, 1) for owner, group in owners
    )


MINE, THEIRS, UNLIKE = (PROVIDER, GROUP), (OTHER, GROUP), (OTHER, ZERO_HASH)
SHOW_AT, WINDOW = NOW + DEVNET.show_after, DEVNET.evidence_window
NO_JOB = jobs.Job(Amount(0), UnixSeconds(0), 0, 0, 0, 0)


@pytest.mark.rule("6.77", "6.78", "6.79", "6.81")
@pytest.mark.parametrize(
    ("found", "at", "state", "due"),
    [
        (JobOnChain(NO_JOB), 0, State.UNFUNDED, 0),
        (JobOnChain(job(is_over=1)), 0, State.OVER, 0),
        (JobOnChain(job()), 0, State.SHOWABLE, SHOW_AT),
        (JobOnChain(job(until=NOW + WINDOW)), 0, State.SHOWABLE, NOW),
        (JobOnChain(job(1), shown(THEIRS)), 0, State.SHOWABLE, SHOW_AT),
        (JobOnChain(job()), 1000, State.SHOWABLE, SHOW_AT),
        (JobOnChain(job()), 1001, State.LOST, 0),
        (JobOnChain(job(1), shown(MINE)), 0, State.ALONE, UNTIL),
        (JobOnChain(job(2), shown(MINE, UNLIKE)), 0, State.ALONE, UNTIL),
        (JobOnChain(job(2), shown(MINE, UNLIKE)), 1001, State.LOST, 0),
        (JobOnChain(job(2), shown(MINE, THEIRS)), 0, State.WINDOW, NOW + WINDOW + 1),
        (JobOnChain(job(2), shown(MINE, THEIRS)), WINDOW + 1, State.PAYABLE, NOW + WINDOW + 1),
        (JobOnChain(job(2, UNTIL), shown(MINE, THEIRS)), 1001, State.PAYABLE, UNTIL + 1),
    ],
)
def test_an_execution_is_shown_and_paid_when_it_is_due(
    found: JobOnChain, at: int, state: State, due: int
) -> None:
    """Its coordinator has time before, unless it released the order."""
    assert standing(execution(), found, NOW + at, DEVNET) == Standing(state, UnixSeconds(due))


@pytest.mark.rule("6.80")
@pytest.mark.parametrize(
    ("budget", "until", "is_one"),
    [(BUDGET, UNTIL, True), (BUDGET - 1, UNTIL, False), (BUDGET, NOW + WINDOW - 1, False)],
)
def test_an_escrow_that_cannot_pay_is_none(budget: int, until: int, is_one: bool) -> None:
    found = jobs.Job(Amount(budget), UnixSeconds(until), 0, 0, 0, 0)
    assert is_secured(execution(), found, DEVNET) is is_one


def test_evidence_is_forgotten_when_it_serves_nothing() -> None:
    held = execution()
    ends = held.assignment.message.accept_by + 30 + DEVNET.escrow_evidence_age
    for state in State:
        is_over = state in (State.OVER, State.LOST)
        assert is_worthless(held, state, NOW, DEVNET) is is_over
        assert is_worthless(held, state, ends + 1, DEVNET) is (is_over or state is State.UNFUNDED)


def test_evidence_lies_in_a_file_until_it_is_forgotten(tmp_path: Path) -> None:
    folder, held = tmp_path / "funded", execution()
    assert kept(folder) == []
    keep(folder, held)
    keep(folder, replace(held, revealed_at=UnixSeconds(NOW + 9)))
    assert kept(folder) == [held], "a repeated effect changes nothing"
    (path,) = folder.iterdir()
    path.write_text("{")
    with pytest.raises(Refused, match="is damaged"):
        kept(folder)
    forget(folder, held)
    assert kept(folder) == []


def test_the_contract_gets_what_was_signed() -> None:
    held = execution()
    run = held.run()
    assert (run.index, run.blind, run.salt) == (2, BLIND, held.reveal.salt)
    assert run.committed_at == held.receipt.message.time
    assert digest(DOMAIN, run.commit) == held.receipt.message.commit_hash
