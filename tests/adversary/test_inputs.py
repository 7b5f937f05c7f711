"""Attacks by clients whose inputs nobody has: they hold run slots and cost them nothing."""

import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from quorate_content.dag.cid import raw_cid
from quorate_content.dag.content_limits import AbsentEverywhere
from quorate_content.store.content_store import ContentStore
from quorate_coordinator.api.input_search import InputSearch
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import MAINNET_BOUNDS
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Ended
from quorate_coordinator.storage.staging import owner_name
from quorate_node.core.phases import Fetching, Lapsed
from quorate_node.core.provider_core import ProviderCore
from quorate_node.effect_performer import ABSENT_TRIES, EffectPerformer
from quorate_node.market.content_sources import JobSources
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import Input, Resources
from quorate_protocol.messages.signed import Accept, Assignment, Decline
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    ZERO_HASH,
    Amount,
    BlockNumber,
    DeclineReason,
    Outcome,
    Seconds,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.http.coordinator_routes import Routes
from quorate_runtime.http.error_responses import Busy
from quorate_runtime.keys.crypto import KeySigner
from support.http_server import on_loopback
from support.markets.provider_world import Driver, make_spec, make_terms
from support.markets.scripted_market import COORDINATOR, DOMAIN, Market, Party
from support.markets.staged_market import gateway, stand
from support.messages import a_spec
from support.offers import MACHINE
from support.virtual_clock import VirtualClock

ABSENT = str(raw_cid(b"nobody has this"))
IMAGE = b"image"  # what every order of the scripted market names by its CID


def with_input(spec: job_spec.JobSpec, cid: str = ABSENT) -> job_spec.JobSpec:
    return replace(spec, inputs=(Input(cid, "/inputs/data", 1 << 20),))


@pytest.mark.rule("4.48")
async def test_an_order_whose_input_nobody_has_is_refused_with_its_cid(  # type: ignore[no-untyped-def]
    tmp_path: Path, attack
) -> None:
    async with (
        stand(tmp_path / "staging") as (market, staging),
        gateway(tmp_path / "origin", IMAGE) as (source,),
    ):
        client = market.clients[0].address
        await staging.uploads.put(b"uploaded", owner_name(client))
        search = InputSearch(staging, (), is_devnet=True)
        named = (source.url.removesuffix("/ipfs"),)
        uploaded = with_input(a_spec("uploaded"), str(raw_cid(b"uploaded")))
        assert await search.check(replace(uploaded, gateways=named), client)  # of its image
        begun = time.monotonic()
        with pytest.raises(Refused, match=f"order.inputs: {ABSENT} is neither") as caught:
            await search.check(replace(with_input(a_spec("absent")), gateways=named), client)
        seconds = time.monotonic() - begun
        assert caught.value.code is Code.NOT_STORED and seconds < 30
        with pytest.raises(Refused, match="order.image"):
            await search.check(a_spec("no gateway"), client)
        with pytest.raises(Refused, match="order.inputs"):  # what others uploaded is not told
            await search.check(replace(uploaded, gateways=named), market.clients[1].address)
        away = replace(a_spec("away"), gateways=("http://127.0.0.1:9",))
        assert await search.check(away, client)  # a source that is away may have it later
    attack(
        name="an order whose input nobody has",
        before="a run slot for 947 s, again and again",
        now="refused before the Ack, with the CID",
        cost="one order",
    )


