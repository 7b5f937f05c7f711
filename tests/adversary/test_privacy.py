"""Attacks on what is private: runs, receipts, specs, uploads and outputs of others.

The table `RULES` has one entry for each route, so a route without a rule fails the test.
"""

import os
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import fields

from quorate_content.dag.cid import raw_cid
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source
from quorate_coordinator.api.handlers import OPERATIONS
from quorate_coordinator.core.model.accusations import Case
from quorate_coordinator.core.model.events import ChainCaseOpened
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_access import RunAccess
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.staging import named_by, owner_name
from quorate_node.status.node_gateway import Gateway
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Hash32
from quorate_runtime.http.coordinator_routes import Route
from support.http_server import on_loopback
from support.markets.readable_market import (
    ARCHIVED,
    ASSIGNED,
    CLIENT,
    EXECUTOR,
    FINAL,
    IN_COURT,
    INPUT,
    JUROR,
    LOG_LINE,
    NOBODY,
    OTHER_CLIENT,
    OTHER_EXECUTOR,
    PROVISIONAL,
    READERS,
    RUNNING,
    SECRET,
    STAGES,
    ReadableMarket,
    readable_market,
    staged,
)

Answer = tuple[int, str]
Rule = Callable[[str, str], Answer]
"""(reader, stage) -> expected status, and the code of a refusal ("" for none)."""
GOOD, ABSENT, TOKEN = (200, ""), (404, "unknown"), (401, "bad-signature")
FOREIGN, EARLY = (403, "not-yours"), (409, "too-early")
DECIDED = (PROVISIONAL, FINAL, IN_COURT, ARCHIVED)
OVER = (FINAL, IN_COURT, ARCHIVED)
CONTENT_ROUTE = "GET /v1/content/{cid}"
RUN_ROUTES = tuple(
    f"GET /v1/{name}"
    for name in ("runs/{job}", "receipts/{job}", "runs/{job}/events", "runs/{job}/logs")
)


def sees_evidence(reader: str, stage: str) -> bool:
    return (reader == EXECUTOR and stage in OVER) or (reader == JUROR and stage == IN_COURT)


def run_view(reader: str, stage: str) -> Answer:
    if reader == NOBODY:
        return TOKEN
    return GOOD if reader == CLIENT or sees_evidence(reader, stage) else ABSENT


def receipt(reader: str, stage: str) -> Answer:
    if reader == CLIENT and stage not in DECIDED:
        return EARLY
    if reader == EXECUTOR and stage in DECIDED:
        return GOOD
    return run_view(reader, stage)


def only_client(reader: str, stage: str) -> Answer:
    return GOOD if reader == CLIENT else TOKEN if reader == NOBODY else ABSENT


def with_token(reader: str, stage: str) -> Answer:
    return TOKEN if reader == NOBODY else GOOD


def own_account(reader: str, stage: str) -> Answer:
    return GOOD if reader == CLIENT else TOKEN if reader == NOBODY else FOREIGN


def anybody(reader: str, stage: str) -> Answer:
    return GOOD


RULES: dict[str, Rule | str] = {
    "GET /v1/openapi.json": anybody,
    "GET /": "offers by pool, and facts of the deployment",
    "GET /v1/info": "facts of the deployment",
    "GET /v1/observed": "the asking address",
    "GET /v1/health": "problems of the coordinator",
    "GET /v1/ready": "problems of the coordinator",
    "GET /v1/offers": anybody,
    "GET /v1/market/history": "sums over runs and classes",
    "POST /v1/plan": "answers from offers, and from images of the token's account alone",
    "POST /v1/sessions": "takes a signed message",
    "POST /v1/orders": "takes a signed message",
    "GET /v1/runs": with_token,  # the runs of the token's account
    "GET /v1/runs/{job}": run_view,
    "POST /v1/runs/{job}/stop": "takes a signed message",
    "POST /v1/runs/{job}/secrets": "for the client of a rental, see test_secret_relay",
    "POST /v1/runs/{job}/allowance": "takes what the token's account lets its rental cost",
    "GET /v1/runs/{job}/events": only_client,
    "GET /v1/runs/{job}/logs": only_client,
    "GET /v1/runs/{job}/stream": "for the client of a rental, see test_rental_streams",
    "GET /v1/streams/{ticket}": "for the provider that got the ticket, see test_rental_streams",
    "GET /v1/events": with_token,  # the events of the token's account
    "POST /v1/witnesses": "takes a signed message",
    "POST /v1/vouchers": "takes a signed message",
    "POST /v1/give-back": "frees money for the token's account alone",
    "GET /v1/receipts/{job}": receipt,
    "GET /v1/accounts/{address}": own_account,
    "GET /v1/providers/{address}": anybody,
    "GET /v1/reputation": anybody,
    "GET /v1/reputation/imported": anybody,
    "GET /v1/reputation/log": anybody,
    "GET /v1/cases": anybody,
    "PUT /v1/content": "answers the CID of the sent bytes, stored before or not",
    CONTENT_ROUTE: "asked below for each kind of content",
    "PUT /ipfs": "takes attestations of providers",
    "GET /ipfs/{cid}": "attestations of providers",
    "GET /v1/peers": "the connection of providers, by their keys",
    "GET /v1/operator": "for the operator's machine alone",
    "GET /metrics": "for the operator's machine alone",
}


