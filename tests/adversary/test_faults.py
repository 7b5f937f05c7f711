"""Attacks on honest owners by programs with random results, and on the rule against that."""

from collections.abc import Callable
from itertools import product

import pytest

from quorate_coordinator.core.model.entities import Decided, Job, Running
from quorate_coordinator.core.model.lease import class_of
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.messages.classes import GVISOR
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import Assignment, Verdict
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import confirmation
from quorate_protocol.units import Amount, Hash32, Label, Outcome, Small, UnixSeconds
from quorate_protocol.values import replace
from support.markets.scripted_market import Market, Party
from support.offers import MACHINE
from support.receipts import report_of

PAY = 1_000  # of each execution
Attack = Callable[..., None]


class CoinFlips(Market):
    """A market of honest owners, and a program whose result is the next of `tosses`."""

    def __init__(self, tosses: tuple[int, ...], owners: int = 3) -> None:
        super().__init__(*[Party(number) for number in range(owners)])
        self.tosses = list(tosses)
        self.gone_after = 99  # executions, after which no owner answers

    def _run(self, party: Party, assignment: Assignment, spec: JobSpec) -> None:
        if not self.gone_after:
            return
        self.gone_after -= 1
        toss = self.tosses.pop(0)
        party.lies, party.tale = bool(toss), toss
        super()._run(party, assignment, spec)


def verdict_of(market: Market, job_id: Hash32) -> Verdict:
    phase = market.job(job_id).phase
    assert isinstance(phase, Decided)
    return phase.verdict.message


def earned(market: Market) -> int:
    return sum(item.final + item.held for item in market.core.state.payees.values())


def decided(market: Market, **changes: object) -> Job:
    job_id = market.order(0, 1, **changes)
    market.until_decided(job_id)
    assert report_of(market.receipts[-1]).valid, report_of(market.receipts[-1]).failures
    return market.job(job_id)


@pytest.mark.rule("5.114", "5.115")
def test_a_coin_flip_program_faults_nobody(attack: Attack) -> None:
    """Two of three agree by chance. Both repeat the job, and get another result."""
    market = CoinFlips((0, 1, 0, 1, 1))
    job = decided(market)
    state, said = market.core.state, verdict_of(market, job.id)
    assert said.outcome is Outcome.UNRESOLVED and not said.group and not said.faulted
    assert not list(state.faults.items()) and not any(
        trust.strikes for known in state.trust.values() for trust in known.by_class.values()
    )
    charged = state.clients[market.clients[0].address].charged
    assert earned(market) == 5 * PAY and charged == 5 * PAY + 100
    assert job.is_readable
    attack(
        name="a program that tosses a coin",
        before="six of eight honest owners barred, for the price of the jobs",
        now=f"nobody is faulted, and the client pays all 5 executions: {charged}",
        cost="the price of five executions, and the image for 30 days",
    )


@pytest.mark.rule("5.114")
def test_every_fair_coin_costs_its_client_more_than_it_harms(attack: Attack) -> None:
    """All 32 ways in which a fair coin can fall. In four of them the two that agreed repeat their
    result by chance: no rule can tell that from a lie.
    """
    struck, charged, unpaid = 0, 0, 0
    for tosses in product((0, 1), repeat=5):
        market = CoinFlips(tosses)
        job = decided(market)
        said, ran = verdict_of(market, job.id), 5 - len(market.tosses)
        struck += len(said.faulted)
        charged += job.split.charged
        unpaid += ran - earned(market) // PAY if not said.faulted else 0
    assert struck == 4 and not unpaid, "who is not faulted is paid"
    attack(
        name="fair coins, a new image for each job",
        before="a strike in 16 of 32 jobs, and a bar after three",
        now=f"unpaid work in {struck} of 32 jobs, and one strike in 90 d",
        cost=f"{charged // struck / PAY:.1f} executions for each strike",
    )


@pytest.mark.rule("5.114")
@pytest.mark.parametrize("fund", [0, 10 * PAY])
def test_a_lie_is_a_fault_once_two_have_repeated_the_job(fund: int) -> None:
    market = CoinFlips((0, 1, 0, 0, 0))
    with market.core.state.transaction():
        own = market.core.state.own
        market.core.state.own_record["own"] = replace(own, fund=Amount(fund))
        account = market.clients[0].address
        client = replace(market.core.state.clients[account], fund_paid=Amount(fund))
        market.core.state.clients[account] = client
    market.core._check = None  # the fund's money comes from nowhere
    job = decided(market)
    said = verdict_of(market, job.id)
    assert said.outcome is Outcome.ACCEPTED and len(said.faulted) == 1 and len(said.group) == 2
    assert len(job.batches[-1].members) == 2 and job.batches[-1].is_repeat
    client = market.core.state.clients[market.clients[0].address]
    assert client.charged == 2 * PAY + 40, "the client pays nothing for the lie"
    assert earned(market) == (4 if fund else 2) * PAY, "the audit fund pays the repeats"


