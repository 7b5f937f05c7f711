"""Secrets of a rental at its provider: opened from the client's box, in memory, for its job."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import docker
import pytest
from aiohttp import web

from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.store.content_store import ContentStore
from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.executors.base import mounts
from quorate_node.executors.docker.docker_executor import PREFIX
from quorate_node.executors.job_runner import JobRunner
from quorate_node.market.content_sources import JobSources
from quorate_node.rentals.secrets import SecretStore, take
from quorate_protocol.messages.frames import SecretsSent
from quorate_protocol.messages.job_spec import Input, JobSpec
from quorate_protocol.messages.ports import RegistryLogin
from quorate_protocol.messages.rental_secrets import (
    BOX_BYTES_MAX,
    RentalSecrets,
    SecretFile,
    SecretVariable,
    validate,
)
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, JobKind
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import BoxKey
from support.executors.executor_cases import ending, make_executor, new_lease, python_task
from support.executors.image_fetching import executing, small_archive
from support.executors.registries import served, serving
from support.http_server import on_loopback
from support.markets.provider_world import COORDINATOR, Driver, make_spec, make_terms
from support.refusals import refuses
from support.requirements import require

CLIENT, PROVIDER, OTHER = (BoxKey(bytes([number]) * 32) for number in (1, 2, 3))
TOKEN, PASSWORD = "hf_VerySecretToken", "VerySecretPassword"
SECRETS = RentalSecrets(
    files=(SecretFile("key.pem", b"VerySecretKey\n"),),
    variables=(SecretVariable("API_KEY", "it's VerySecret"),),
    registry=RegistryLogin("127.0.0.1", "someone", PASSWORD),
    hub_token=TOKEN,
    hub="http://127.0.0.1",
)


def sealed(secrets: RentalSecrets = SECRETS, by: BoxKey = CLIENT) -> bytes:
    return by.seal(PROVIDER.public, secrets.encode())


@asynccontextmanager
async def storing(folder: Path) -> AsyncIterator[SecretStore]:
    store = SecretStore(folder / "secrets", PROVIDER)
    try:
        yield store
    finally:
        for lease in store.leases():
            store.remove(lease)
        assert not store.leases()


@pytest.mark.docker
@pytest.mark.rule("12.36")
async def test_the_job_alone_reads_them_and_only_while_it_runs(
    image: Path, tmp_path: Path, engine: docker.APIClient
) -> None:
    require("mounts")
    code = """
import json, os, subprocess
found = {}
for name in sorted(os.listdir("/run/secrets")):
    path = f"/run/secrets/{name}"
    found[name] = [open(path).read(), oct(os.stat(path).st_mode & 0o7777), os.stat(path).st_uid]
for work in ("open('/run/secrets/new', 'w')", "os.unlink('/run/secrets/env')",
        "os.chmod('/run/secrets/env', 0o777)", "open('/run/secrets/../secrets/document')"):
    try:
        eval(work)
        found[work] = "done"
    except OSError as error:
        found[work] = type(error).__name__