@pytest.mark.rule("4.48")
async def test_an_order_whose_image_its_registry_does_not_have_is_refused(  # type: ignore[no-untyped-def]
    tmp_path: Path, attack
) -> None:
    there, absent, away = ("sha256:" + letter * 64 for letter in "abc")
    asked: list[str] = []

    async def manifest(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.match_info['digest']}")
        status = {there: 200, absent: 404, away: 503}[request.match_info["digest"]]
        return web.Response(status=status)

    app = web.Application()
    app.router.add_route("*", "/v2/tool/manifests/{digest}", manifest)
    async with stand(tmp_path / "staging") as (market, staging), on_loopback(app) as url:
        host = url.removeprefix("http://")
        search, client = InputSearch(staging, (), is_devnet=True), market.clients[0].address
        for digest in (there, there, away):
            await search.check(replace(a_spec("x"), image=f"{host}/tool@{digest}"), client)
        with pytest.raises(Refused, match=f"order.image: the registry {host} has no") as caught:
            await search.check(replace(a_spec("x"), image=f"{host}/tool@{absent}"), client)
        elsewhere = f"registry.invalid/tool@{absent}"
        await search.check(replace(a_spec("x"), image=elsewhere), client)  # not from a devnet
    assert caught.value.code is Code.NOT_STORED
    assert asked == [f"HEAD {digest}" for digest in (there, away, absent)]
    attack(
        name="an order whose image its registry does not have",
        before="a run slot until the fetch fails, again and again",
        now="refused before the Ack, with the registry's name",
        cost="one order",
    )


class NobodyHasIt:
    """A job runner whose sources all say that they do not have the input."""

    def __init__(self) -> None:
        self.tries = 0

    async def fetch(self, *_: object) -> None:
        self.tries += 1
        raise AbsentEverywhere("no source had it: coordinator: status 404")


@pytest.mark.rule("4.42")
async def test_a_provider_gives_up_in_seconds_when_no_source_has_an_input(attack) -> None:  # type: ignore[no-untyped-def]
    driver, clock, runner = Driver(ProviderCore(make_terms())), VirtualClock(), NobodyHasIt()
    lease = driver.assign(spec=replace(make_spec(), gateways=()))
    driver.advance(lease, Fetching)
    begun = clock.now()
    unused: Any = None
    job_runner: Any = runner
    performer = EffectPerformer(
        driver.core, unused, job_runner, {}, {}, unused, unused, unused, unused, clock
    )
    [due] = driver.core.resume()
    with pytest.raises(Refused, match="no source had it"):
        await performer.perform(due)
    assert runner.tries == ABSENT_TRIES and JobSources() is not None
    seconds = clock.now() - begun
    assert seconds < 5 and not isinstance(driver.execution(lease).phase, Lapsed)
    attack(
        name="an input that no source has, with a coordinator that did not look",
        before="a run slot until commitBy",
        now=f"a run slot for {seconds:g} s",
        cost="one order",
    )