class NobodyAlive(CoinFlips):
    """All owners fall silent for a moment, when the third result is about to open."""

    ran_ms = 0

    def _run(self, party: Party, assignment: Assignment, spec: JobSpec) -> None:
        super()._run(party, assignment, spec)
        providers = self.core.state.providers
        if len(self.tosses) == 2:
            with self.core.state.transaction():
                for owner, provider in list(providers.items()):
                    providers[owner] = replace(provider, alive_until=UnixSeconds(0))


@pytest.mark.rule("5.114", "I7")
def test_a_job_ends_although_no_member_can_be_asked_to_repeat_it() -> None:
    """Such a job once waited for ever: nothing was due any more."""
    market = NobodyAlive((0, 1, 0, 0, 0))
    job = decided(market)
    said = verdict_of(market, job.id)
    assert said.outcome is Outcome.ACCEPTED and len(said.group) == 2 and not said.faulted


@pytest.mark.rule("5.114", "I7")
@pytest.mark.parametrize("repeating", [0, 1])
def test_members_that_do_not_answer_are_replaced_and_without_two_nobody_is_faulted(
    repeating: int,
) -> None:
    """A job that no member repeated once waited for ever."""
    market = CoinFlips((0, 1, 0, 0, 0))
    market.gone_after = 3 + repeating
    job = decided(market)
    said = verdict_of(market, job.id)
    assert said.outcome is Outcome.ACCEPTED and len(said.group) == 2 and not said.faulted
    assert not list(market.core.state.faults.items())


IN_GVISOR = replace(MACHINE, sandbox=GVISOR)


@pytest.mark.rule("2.19", "5.114")
def test_a_liar_that_names_another_class_is_unpaid_and_audited_again(attack: Attack) -> None:
    """Nobody can tell its lie from the honest result of another machine, so it gets no strike."""
    market = Market(Party(0, lies=True, host=IN_GVISOR), *[Party(number) for number in (1, 2, 3)])
    market.core.rules = replace(market.core.rules, limits=replace(DEVNET, strike_fees=Amount(0)))
    job = decided(market)
    said, state = verdict_of(market, job.id), market.core.state
    assert said.outcome is Outcome.ACCEPTED and len(said.group) == 2 and not said.faulted
    assert not any(batch.is_repeat for batch in job.batches), "nobody repeats for its sake"
    assert earned(market) == 2 * PAY
    [(liar, kept)] = state.faults.items()
    assert liar == next(iter(market.parties)) and [item.is_in_no_case for item in kept] == [True]
    [trust] = state.trust[liar].by_class.values()
    assert trust.passed == 0 and not trust.strikes
    attack(
        name="a liar that says its machine is of another class",
        before="there was no pool with several classes",
        now="its lie is not paid, and it must earn its trust again",
        cost="its execution, and the audits that it had passed",
    )


@pytest.mark.rule("2.19", "5.114")
def test_a_liar_beside_one_of_its_class_is_faulted_whatever_the_others_run_on() -> None:
    hosts = (IN_GVISOR, IN_GVISOR, IN_GVISOR, MACHINE, MACHINE)
    parties = [Party(place, lies=not place, host=host) for place, host in enumerate(hosts)]
    market = Market(*parties)
    job = decided(market)
    said, known = verdict_of(market, job.id), market.core.state.leases
    assert [known[item].provider for item in said.faulted] == [next(iter(market.parties))]
    repeats = [item for batch in job.batches if batch.is_repeat for item in batch.members]
    kinds = {class_of(known[item]) for item in (*said.faulted, *repeats)}
    assert len(repeats) >= 2 and len(kinds) == 1, "only members of its class repeat"
    assert len({class_of(known[item]) for item in said.group}) == 2


@pytest.mark.rule("2.19")
def test_equal_results_of_two_classes_agree() -> None:
    """A driver or a sandbox is no reason to doubt a result that others confirm."""
    market = Market(Party(0, host=IN_GVISOR), Party(1), Party(2))
    said = verdict_of(market, decided(market).id)
    assert said.outcome is Outcome.ACCEPTED and len(said.group) == 2
    assert not list(market.core.state.faults.items())


@pytest.mark.rule("5.114")
def test_a_coordinator_cannot_leave_the_confirmation_out(
    monkeypatch: pytest.MonkeyPatch, attack: Attack
) -> None:
    market = CoinFlips((0, 1, 0))
    with monkeypatch.context() as patch:
        patch.setattr(confirmation, "missing", lambda found, result, kind: 0)
        market.until_decided(market.order(0, 1))
    failed = [check.name for check in report_of(market.receipts[-1]).failures]
    assert failed == ["verdict:confirmed", "verdict:unconfirmed"]
    attack(
        name="a coordinator that faults without a confirmation",
        before="accepted by everybody",
        now=f"refused: {failed[0]}",
        cost="nothing",
    )


