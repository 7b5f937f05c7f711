"""Tests what a coordinator says of hosts whose results agreed, and what bounds it."""

import pytest

from quorate_coordinator.core.audit import siblings
from quorate_coordinator.core.model.entities import AgreedHosts
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.classes import Host
from quorate_protocol.messages.job_spec import Compare
from quorate_protocol.units import ZERO_HASH, Comparator, Outcome, Ppm, UnixSeconds
from quorate_protocol.values import replace
from support.markets.scripted_market import RULES, Market, Party
from support.offers import MACHINE

OTHER = replace(MACHINE, level="v2")


def decided(market: Market, nonce: int, outcome: Outcome = Outcome.ACCEPTED) -> None:
    job_id = market.order(0, nonce)
    market.until_decided(job_id, seconds=400)
    assert market.verdict(job_id).outcome is outcome


def market_of(*hosts: Host, lying: int = 0) -> Market:
    parties = [
        Party(number, lies=number < lying, tale=number + 1, host=host)
        for number, host in enumerate(hosts)
    ]
    return Market(*parties)


@pytest.mark.rule("2.42")
def test_a_plan_names_the_hosts_that_agreed_with_this_image_and_comparison() -> None:
    market = market_of(MACHINE, OTHER, MACHINE)
    spec = market.submission(0, 1).spec
    assert not market.plan(spec, 5_000_000).siblings
    for nonce in range(1, 7):
        decided(market, nonce)
    (found,) = market.plan(spec, 5_000_000).siblings
    assert {found.one, found.other} == {"x86_64-v2", "x86_64-v3"} and 0 < found.agreed <= 6
    loose = replace(spec, compare=Compare(Comparator.NUMERIC, tolerance_ppm=Ppm(100_000)))
    assert not market.plan(loose, 5_000_000).siblings, "they agreed to the bit"
    other = replace(spec, image=f"other@sha256:{'0' * 64}", image_bytes=0)
    assert not market.plan(other, 5_000_000).siblings
    restored = State()
    restored.restore(market.core.state.snapshot())
    assert dict(restored.siblings) == dict(market.core.state.siblings) != {}


@pytest.mark.rule("2.42")
@pytest.mark.parametrize("hosts", [(MACHINE,) * 3, (MACHINE, OTHER, MACHINE)])
def test_hosts_of_one_kind_and_results_that_differ_make_no_siblings(
    hosts: tuple[Host, ...],
) -> None:
    is_mixed = len(set(hosts)) > 1
    market = market_of(*hosts, lying=3 * is_mixed)
    decided(market, 1, Outcome.UNRESOLVED if is_mixed else Outcome.ACCEPTED)
    assert not market.core.state.siblings


def test_the_oldest_image_and_the_oldest_pair_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "ENTRIES_MAX", 3)
    market = market_of(*(replace(MACHINE, level=level) for level in ("v1", "v2", "v3")))
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    (key, (pair,)), job, state = *market.core.state.siblings.items(), market.job(job_id), State()
    group = [market.core.state.leases[digest] for digest in market.verdict(job_id).group]
    context = StepContext(state, RULES, UnixSeconds(market.at), ZERO_HASH)
    state.accepts.update(market.core.state.accepts)
    places = [hash_tuple("host", number) for number in range(siblings.PAIRS_MAX + 1)]
    others = tuple(AgreedHosts(places[0], place, 9) for place in places[1:])
    for number in range(3):
        state.siblings[hash_tuple("image", number)] = others
    for agreed in (1, 2):
        siblings.note(context, job, group)
        state.commit()
        assert len(state.siblings) == 3 and hash_tuple("image", 0) not in state.siblings
        assert state.siblings[key] == (replace(pair, agreed=agreed),)
    for known, kept in ((others, others[1:]), ((pair, *others[1:]), others[1:])):
        state.siblings[key] = known
        siblings.note(context, job, group)
        agreed = 1 + (pair in known)
        assert state.siblings[key] == (*kept, replace(pair, agreed=agreed))