def content_rule(kind: str, reader: str, stage: str) -> Answer:
    """What a reader gets of the run's ciphertext, input, spec, terms and receipt."""
    in_court = reader == JUROR and stage == IN_COURT
    is_accused = reader == EXECUTOR and stage == IN_COURT
    readers = {
        "ciphertext": reader == EXECUTOR and stage != ASSIGNED,
        "input": (reader == EXECUTOR and stage == ASSIGNED) or in_court or is_accused,
        "spec": (reader == EXECUTOR and stage == ASSIGNED) or in_court or is_accused,
        "terms": False,  # the client alone
        "receipt": in_court or is_accused,
    }
    is_client = reader == CLIENT and not (kind == "ciphertext" and stage not in DECIDED)
    return GOOD if is_client or readers[kind] else ABSENT


def name_of(item: Route[object]) -> str:
    return f"{item.method} {item.path}"


async def ask(
    session: aiohttp.ClientSession, url: str, headers: dict[str, str]
) -> tuple[Answer, str]:
    async with session.get(url, headers=headers) as response:
        text = (await response.read()).decode(errors="replace")
        if response.status == 200:
            return GOOD, text
        return (response.status, (await response.json())["code"]), text


def place(path: str, found: ReadableMarket) -> str:
    client = found.job.submission.order.message.client
    address = found.provider if "providers" in path else client
    return found.url + path.format(
        job="0x" + found.job.id.hex(), address="0x" + address.hex(), cid=found.contents["spec"]
    )


def secrets_of(found: ReadableMarket) -> tuple[str, ...]:
    return SECRET, INPUT.decode(), LOG_LINE, str(found.contents["spec"])


def test_each_route_has_a_rule_who_may_read_what() -> None:
    assert {name_of(item) for item in OPERATIONS} == set(RULES)


@pytest.mark.rule("4.60", "4.61", "4.62", "4.63", "5.95")
@pytest.mark.parametrize("stage", STAGES)
async def test_a_stranger_reads_no_run_spec_log_or_receipt(
    stage: str, tmp_path: Path, attack
) -> None:  # type: ignore[no-untyped-def]
    tried = leaked = 0
    async with readable_market(stage, tmp_path) as found, aiohttp.ClientSession() as session:
        for item in OPERATIONS:
            rule = RULES[name_of(item)]
            if isinstance(rule, str):
                continue
            for reader in READERS:
                answer, text = await ask(session, place(item.path, found), found.tokens[reader])
                assert answer == rule(reader, stage), (item.path, reader)
                if reader in (CLIENT, JUROR) or sees_evidence(reader, stage):
                    continue
                tried += 1
                leaked += any(secret in text for secret in secrets_of(found))
    assert leaked == 0 and tried >= 60
    if stage == ARCHIVED:
        attack(
            name="read another account's finished run by its job id",
            before="view, receipt with the environment, and spec, without a token",
            now=f"{leaked} of {tried} answers show any of it",
            cost="nothing",
        )


@pytest.mark.rule("3.72", "4.60", "4.61", "4.62", "4.64", "4.72")
@pytest.mark.parametrize("stage", STAGES)
async def test_content_goes_only_to_those_that_need_it(stage: str, tmp_path: Path) -> None:
    async with readable_market(stage, tmp_path) as found, aiohttp.ClientSession() as session:
        assert ("receipt" in found.contents) is (stage in DECIDED)
        for kind, cid in found.contents.items():
            for reader in READERS:
                url = f"{found.url}/v1/content/{cid}?format=raw"
                answer, _ = await ask(session, url, found.tokens[reader])
                assert answer == content_rule(kind, reader, stage), (kind, reader)