found["environ"] = dict(os.environ)
found["mounts"] = [x.split()[3:5] for x in open("/proc/self/mountinfo") if "/run/secrets" in x]
print(json.dumps(found))
"""
    lease = new_lease()
    async with storing(tmp_path) as store:
        store.put(lease, CLIENT.public, sealed())
        store.put(lease, CLIENT.public, sealed(replace(SECRETS, files=())))  # the first one counts
        task = replace(python_task(image, code), lease_id=lease, secrets=store.files(lease))
        kind = "docker-runc"
        async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
            await executor.start(task)
            assert (await executor.wait(lease)).status == 0
            pieces = [piece.text async for piece in executor.logs(lease, follow=True)]
            config = json.dumps(engine.inspect_container(PREFIX + lease))
            restarted = SecretStore(store.folder, PROVIDER)
            assert restarted.env_of(lease) == {"API_KEY": "it's VerySecret"}
            owners = {os.stat(path).st_uid for path in store.files(lease).iterdir()}
            assert os.stat(store.files(lease)).st_mode & 0o777 == 0o500
            assert mounts.is_mounted(tmp_path / "secrets" / lease)
        found = json.loads(b"".join(pieces))
        with pytest.raises(Unavailable, match="has sent no secrets yet"):
            store.get("other")
        assert store.env_of("other") == {}
        store.remove(lease)
        store.remove(lease)
        assert not (tmp_path / "secrets" / lease).exists()
    assert found["key.pem"] == ["VerySecretKey\n", "0o400", 65534]
    quoted = "export API_KEY='it'\"'\"'s VerySecret'\n"
    assert found["env"] == [quoted, "0o400", 65534]
    tried = [found[name] for name in found if "(" in name]
    assert tried[:3] == ["OSError"] * 3 and tried[3] == "FileNotFoundError"
    assert not [word for word in map(str, found["environ"].values()) if "Secret" in word]
    assert found["mounts"] == [["/open", "/run/secrets"]], "no folder of the owner is named"
    assert "VerySecret" not in config and len(owners) == 1 and 0 not in owners


@pytest.mark.rule("12.33")
def test_a_box_of_anybody_else_is_refused(tmp_path: Path) -> None:
    store = SecretStore(tmp_path / "secrets", PROVIDER)
    wrong = RentalSecrets(variables=(SecretVariable("LD_PRELOAD", "/run/secrets/evil.so"),))
    for box, code in (
        (sealed(by=OTHER), Code.DOES_NOT_OPEN),  # a coordinator's own
        (CLIENT.seal(OTHER.public, SECRETS.encode()), Code.DOES_NOT_OPEN),  # for another provider
        (sealed()[:-1] + b"x", Code.DOES_NOT_OPEN),
        (b"", Code.DOES_NOT_OPEN),
        (CLIENT.seal(PROVIDER.public, b"{}VerySecret"), Code.MALFORMED),
        (sealed(wrong), Code.MALFORMED),
        (bytes(BOX_BYTES_MAX + 1), Code.OVERSIZE),
    ):
        with pytest.raises(Refused) as refused:
            store.put("lease", CLIENT.public, box)
        assert refused.value.code is code and "VerySecret" not in str(refused.value)
    assert not store.folder.exists(), "nothing was kept"


@pytest.mark.parametrize(
    "bad",
    [
        {"files": (SecretFile("../x", b""),)},
        {"files": (SecretFile("env", b""),)},
        {"files": (SecretFile("b", b""), SecretFile("a", b""))},
        {"variables": (SecretVariable("A B", ""),)},
        {"variables": (SecretVariable("QUORATE_X", ""),)},
        {"variables": (SecretVariable("A", "\0"),)},
        {"registry": RegistryLogin("https://ghcr.io", "a", "b")},
        {"registry": RegistryLogin("ghcr.io", "a:b", "c")},
        {"registry": RegistryLogin("ghcr.io", "a", "b\r\nX: y")},
        {"hub_token": "a\nb", "hub": "https://huggingface.co"},
        {"hub": "file:///etc"},
    ],
)
def test_secrets_that_no_provider_takes_name_their_field(bad: dict[str, object]) -> None:
    with pytest.raises(Refused, match=rf"secrets\.{'hub' if 'hub' in bad else next(iter(bad))}"):
        validate(replace(RentalSecrets(), **bad))  # type: ignore[arg-type]
    assert "b" not in repr(RegistryLogin("h", "u", "b")).removeprefix("RegistryLogin")


def sealed_spec(**changes: object) -> JobSpec:
    spec = replace(make_spec("machine", 3_600), kind=JobKind.DEV_ENVIRONMENT)
    return replace(spec, seal_key=CLIENT.public, **changes)  # type: ignore[arg-type]


async def test_only_a_rental_that_waits_takes_them(tmp_path: Path) -> None:
    require("mounts")
    terms = make_terms(2)
    kinds = (JobKind.TASK, JobKind.DEV_ENVIRONMENT)
    driver = Driver(ProviderCore(replace(terms, policy=replace(terms.policy, kinds=kinds))))
    lease = driver.assign(1, sealed_spec())
    plain = driver.assign(2, replace(sealed_spec(), seal_key=bytes(32)))
    async with storing(tmp_path) as store:

        def give(coordinator: Address = COORDINATOR, to: bytes = lease) -> None:
            take(store, driver.core.executions, coordinator, SecretsSent(to, sealed()))  # type: ignore[arg-type]

        for wrong in (
            (Address(b"\x07" * 20), lease),
            (COORDINATOR, plain),
            (COORDINATOR, CLIENT.public),
        ):
            with refuses(Code.UNKNOWN, "no rental here waits"):
                give(*wrong)
        give()
        driver.do(events.AcceptDelivered(lease))
        give()
        assert store.get(lease.hex()) == SECRETS
        driver.do(events.StopReceived(lease, None, COORDINATOR))  # type: ignore[arg-type]
        with refuses(Code.TOO_LATE, "is over"):
            give()


@pytest.mark.docker
@pytest.mark.rule("12.35", "12.36")
async def test_a_login_and_a_token_reach_their_own_servers_alone(
    tmp_path: Path, engine: docker.APIClient, socket_enabled: None
) -> None:
    """And the fetch waits until the secrets have come."""
    require("mounts")
    basic = "Basic " + base64.b64encode(f"someone:{PASSWORD}".encode()).decode()
    seen: list[tuple[str, str, str]] = []

    def note(request: web.Request) -> str:
        said = request.headers.get("Authorization", "")
        seen.append((request.host, request.path.split("/")[1], said))
        return said

    async def guard(request: web.Request, body: bytes) -> web.StreamResponse | None:
        said = note(request)
        if request.path == "/token":
            return web.json_response({"token": "t" if said == basic else ""})
        if said == "Bearer t":
            return None
        challenge = f'Bearer realm="http://{request.host}/token",service="x"'
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})

    async def redirect(request: web.Request) -> web.Response:
        note(request)
        raise web.HTTPFound(f"{cdn}{request.path}")

    async def content(request: web.Request) -> web.Response:
        note(request)
        return web.Response(body=b"weights")

    hub_app, cdn_app = web.Application(), web.Application()
    hub_app.router.add_get("/{tail:.*}", redirect)
    cdn_app.router.add_get("/{tail:.*}", content)
    (tmp_path / "weights").write_bytes(b"weights")
    private = served(small_archive(tmp_path))
    clock, lease = SystemClock(), new_lease()
    async with (
        on_loopback(hub_app) as hub,
        on_loopback(cdn_app) as cdn,
        serving(private, guard) as (name, _),
        executing(tmp_path) as executor,
        storing(tmp_path) as secrets,
    ):
        store = ContentStore(tmp_path / "store", 1 << 30)
        runner = JobRunner(executor, store, tmp_path, clock, {}, secrets=secrets)
        login = RegistryLogin(name.partition("/")[0], "someone", PASSWORD)
        given = replace(SECRETS, registry=login, hub=hub)
        cid = str(cid_of_path(tmp_path / "weights"))
        inputs = (Input(cid, "/inputs/weights", 7, f"{hub}/m/w"),)
        spec = sealed_spec(image=name, image_bytes=0, inputs=inputs)
        before = clock.now()
        fetching = asyncio.create_task(
            runner.fetch(lease, spec, JobSources(may_be_private=True), 60.0)
        )
        await asyncio.sleep(0.7)
        assert not fetching.done() and not seen, "nothing is asked before"
        secrets.put(lease, CLIENT.public, sealed(given))
        await fetching
        assert clock.now() - before < 20
        with pytest.raises(Unavailable, match="no secrets yet"):
            await runner.fetch(new_lease(), spec, JobSources(may_be_private=True), 0.5)
        assert await runner.pinned()
        await runner.remove(lease)
        assert not secrets.leases()
        await store.close()
    of = {kind: {item[2] for item in seen if kind in item[1:2]} for _, kind, _ in seen}
    assert of["token"] == {basic} and basic not in of["v2"] and "Bearer t" in of["v2"]
    at_hub = {item[2] for item in seen if item[0] in hub}
    at_cdn = {item[2] for item in seen if item[0] in cdn}
    assert at_hub == {f"Bearer {TOKEN}"} and at_cdn == {""}
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    for word in (TOKEN, PASSWORD, "VerySecretKey"):
        assert not [path for path in kept if word.encode() in path.read_bytes()], word
