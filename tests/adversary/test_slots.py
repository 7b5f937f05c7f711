"""Attacks by providers that take jobs and do not work on them."""

from dataclasses import dataclass, field

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model import market_index
from quorate_coordinator.core.model.entities import Decided, WorkWindow
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import BANDWIDTH_DEFAULT
from quorate_protocol.messages.signed import Accept, Assignment, Decline, LeaseProgress
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import quotes
from quorate_protocol.units import Address, DeclineReason, Hash32, Seconds, UnixSeconds
from quorate_protocol.values import replace
from support.markets.scripted_market import CPUS, DOMAIN, Market, Party
from support.offers import MACHINE


@dataclass
class Sitter(Party):
    """A provider that accepts every job and runs none."""

    taken: list[Hash32] = field(default_factory=list)


class SitterMarket(Market):
    """A market in which a sitter accepts, quoting `quoted` seconds for the fetch, and then waits.

    `works` makes it run its next jobs after all. A silent one names no lease in its heartbeats.
    """

    ran_ms = 0
    slots = 30
    quoted = 0
    works = False
    is_silent = False

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        if not isinstance(party, Sitter) or self.works:
            super()._run(party, assignment, spec)
            return
        hashed = digest(DOMAIN, assignment)
        times = Seconds(self.quoted), Seconds(1), Seconds(0)
        accept = Accept(hashed, MACHINE.digest(), *times, UnixSeconds(self.at))
        self.send(ev.AcceptReceived(seal(DOMAIN, accept, party.key.sign), party.key.address))
        party.taken.append(hashed)

    def progress(self, owner: Address) -> tuple[LeaseProgress, ...]:
        return () if self.is_silent else super().progress(owner)

    def give_up(self, party: Party, hashed: Hash32) -> None:
        """The provider gives up a job that it accepted."""
        no = Decline(hashed, DeclineReason.GAVE_UP, UnixSeconds(0), UnixSeconds(self.at))
        self.send(ev.DeclineReceived(seal(DOMAIN, no, party.key.sign), party.key.address))

    def held(self, party: Party) -> int:
        """Run slots that a provider holds now."""
        return len(self.core.state.leases_in_slots.get(party.owner) or ())

    def window(self, party: Party) -> int:
        """The most that it may hold."""
        return market_index.work_window(self.core.state, party.owner, CPUS.id())


@pytest.mark.rule("4.40")
def test_a_provider_that_sits_on_jobs_holds_one_at_a_time(attack) -> None:  # type: ignore[no-untyped-def]
    sitter = Sitter(0)
    market = SitterMarket(sitter)
    for number in range(100):
        market.order(0, number, accept_unverified=True)
    most = 0
    for _ in range(10):
        market.beat()
        most = max(most, market.held(sitter))
    assert most == len(sitter.taken) == 1
    attack(
        name="a provider accepts every job and sits on it",
        before="100 of 100 jobs, each held for a day",
        now=f"{most} of 100 jobs at a time, with 30 run slots on offer and staked",
        cost="stake of 30 slots; no pay",
    )


@pytest.mark.rule("4.40")
def test_commits_widen_the_window_and_silence_halves_it() -> None:
    sitter = Sitter(0)
    market = SitterMarket(sitter)
    market.works = True
    for number in range(6):
        market.until_decided(market.order(0, number, accept_unverified=True))
    assert market.window(sitter) == 7
    market.works, market.is_silent = False, True
    for number in range(10, 20):
        market.order(0, number, accept_unverified=True)
    market.beat()
    assert market.held(sitter) == 7 == len(sitter.taken)
    lapsed = list(sitter.taken)
    market.works = True
    for _ in range(4 * DEVNET.lease_silence):
        market.beat()
    assert all(isinstance(market.core.state.leases[it].phase, leases.Lapsed) for it in lapsed)
    # Each of seven paid jobs has one lapse and one commit of the same owner.
    assert market.window(sitter) < 7


@pytest.mark.rule("4.40")
def test_a_give_up_halves_the_window_once_its_job_is_paid() -> None:
    sitter, other = Sitter(0, lies=True), Party(1, is_deaf=True)
    market = SitterMarket(sitter, other)
    with market.core.state.transaction():
        market.core.state.work_windows[sitter.owner] = (WorkWindow(CPUS.id(), 8),)
    job_id = market.order(0, 1, accept_unverified=True)
    market.beat()
    market.give_up(sitter, sitter.taken[0])
    assert market.window(sitter) == 8, "the job may be at fault"
    other.is_deaf = False
    market.until_decided(job_id)
    assert market.window(sitter) == 4


@pytest.mark.rule("4.4")
def test_a_provider_cannot_quote_a_day_for_a_small_job(attack) -> None:  # type: ignore[no-untyped-def]
    sitter = Sitter(0)
    market = SitterMarket(sitter)
    job_id = market.order(0, 1, accept_unverified=True)
    spec = market.job(job_id).submission.spec
    most = quotes.fetch_seconds_max(spec, BANDWIDTH_DEFAULT)
    market.quoted = most + 1
    with pytest.raises(Refused, match=rf"quotedFetchSeconds is {most + 1}, at most {most}"):
        market.deliver()
    seconds = 0
    while market.held(sitter):
        market.beat()
        seconds += 1
    assert seconds == DEVNET.accept_within + 1 and market.window(sitter) == 1
    large = replace(spec, image_bytes=1 << 40)
    assert quotes.fetch_seconds_max(large, BANDWIDTH_DEFAULT) == spec.start_within
    attack(
        name="a provider quotes a day to fetch a small image",
        before="its run slot and the client's job, for a day",
        now=f"refused above {most} s; the job goes on after {seconds} s",
        cost="the job, and half of what it may hold",
    )


@pytest.mark.rule("4.47")
def test_a_provider_that_is_silent_about_a_lease_loses_it(attack) -> None:  # type: ignore[no-untyped-def]
    sitter, other = Sitter(0, lies=True), Party(1)  # a liar's price is the lowest
    market = SitterMarket(sitter, other)
    market.is_silent = True
    job_id = market.order(0, 1, accept_unverified=True)
    seconds = 0
    while not isinstance(market.job(job_id).phase, Decided):
        market.beat()
        seconds += 1
    lapsed = [item for item in market.core.state.events[job_id] if item.name == "lapsed"]
    assert "did not name it" in lapsed[-1].text
    assert len(sitter.taken) == 1 and seconds < DEVNET.lease_silence + 15
    attack(
        name="a provider accepts, and is silent about the lease",
        before="the job, until commitBy: up to 30 days",
        now=f"lost after {DEVNET.lease_silence} s [600 s on MAINNET]; another provider ran it",
        cost="half of what it may hold",
    )
