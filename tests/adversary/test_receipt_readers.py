"""False Verdicts and CommitSets, as `quorate verify`, client and provider see them.

All three use one function. The provider reads the receipt of each Verdict that it got.
"""

from functools import lru_cache
from pathlib import Path

import pytest

from adversary.conftest import Attack
from quorate_coordinator.core.audit import batches
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import AwaitingRound
from quorate_node.core.phases import Done
from quorate_node.core.provider_core import ProviderCore
from quorate_node.market.verdict_checks import VerdictChecks
from quorate_protocol.codec import canonical
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import Receipt, document
from quorate_protocol.messages.signed import Witness
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.receipts.receipt_bill import bill_of
from quorate_protocol.units import ZERO_HASH, Address, Bps, Hash32, Outcome, Round, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.process.health import Board
from support.markets.provider_world import make_terms
from support.markets.scripted_market import COORDINATOR, DOMAIN, INFO, STATEMENT, Market, Party
from support.receipt_readers import READERS, check_as_provider, executed, refused_by
from support.receipts import verdict_again
from support.virtual_clock import VirtualClock


@lru_cache(maxsize=1)
def witnessed() -> tuple[Market, Receipt]:
    """Returns a market and the receipt of its only job, whose client witnessed the commit."""
    market = Market(*[Party(number) for number in range(4)])
    job_id = market.order(0, 1)
    while not isinstance(phase := market.job(job_id).phase, AwaitingRound):
        market.beat()
    ack_hash = market.job(job_id).ack.digest(DOMAIN)
    message = Witness(market.job(job_id).commits[0], ack_hash, phase.round, UnixSeconds(market.at))
    key = market.sessions[0]
    market.send(ev.WitnessReceived(seal(DOMAIN, message, key.sign), key.address))
    market.until_decided(job_id)
    return market, canonical.decode(Receipt, market.receipts[-1])


def with_ack(body: Receipt, **changes: object) -> Receipt:
    return replace(body, ack=seal(DOMAIN, replace(body.ack.message, **changes), STATEMENT.sign))  # type: ignore[arg-type]


def with_first_set(body: Receipt, **changes: object) -> Receipt:
    first = replace(body.batches[0].message, **changes)  # type: ignore[arg-type]
    return replace(body, batches=(seal(DOMAIN, first, STATEMENT.sign), *body.batches[1:]))


class Ignoring:
    """The core that events would go to; its pay is another test's subject."""

    async def submit(self, event: object) -> object:
        return None


def forged() -> dict[str, Receipt]:
    """Returns false receipts by what is false in them."""
    market, body = witnessed()
    first = body.batches[0].message
    appears = body.timing.appears_at(first.beacon_round)
    later = Round(first.beacon_round + 1)
    beacons = (replace(body.beacons[0], round=later), *body.beacons[1:])
    session = replace(body.session.message, coordinator=Address(b"\x07" * 20))
    changed = {
        "a CommitSet without the witness": with_first_set(body, witness_hash=ZERO_HASH),
        "another round than the primary's": replace(
            with_first_set(body, beacon_round=later), beacons=beacons
        ),
        "an Ack after the round": with_ack(body, ack_time=UnixSeconds(appears)),
        "a session for another coordinator": replace(
            body, session=seal(DOMAIN, session, market.clients[0].sign)
        ),
        "a fee above maxFeeBps": with_ack(body, fee_bps=Bps(body.order.message.max_fee_bps + 1)),
    }
    made = {name: verdict_again(item, DOMAIN, STATEMENT.sign) for name, item in changed.items()}
    made["UNRESOLVED over two equal results"] = verdict_again(
        body, DOMAIN, STATEMENT.sign, outcome=Outcome.UNRESOLVED, group=(), faulted=()
    )
    return made


@pytest.mark.rule("7.12", "7.15")
def test_a_false_receipt_is_refused_by_client_provider_and_verify(attack: Attack) -> None:
    market, body = witnessed()
    assert body.witness is not None and len(body.verdict.message.group) == 2
    assert refused_by(market, body) == ()
    found = {name: refused_by(market, item) for name, item in forged().items()}
    assert set(found.values()) == {READERS}, found
    attack(
        name="coordinator signs a false CommitSet, Ack or Verdict",
        before="providers checked no receipt",
        now=f"0 of {len(found)} taken by {', '.join(READERS)}",
        cost="it gets no more work done by this provider",
    )


@pytest.mark.rule("5.103", "7.15")
def test_passed_over_providers_are_missed_by_client_provider_and_verify(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "in_order", lambda skipped: ())
    market = Market(*[Party(number, is_deaf=number > 1) for number in range(5)])
    for nonce in range(1, 8):
        market.until_decided(market.order(0, nonce), seconds=400)
    bodies = [canonical.decode(Receipt, data) for data in market.receipts]
    found = [refused for body in bodies if (refused := refused_by(market, body))]
    assert found and set(found) == {READERS}
    attack(
        name="coordinator passes over live auditors, with an empty skipsHash",
        before="providers checked no receipt",
        now=f"0 of {len(found)} such receipts taken by {', '.join(READERS)}",
        cost="it gets no more work done by this provider",
    )