async def test_content_that_every_source_lacks_is_named_so(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store", 1 << 24)
    async with gateway(tmp_path / "origin", IMAGE) as sources:
        with pytest.raises(AbsentEverywhere):
            await store.get(raw_cid(b"nobody has this"), sources, 1 << 20, 60.0, "a")
    await store.close()


class UnfetchedMarket(Market):
    """A market of providers that cannot fetch what the first client's jobs name."""

    ran_ms = 0
    slots = 8
    most = 0  # of the first client's executions at once

    def send(self, event: ev.Event) -> object:
        reply = super().send(event)
        running = [item for item in self.core.state.leases.values() if item.occupies_slot]
        mine = [item for item in running if self.job(item.job_id).submission.spec.inputs]
        self.most = max(self.most, len(mine))
        return reply

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        if not spec.inputs:
            super()._run(party, assignment, spec)
            return
        hashed, at = digest(DOMAIN, assignment), UnixSeconds(self.at)
        accept = Accept(hashed, MACHINE.digest(), Seconds(0), Seconds(1), Seconds(0), at)
        self.send(ev.AcceptReceived(seal(DOMAIN, accept, party.key.sign), party.key.address))
        no = Decline(hashed, DeclineReason.INPUT_UNAVAILABLE, UnixSeconds(0), at)
        self.send(ev.DeclineReceived(seal(DOMAIN, no, party.key.sign), party.key.address))


@pytest.mark.rule("4.46")
def test_a_client_whose_inputs_nobody_has_gets_one_execution_at_a_time(attack) -> None:  # type: ignore[no-untyped-def]
    market = UnfetchedMarket(*[Party(number) for number in range(8)])
    inputs = (Input(ABSENT, "/inputs/data", 1 << 20),)
    for number in range(40):
        market.order(0, number, inputs=inputs)
    for _ in range(8):
        market.beat()
    greedy = market.clients[0].address
    assert market.core.state.client_windows[greedy] == 1
    before, market.most = market.most, 0
    for _ in range(20):
        market.beat()
    assert market.most == 1 < before
    honest = market.order(1, 1)
    market.until_decided(honest)
    fixed = market.order(0, 100)
    market.until_decided(fixed)
    assert market.core.state.client_windows[greedy] > 1, "its commits widen it again"
    attack(
        name="40 jobs whose inputs nobody has, from a gateway that answers the coordinator",
        before="every run slot of the class",
        now=f"{market.most} execution at a time, after {before}",
        cost="one account",
    )


class TakenAway(UnfetchedMarket):
    """A market in which a source is gone once one provider has read it."""

    has_run = False

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        if self.has_run:
            super()._run(party, assignment, spec)
        else:
            self.has_run = True
            Market._run(self, party, assignment, spec)


@pytest.mark.rule("4.86", "5.110")
def test_a_client_that_takes_its_source_away_pays_the_first_execution(attack) -> None:  # type: ignore[no-untyped-def]
    market = TakenAway(*[Party(number) for number in range(4)])
    inputs = (Input(ABSENT, "/inputs/data", 1 << 20, "https://a.example/data"),)
    with pytest.raises(Refused, match="order.acceptUnverified") as caught:
        market.order(0, 1, inputs=inputs)
    assert caught.value.code is Code.UNSUPPORTED and not market.core.state.jobs
    TakenAway.ran_ms = 5_000
    job_id = market.order(0, 2, inputs=inputs, accept_unverified=True)
    market.until_decided(job_id, seconds=60)
    verdict, charged = market.verdict(job_id), market.client().charged
    assert verdict.outcome is Outcome.CANNOT_VERIFY and charged > 0
    attack(
        name="a client that takes its source away after the first execution",
        before="the audit fund pays it",
        now="the client pays it",
        cost=f"{charged / 10**6:.6f} USD",
    )


def test_a_client_is_told_that_its_source_may_have_changed() -> None:
    market = UnfetchedMarket(*[Party(number) for number in range(4)])
    inputs = (Input(ABSENT, "/inputs/data", 1 << 20, "https://a.example/data"),)
    job_id = market.order(0, 1, inputs=inputs, accept_unverified=True)
    for _ in range(8):
        market.beat()
    phase = market.job(job_id).phase
    assert isinstance(phase, Ended) and "has changed: order again" in phase.reason


class Selective(UnfetchedMarket):
    """A source that serves all but two owners."""

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        if party.number in (0, 1):
            super()._run(party, assignment, spec)
        else:
            Market._run(self, party, assignment, spec)


@pytest.mark.rule("4.87")
@pytest.mark.parametrize("source", ["", "https://a.example/data"])
def test_a_source_that_shuns_owners_costs_them_nothing(source: str, attack) -> None:  # type: ignore[no-untyped-def]
    market = Selective(*[Party(number) for number in range(6)])
    inputs = (Input(ABSENT, "/inputs/data", 1 << 20, source),)
    for number in range(12):
        job_id = market.order(0, number, inputs=inputs, accept_unverified=True)
        market.until_decided(job_id, seconds=60)
    shunned = [owner for owner, item in market.parties.items() if item.number in (0, 1)]
    trusts = [market.core.state.trust.get(owner) for owner in shunned]
    assert any(found.answers for found in trusts if found is not None) is not bool(source)
    if source:
        attack(
            name="a client whose source serves all owners but two",
            before="2.5 % of rank for each job that they could not fetch",
            now="nothing",
            cost="the jobs",
        )


@pytest.mark.rule("4.83")
async def test_the_coordinator_looks_for_nothing_that_comes_from_a_source(tmp_path: Path) -> None:
    async with stand(tmp_path / "staging") as (market, staging):
        client = market.clients[0].address
        await staging.uploads.put(b"image", owner_name(client))
        spec = replace(a_spec("x"), image=str(raw_cid(b"image")), image_bytes=5)
        search = InputSearch(staging, (), is_devnet=True)
        found = Input(ABSENT, "/inputs/data", 1 << 40, "https://a.example/data")
        assert not await search.check(replace(spec, inputs=(found,)), client)
        folder = replace(found, source="https://a.example/folder/")
        with pytest.raises(Refused, match="order.inputs"):
            await search.check(replace(spec, inputs=(folder,)), client)


ACCOUNTS = 10


class ManyClients(UnfetchedMarket):
    """The same market with ten further accounts, which all belong to one client."""

    def __init__(self, *parties: Party) -> None:
        super().__init__(*parties)
        self.clients += [KeySigner(bytes([130 + number]) * 32) for number in range(ACCOUNTS)]
        self.sessions += [KeySigner(bytes([150 + number]) * 32) for number in range(ACCOUNTS)]
        notes = tuple(
            ev.ChainTabChanged(client.address, COORDINATOR.address, Amount(50_000_000), Amount(0))
            for client in self.clients[2:]
        )
        block = BlockNumber(self.core.state.own.block + 1)
        self.send(ev.ChainAdvanced(block, ZERO_HASH, UnixSeconds(self.at), notes))


@pytest.mark.rule("4.46", "4.51")
def test_ten_accounts_get_ten_executions_at_once_and_lock_ten_deposits(attack) -> None:  # type: ignore[no-untyped-def]
    """Each account has a window of its own. What the attack holds is bounded by accounts, and each
    must have money for its orders.
    """
    market = ManyClients(*[Party(number) for number in range(8)])
    inputs = (Input(ABSENT, "/inputs/data", 1 << 20),)
    for who in range(2, 2 + ACCOUNTS):
        for number in range(2):
            market.order(who, number, inputs=inputs)
    clients = market.core.state.clients
    locked = sum(clients[item.address].reserved for item in market.clients[2:])
    for _ in range(5):
        market.beat()
    market.most = 0
    for _ in range(10):
        market.beat()
    slots = market.slots * len(market.parties)
    assert 0 < market.most <= ACCOUNTS < slots
    started = market.at
    market.until_decided(market.order(1, 1))
    seconds = market.at - started
    assert seconds < 20 and all(not clients[item.address].charged for item in market.clients[2:])
    attack(
        name=f"the same from {ACCOUNTS} accounts, 2 jobs each",
        before="every run slot of the class",
        now=f"{market.most} of {slots} run slots at a time; an honest job took {seconds} s",
        cost=f"{ACCOUNTS} deposits, {locked / 10**6:.2f} USD of them locked until the jobs end; "
        "no pay",
    )


@pytest.mark.rule("3.43")
def test_a_job_is_matched_only_where_its_disk_fits() -> None:
    market = Market(*[Party(number) for number in range(3)])
    for field_name in ("scratch_bytes", "output_bytes"):
        too_large = replace(Resources(), **{field_name: (1 << 40) + 1})  # type: ignore[arg-type]
        with pytest.raises(Refused, match="TB for") as caught:
            market.order(0, 1, resources=too_large)
        assert caught.value.code is Code.NO_OFFER
    inputs = (Input(ABSENT, "/inputs/data", 1 << 40),)
    with pytest.raises(Refused, match="TB for image and inputs"):
        market.order(0, 1, inputs=inputs)
    market.until_decided(market.order(0, 1))


def test_a_plan_costs_a_stranger_ten_requests(attack) -> None:  # type: ignore[no-untyped-def]
    rates = RequestRates(MAINNET_BOUNDS, lambda: 0.0)
    plans = 0
    with pytest.raises(Busy):
        while plans < 10_000:
            rates.count_address("192.0.2.1")
            rates.count_address("192.0.2.1", Routes.PLAN.tokens - 1)
            plans += 1
    assert plans == MAINNET_BOUNDS.address_burst // Routes.PLAN.tokens
    a_second = MAINNET_BOUNDS.address_per_second / Routes.PLAN.tokens
    attack(
        name="a stranger asks for plans as fast as it can",
        before="a search of all classes and providers each, 1,000 at once",
        now=f"{plans} at once, then {a_second:g} a second, "
        "each of 256 classes and 4,096 providers at most",
        cost="one address for each",
    )