@pytest.mark.rule("4.63")
async def test_a_stranger_does_not_learn_whether_a_run_or_cid_exists(
    tmp_path: Path, attack
) -> None:  # type: ignore[no-untyped-def]
    """A wrong token, a strange account and no token get one answer for existing and unknown."""
    unknown_job, unknown_cid = Hash32(b"\x5a" * 32), raw_cid(b"never stored")
    told = asked = 0
    async with readable_market(FINAL, tmp_path) as found, aiohttp.ClientSession() as session:
        wrong = {"Authorization": found.tokens[OTHER_CLIENT]["Authorization"][:-2] + "1b"}
        asking = [found.tokens[reader] for reader in (NOBODY, OTHER_CLIENT, OTHER_EXECUTOR)]
        asking += [wrong, {"Authorization": "Quorate nonsense"}]
        for headers in asking:
            for route in RUN_ROUTES:
                path = route.removeprefix("GET ")
                names = ["0x" + job.hex() for job in (found.job.id, unknown_job)]
                first, second = [
                    (await ask(session, found.url + path.format(job=name), headers))
                    for name in names
                ]
                asked, short = asked + 1, [name[:14] for name in names]
                told += first[0] != second[0] or first[1].replace(*short) != second[1]
            for cid in found.contents.values():
                first, second = [
                    await ask(session, f"{found.url}/v1/content/{name}", headers)
                    for name in (cid, unknown_cid)
                ]
                asked += 1
                same = first[1].replace(str(cid), str(unknown_cid)) == second[1]
                told += first[0] != second[0] or not same
    assert told == 0 and asked == 45
    attack(
        name="learn whether a job id or a CID exists",
        before="each request told it",
        now=f"{told} of {asked} requests tell it",
        cost="nothing",
    )


@pytest.mark.rule("4.60")
@pytest.mark.parametrize("stage", [ASSIGNED, RUNNING, PROVISIONAL, FINAL, ARCHIVED])
async def test_a_public_run_is_open_once_it_is_final_and_not_before(
    stage: str, tmp_path: Path
) -> None:
    is_open = stage in OVER
    async with (
        readable_market(stage, tmp_path, public=True) as found,
        aiohttp.ClientSession() as session,
    ):
        for reader in (NOBODY, OTHER_CLIENT):
            for route in RUN_ROUTES:
                url = place(route.removeprefix("GET "), found)
                answer, _ = await ask(session, url, found.tokens[reader])
                assert (answer == GOOD) is is_open, (route, reader)
            for kind, cid in found.contents.items():
                url = f"{found.url}/v1/content/{cid}?format=raw"
                answer, _ = await ask(session, url, found.tokens[reader])
                assert (answer == GOOD) is (is_open and kind != "input"), (kind, reader)


@pytest.mark.rule("4.64")
async def test_a_client_cannot_read_an_upload_by_naming_its_cid(tmp_path: Path, attack) -> None:  # type: ignore[no-untyped-def]
    """It orders a job with the CID as input, and a provider of its own copies the input out."""
    found = staged(ASSIGNED)
    state, files = found.world.core.state, found.world.files
    uploads = ContentStore(tmp_path / "uploads", 64 << 20)
    access = RunAccess(state, RunReader(state, files), Outputs(state, files), (uploads,))
    victim, thief = found.world.clients[1].address, found.job.submission.order.message.client
    assert thief != victim and raw_cid(INPUT).digest in named_by(found.job)
    cid = (await uploads.put(INPUT, owner_name(victim))).cid
    readers = (thief, found.lease.provider)
    gained = [reader for reader in readers if await access.may_read(cid, reader)]
    attack(
        name="name another client's upload as an input",
        before="the whole upload, by its CID",
        now=f"{len(gained)} of {len(readers)} accounts of the attacker read it",
        cost="a job",
    )
    assert not gained and await access.may_read(cid, victim)
    await uploads.put(INPUT, owner_name(thief))
    assert all([await access.may_read(cid, reader) for reader in readers]), "it sent the bytes too"
    await uploads.close()