@pytest.mark.rule("4.56")
def test_a_coordinator_can_say_that_a_client_read_what_it_did_not(attack: Attack) -> None:
    """What is not protected: no signature of the client shows that it read lines of a log."""
    market = Market(Party(0, lies=True), Party(1), Party(2, is_deaf=True))
    market.until_decided(market.order(0, 1))
    body = canonical.decode(Receipt, market.receipts[0])
    primary = body.batches[0].message.ordered[0].assignment_hash
    forged = verdict_again(body, DOMAIN, STATEMENT.sign, read=(primary,))
    assert refused_by(market, forged) == ()
    charged = [bill_of(item).split.charged for item in (body, forged)]
    assert charged[0] == 0 < charged[1]
    attack(
        name="coordinator says that a client has read a log (not refused)",
        before="no such charge",
        now=f"{charged[1]} micro-USD, the price of one execution with its fee, on its word",
        cost="the fund pays that execution otherwise",
    )


@pytest.mark.rule("7.15")
def test_a_provider_refuses_another_receipt_than_the_one_it_worked_for() -> None:
    """Receipts with good signatures that contradict what the provider signed and was sent."""
    market, body = witnessed()
    own = executed(market, body, member=1)
    assert isinstance(own.phase, Done) and own.phase.commit_set is not None
    check_as_provider(market, body, own)
    earlier = replace(own.phase.commit_set.message, closed_at=UnixSeconds(1))
    signed_before = replace(own.phase, commit_set=seal(DOMAIN, earlier, STATEMENT.sign))
    check_as_provider(market, body, replace(own, phase=signed_before))
    other_set = replace(earlier, witness_hash=ZERO_HASH)
    other = replace(own.phase, commit_set=seal(DOMAIN, other_set, STATEMENT.sign))
    lie = verdict_again(body, DOMAIN, STATEMENT.sign, time=UnixSeconds(market.at + 9))
    for execution, told in (
        (replace(own, phase=other), "another CommitSet"),
        (replace(own, phase=replace(own.phase, verdict=lie.verdict)), "another Verdict"),
        (replace(own, assignment_hash=ZERO_HASH), "is not in it"),
        (replace(own, accept=body.executions[0].accept.message), "another Accept"),
    ):
        with pytest.raises(Refused, match=told) as refused:
            check_as_provider(market, body, execution)
        assert refused.value.code is Code.EQUIVOCATION
    newer = verdict_again(body, DOMAIN, STATEMENT.sign, seq=body.verdict.message.seq + 1)
    with pytest.raises(Unavailable):
        check_as_provider(market, newer, own)


@pytest.mark.rule("7.15")
async def test_a_provider_works_no_more_for_a_coordinator_with_a_false_receipt(
    tmp_path: Path,
) -> None:
    market, body = witnessed()
    keys = {COORDINATOR.address: STATEMENT.address}
    terms = replace(make_terms(), domain=DOMAIN, beacon=INFO, statement_keys=keys)
    core, shown = ProviderCore(terms), [Unavailable("not stored yet", 1.0), document(body)]

    async def fetch(job_id: Hash32) -> bytes:
        assert job_id == body.verdict.message.job_id
        found = shown.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    folder, board, clock = tmp_path / "false-receipts", Board(), VirtualClock(market.at)
    checks = VerdictChecks(
        core, Ignoring(), {COORDINATOR.address: fetch}, folder, tmp_path / "receipts", board, clock
    )
    honest = executed(market, body)
    await checks.look(honest)
    await checks.look(honest)
    assert not shown and checks.may_take_work(COORDINATOR.address) and not folder.exists()
    false = forged()["a fee above maxFeeBps"]
    shown.append(document(false))
    await checks.look(executed(market, false))
    assert not checks.may_take_work(COORDINATOR.address) and board.has("receipts")
    kept = next(folder.iterdir())
    assert kept.read_bytes() == document(false)
    again = VerdictChecks(core, Ignoring(), {}, folder, tmp_path / "receipts", Board(), clock)
    again.read_folder()
    assert not again.may_take_work(COORDINATOR.address), "a restart knows it"
    kept.unlink()
    again.read_folder()
    assert again.may_take_work(COORDINATOR.address), "the owner took it back"


@pytest.mark.rule("7.15")
async def test_a_provider_keeps_the_receipt_of_a_verdict_that_faults_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    market = Market(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    body, nonce = None, 0
    while body is None or not body.verdict.message.faulted:
        nonce += 1
        market.until_decided(market.order(0, nonce))
        body = canonical.decode(Receipt, market.receipts[-1])
    found, folder, board = body, tmp_path / "receipts", Board()
    keys = {COORDINATOR.address: STATEMENT.address}
    terms = replace(make_terms(), domain=DOMAIN, beacon=INFO, statement_keys=keys)

    async def fetch(_: Hash32) -> bytes:
        return document(found)

    fetches, clock = {COORDINATOR.address: fetch}, VirtualClock(market.at)
    core = ProviderCore(terms)
    checks = VerdictChecks(core, Ignoring(), fetches, tmp_path / "false", folder, board, clock)
    commits = [item.commit.message.assignment_hash for item in found.executions]
    faulted = commits.index(found.verdict.message.faulted[0])
    await checks.look(executed(market, found, faulted))
    [kept] = folder.iterdir()
    assert kept.read_bytes() == document(found) and str(kept) in caplog.text
    assert checks.may_take_work(COORDINATOR.address), "its owner decides"