@pytest.mark.rule("5.116")
def test_an_image_with_two_results_is_not_verified_for_its_client() -> None:
    market = CoinFlips((0, 1, 0, 1, 1, 1, 0, 0))
    decided(market)
    with pytest.raises(Refused, match="gave one provider two results") as caught:
        market.order(0, 2)
    assert caught.value.code is Code.UNSUPPORTED and "verify: unverified" in str(caught.value)
    single = market.order(0, 3, accept_unverified=True)
    market.until_decided(single)
    assert market.job(single).ack.message.rule is Label.UNVERIFIED
    other = market.order(1, 4)
    market.until_decided(other)
    assert market.job(other).ack.message.rule is Label.QUORUM_2, "others may use the image"
    market.at += DEVNET.unverifiable_for
    market.beat()
    assert market.job(market.order(0, 5)).ack.message.rule is Label.QUORUM_2


@pytest.mark.rule("5.117", "5.119")
def test_faults_over_such_an_image_are_in_no_case_and_still_count_once() -> None:
    market = CoinFlips((0, 1, 0, 0, 0, 0, 1, 0, 1, 1))
    market.core.rules = replace(market.core.rules, limits=replace(DEVNET, strike_fees=Amount(0)))
    decided(market)
    market.until_decided(market.order(0, 2))
    (found,) = [fault for known in market.core.state.faults.values() for fault in known]
    assert found.is_in_no_case


@pytest.mark.rule("5.114", "5.115")
@pytest.mark.parametrize(
    ("tosses", "faulted"),
    [
        ((0, 1, 0, 0, 1, 0, 0), 2),  # a drawn owner takes the place of who contradicted itself
        ((0, 1, 0, 0, 2, 0, 0), 2),
        ((0, 1, 0, 1, 0, 0, 0), 2),
        ((0, 1, 0, 0, 1, 0, 1), 0),  # and contradicts itself too
    ],
)
def test_a_member_that_contradicts_itself_spares_nobody(
    tosses: tuple[int, ...], faulted: int
) -> None:
    """A liar's friend agrees first and lies when it repeats the job."""
    market = CoinFlips(tosses, owners=5)
    job = decided(market)
    said, client = verdict_of(market, job.id), market.clients[0].address
    assert len(said.faulted) == faulted and not market.tosses
    assert bool(market.core.state.unverifiable.get(client)) == (not faulted)
    if faulted:
        assert len(said.group) == 2 and job.split.charged == 2 * PAY + 40
        assert len({market.core.state.leases[name].provider for name in said.faulted}) == 2


@pytest.mark.rule("5.115", "5.116")
def test_one_owner_that_contradicts_itself_sets_no_image_aside() -> None:
    market = CoinFlips((0, 1, 0, 0, 1))
    job = decided(market)
    assert verdict_of(market, job.id).outcome is Outcome.UNRESOLVED and job.is_readable
    assert not market.core.state.unverifiable.get(market.clients[0].address)
    assert earned(market) == 5 * PAY, "nobody is left to confirm, and the client pays what ran"


@pytest.mark.rule("5.115", "4.51")
def test_repeats_cost_a_client_no_more_than_it_signed() -> None:
    market = CoinFlips((0, 1, 0, 1, 1))
    market.ran_ms = 60_000
    three = 3 * (200_000 * 60 // 3_600) * 102 // 100
    order = {"budget": Amount(three + 1), "max_executions": Small(3)}
    job = decided(market, **order)
    assert verdict_of(market, job.id).outcome is Outcome.UNRESOLVED
    assert job.split.charged <= three + 1 and len(job.split.credits) == 5


@pytest.mark.rule("5.114")
def test_a_restart_in_a_confirmation_changes_nothing() -> None:
    """Every step of the confirmation is on disk: the core is restored before each second."""
    market = CoinFlips((0, 1, 0, 0, 1))
    job_id, seen = market.order(0, 1), 0
    for _ in range(120):
        phase = market.job(job_id).phase
        if isinstance(phase, Decided):
            break
        seen += isinstance(phase, Running) and phase.is_repeat
        snapshot = market.core.snapshot()
        market.core.restore(snapshot)
        assert market.core.snapshot() == snapshot
        market.beat()
    assert verdict_of(market, job_id).outcome is Outcome.UNRESOLVED
    assert report_of(market.receipts[-1]).valid


@pytest.mark.rule("5.119")
def test_accounts_that_have_paid_nothing_strike_nobody(attack: Attack) -> None:
    """Two throwaway clients once barred an owner for 0.0008 USD."""
    market = Market(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    market.core.rules = replace(
        market.core.rules, limits=replace(DEVNET, strike_fees=MAINNET.strike_fees)
    )
    for nonce in range(1, 9):
        market.until_decided(market.order(nonce % 2, nonce))
    known = market.core.state.trust.get(next(iter(market.parties)))
    assert not market.core.state.faults and (known is None or not known.checked)
    attack(
        name="two throwaway clients with a program that frames an owner",
        before="the owner is barred for 7 days, for 0.0008 USD",
        now="no strike, and no bar at all",
        cost=f"{MAINNET.strike_fees / 1e6:.0f} USD of fees before one strike in 90 d",
    )