@pytest.mark.rule("4.65")
async def test_a_stranger_reads_no_input_or_output_from_a_provider(tmp_path: Path, attack) -> None:  # type: ignore[no-untyped-def]
    store = ContentStore(tmp_path / "store", 64 << 20)
    data = os.urandom(2 << 20)  # two leaves below a root
    private = [
        (await store.put(data, f"lease:{'ab' * 32}")).cid,
        raw_cid(data[: 1 << 20]),
        (await store.put(b"a ciphertext", f"sealed:{'ab' * 32}")).cid,
    ]
    known = (await store.put(b"the machine", "inventory")).cid
    gateway = Gateway(
        store, tmp_path, lambda: None, lambda on: None, lambda price: None, lambda *_: None
    )  # type: ignore[arg-type,return-value]
    url = await gateway.listen("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        answers = [
            (await ask(session, f"{url}/ipfs/{cid}?format={form}", {}))[0]
            for cid in private
            for form in ("raw", "car")
        ]
        assert (await ask(session, f"{url}/ipfs/{known}?format=raw", {}))[0] == GOOD
    attack(
        name="fetch another account's input from a provider's gateway",
        before="every input and image by its CID",
        now=f"{answers.count(GOOD)} of {len(answers)} requests answered",
        cost="nothing",
    )
    assert set(answers) == {ABSENT}
    await gateway.close()
    await store.close()


@pytest.mark.rule("4.66")
async def test_a_redirect_does_not_get_a_providers_token(tmp_path: Path, attack) -> None:  # type: ignore[no-untyped-def]
    seen: list[str] = []

    async def collect(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.Response(status=404)

    foreign, own = web.Application(), web.Application()
    foreign.router.add_get("/{path:.*}", collect, allow_head=True)
    store = ContentStore(tmp_path / "store", 64 << 20)
    async with on_loopback(foreign) as other:

        async def redirect(request: web.Request) -> web.Response:
            raise web.HTTPFound(f"{other}/ipfs/{request.match_info['cid']}")

        own.router.add_get("/v1/content/{cid}", redirect, allow_head=True)
        async with on_loopback(own) as url:
            token = (("Authorization", "Quorate secret"),)
            sources = Source(f"{url}/v1/content", token), Source(f"{other}/ipfs", name="job")
            with pytest.raises(Unavailable):
                await store.get(raw_cid(b"absent"), sources, 100, 5.0, "x")
    attack(
        name="have a provider send its token elsewhere",
        before="not tried",
        now=f"{sum(map(bool, seen))} of {len(seen)} requests at the other server had a token",
        cost="a coordinator that redirects",
    )
    assert seen and not any(seen)
    await store.close()


@pytest.mark.rule("4.62")
def test_an_accuser_reads_nothing_by_its_case(attack) -> None:  # type: ignore[no-untyped-def]
    """Otherwise a bond would buy the spec of a stranger's run. The core knows no accuser."""
    found = staged(IN_COURT)
    state, files = found.world.core.state, found.world.files
    access = RunAccess(state, RunReader(state, files), Outputs(state, files), ())
    read = []
    for account in (found.world.clients[1].address, *(found.others - found.executors)):
        try:
            read.append(access.share(found.job.id, account))
        except Refused as refused:
            assert refused.code is Code.UNKNOWN
    named = {item.name for kind in (Case, ChainCaseOpened) for item in fields(kind)}
    assert not read and "accused" in named and "accuser" not in named
    attack(
        name="open a case to read the run that it names",
        before="nothing was said",
        now=f"{len(read)} accounts read it, but jurors and accused",
        cost="the bond of a case",
    )


def test_the_coordinator_itself_reads_every_spec() -> None:
    """What is not protected: its state has all specs in plaintext, and so has its journal."""
    found = staged(RUNNING)
    spec = found.world.core.state.jobs[found.job.id].submission.spec
    assert any(item.value == SECRET for item in spec.env)
    assert SECRET.encode() in found.world.core.snapshot()


async def test_cases_and_offers_name_no_spec(tmp_path: Path) -> None:
    async with readable_market(IN_COURT, tmp_path) as found, aiohttp.ClientSession() as session:
        _, cases = await ask(session, f"{found.url}/v1/cases", {})
        _, offers = await ask(session, f"{found.url}/v1/offers", {})
    assert found.job.id.hex() in cases, "the chain shows it too"
    assert all(secret not in cases + offers for secret in secrets_of(found))
    assert all(str(cid) not in cases + offers for cid in found.contents.values())
    assert "cached" in offers, "prefixes of CIDs that a provider holds"
