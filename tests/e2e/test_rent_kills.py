"""kill -9 in the middle of a rental: of its node, the coordinator and the gateway of a service.

With -s the tests print their figures.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import asyncssh
import pytest
import pytest_asyncio
from aiohttp import web

from quorate import Market
from quorate.base.exit_codes import ExitCode
from quorate.client.background_settlement import ENDED_PHASE
from quorate.client.money import rental_charges
from quorate.client.run import Run
from quorate.rentals.ssh_files import SshFiles
from quorate_node.executors.docker.docker_executor import PREFIX
from quorate_node.executors.docker.engine_connection import connect
from quorate_node.rentals.idle_watch import LOOK_SECONDS, unwatched_seconds
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.views import RunView
from quorate_protocol.rules.rentals import UNBOUNDED, charge_of
from quorate_protocol.units import Hash32
from quorate_runtime.http import byte_streams
from support.changing_folders import lease_groups, paths_below
from support.rentals.desk import Desk, opened_desk
from support.requirements import require

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]
PROVIDER, SERVED = "provider-0", "127.0.0.1:18126"
RENT = ("rent", "image.tar", "box", "--max-price", "9", "--memory", "1GB", "--yes")
SECRET = ("--secret", "TOKEN=env:GIVEN")
BACK_SECONDS, CLEAN_SECONDS = 40.0, 15.0
SERVICE = """
type: service
name: chat
image: image.tar
command: [python3, -m, http.server, "8000", --bind, 127.0.0.1]
resources: {cpu: 1, memory: 256MB}
max_price: "9"
max_duration: 1h
budget: "20"
service: {port: 8000, probe: /, replicas: {min: 1, max: 1}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    require("docker")
    os.environ["GIVEN"] = "a secret"
    async with opened_desk(image, tmp_path_factory.mktemp("kills")) as made:
        yield made
    folder = str(made.folder)
    assert not [line for line in _commands() if folder in line], "processes are left"


async def _until(look: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := await look()):
            await asyncio.sleep(0.2)
    return found


def _commands() -> list[str]:
    return [text.replace("\0", " ") for text in _texts(Path("/proc").glob("[0-9]*/cmdline"))]


def _texts(paths: Iterable[Path]) -> list[str]:
    found = []
    for path in paths:
        with suppress(OSError):  # it has gone
            found.append(path.read_text(errors="replace"))
    return found


def lease_of(desk: Desk) -> str:
    (lease,) = (desk.devnet.config.provider_home(0) / "docker").iterdir()
    return lease.name


def left(desk: Desk, lease: str) -> list[str]:
    """All of a lease on this machine: container, files, mounts, loop devices, groups, programs."""
    home, api = desk.devnet.config.provider_home(0), connect()
    try:
        held = api.containers(all=True, filters={"name": PREFIX + lease})
    finally:
        api.close()
    mounted = Path("/proc/self/mountinfo").read_text().splitlines()
    devices = _texts(Path("/sys/block").glob("loop*/loop/backing_file"))
    files = [str(path) for path in paths_below(home) if lease in path.name]
    lines = [*map(str, held), *mounted, *devices, *_commands()]
    return [*(line for line in lines if lease in line), *map(str, lease_groups(lease)), *files]


async def cleaned(desk: Desk, lease: str, seconds: float) -> float:
    """Returns after how many seconds nothing of the lease is left."""
    began = time.monotonic()
    while found := await asyncio.to_thread(left, desk, lease):
        assert time.monotonic() < began + seconds, found
        await asyncio.sleep(0.2)
    return round(time.monotonic() - began, 1)


async def said(made: dict[str, Any], desk: Desk, command: str) -> str:
    """What OpenSSH prints, as soon as it gets in again."""

    async def look() -> str:
        done = await asyncio.to_thread(
            subprocess.run,
            [*made["ssh"], command],
            capture_output=True,
            env=desk.environment(),
            check=False,
        )
        return done.stdout.decode()

    return str(await _until(look, BACK_SECONDS))


async def paid_to_provider(desk: Desk) -> int:
    account = desk.devnet.providers[0].hex()
    async with aiohttp.ClientSession() as session:
        url = f"{desk.devnet.coordinator_url}/v1/providers/0x{account}"
        view = await (await session.get(url)).json()
    return int(view["final"]) + int(view["held"])


async def charged_once(desk: Desk, market: Market, run: Run, before: int) -> RunView:
    """Returns the run, which is over: client and provider agree on one charge of its usage."""

    async def ended() -> RunView | None:
        view = await run.status()
        return view if view.phase == ENDED_PHASE else None

    view: RunView = await _until(ended, BACK_SECONDS)
    await market.settle_ended()
    entry, rental = market.entry(view.job_id), view.rental
    assert rental is not None
    fee = rental_charges.fee_of(entry)
    due = charge_of(rental.usage_ms, rental.price_per_hour, fee, UNBOUNDED)
    assert view.charged == due.total == (await market.account()).charged - desk.charged, view
    desk.charged += due.total
    assert await paid_to_provider(desk) - before == due.pay
    return view


@pytest.mark.rule("12.15")
async def test_a_rental_goes_on_after_kills_of_node_and_coordinator(desk: Desk) -> None:
    before = await paid_to_provider(desk)
    made = await desk.json(*RENT, "--for", "10m", *SECRET)
    lease, figures = lease_of(desk), {}
    await _forged(desk, Hash32(bytes.fromhex(made["jobId"][2:])))
    async with Market(desk.devnet.profiles[0]) as market:
        run = await market.run(made["jobId"])
        for part in (PROVIDER, "coordinator"):
            with _used(desk, made) as programs:
                assert "a secret" in await said(made, desk, "echo $TOKEN"), part
                async with asyncio.timeout(BACK_SECONDS):  # one that comes late finds the next node
                    for process in programs:
                        assert await asyncio.to_thread(_answer, process)
                desk.devnet.kill(part)
                began = time.monotonic()
                await desk.devnet.restart(part)
                assert "a secret" in await said(made, desk, "echo $TOKEN")
                figures[part] = round(time.monotonic() - began, 1)
                for process in programs:
                    assert await asyncio.to_thread(process.wait, 30), "its stream has ended"
        await run.stop()
        figures["clean_s"] = await cleaned(desk, lease, CLEAN_SECONDS)
        view = await charged_once(desk, market, run, before)
        at = {event.name: event.at async for event in run.events()}
    usage, ran = view.rental.usage_ms / 1000, at["stopped"] - at["started"]  # type: ignore[union-attr]
    # What the machine runs after the Stop counts as far as the Accept allows (12.6).
    assert ran - DEVNET.meter_every - 1 <= usage <= at["stopped"] - at["accepted"] + 1
    print(json.dumps(figures | {"usage_s": usage, "ran_s": ran, "charged": view.charged}))


@contextmanager
def _used(desk: Desk, made: dict[str, Any]) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """A command and a server of files are open. The program `sftp` itself, when its connection has
    ended, waits for its next command.
    """
    ssh, pipe = made["ssh"], subprocess.PIPE
    with ExitStack() as stack:
        words = ([*ssh, "cat"], [*ssh[:-1], "-s", ssh[-1], "sftp"])
        found = [
            subprocess.Popen(item, stdin=pipe, stdout=pipe, env=desk.environment())
            for item in words
        ]
        for process in found:
            stack.enter_context(process)
            stack.callback(process.kill)
        yield found


def _answer(program: "subprocess.Popen[bytes]") -> bytes:
    """To the first packet of a client of files, which `cat` returns."""
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write(b"\0\0\0\5\1\0\0\0\3")
    program.stdin.flush()
    return os.read(program.stdout.fileno(), 99)


@pytest.mark.rule("12.13", "12.40")
async def test_nothing_stays_of_a_rental_whose_node_does_not_come_back(desk: Desk) -> None:
    before = await paid_to_provider(desk)
    made = await desk.json(*RENT, "--for", "10m", *SECRET)
    lease = lease_of(desk)
    assert await said(made, desk, "nohup sleep 1000 >/dev/null 2>&1 & echo begun")
    await asyncio.sleep(LOOK_SECONDS + 1)  # until then it has the time of one that just started
    async with Market(desk.devnet.profiles[0]) as market:
        run = await market.run(made["jobId"])
        metered = (await run.status()).rental
        assert metered is not None
        desk.devnet.kill(PROVIDER)
        ran = (time.time() - metered.started_at + 1) * 1000
        try:
            seconds = await cleaned(desk, lease, unwatched_seconds(DEVNET) + CLEAN_SECONDS)
            view = await charged_once(desk, market, run, before)
        finally:
            await desk.devnet.restart(PROVIDER)  # for the next test
    assert view.rental is not None and metered.usage_ms <= view.rental.usage_ms <= ran
    assert not left(desk, lease)
    print(json.dumps({"gone_s": seconds, "charged": view.charged}))


async def test_a_killed_gateway_finds_its_machines_again(desk: Desk) -> None:
    before = await paid_to_provider(desk)
    (desk.folder / "chat.yaml").write_text(SERVICE)
    words = desk.words("serve", "chat.yaml", "--listen", SERVED, "--yes", "--json")
    with _served(desk, words) as first:
        names = [await _until(_replica, 60)]
        lease = lease_of(desk)
        first.kill()
        first.wait()
    began = time.monotonic()
    with _served(desk, words) as again:
        names.append(await _until(_replica, BACK_SECONDS))
        seconds = round(time.monotonic() - began, 1)
        async with Market(desk.devnet.profiles[0]) as market:
            (entry,) = market.open_rentals()
        again.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(again.wait, 30) == 0
    assert names == [entry.name] * 2, "no new rental is ordered"
    clean = await cleaned(desk, lease, CLEAN_SECONDS)
    async with Market(desk.devnet.profiles[0]) as market:
        await charged_once(desk, market, await market.run(entry.job_id), before)
    print(json.dumps({"adopted_s": seconds, "clean_s": clean}))


@contextmanager
def _served(desk: Desk, words: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(words, cwd=desk.folder, env=desk.environment()) as process:
        try:
            yield process
        finally:
            process.kill()


async def _replica() -> str:
    """The name of the one that is ready, if any."""
    try:
        async with aiohttp.ClientSession() as session:
            found = await (await session.get(f"http://{SERVED}/-/status")).json()
    except aiohttp.ClientError:
        return ""
    return "".join(item["name"] for item in found["replicas"] if item["state"] == "ready")


async def _forged(desk: Desk, job: Hash32) -> None:
    """A coordinator in between: it shows another host key, by a stream or by an offer."""
    config, files = desk.devnet.config, SshFiles(desk.devnet.config.client_home(0))
    settings = config.client_home(0) / "client.json"
    saved, pin = settings.read_text(), files.known_hosts(job)
    words = ("--home", str(config.client_home(0)), "--password-file", str(config.password_file))
    async with _in_between(desk) as url:
        settings.write_text(saved.replace(desk.devnet.coordinator_url, url))
        status = int(ExitCode.INVALID_EVIDENCE)
        told = await desk.quorate(*words, "shell", "box", "--", "true", status=status)
        assert "another SSH host key" in told, told
        pinned = pin.read_text()
        pin.unlink()
        told = await desk.quorate(*words, "shell", "box", "--", "true", status=status)
        assert "does not hold" in told and not pin.exists(), told
    pin.write_text(pinned)
    settings.write_text(saved)


@asynccontextmanager
async def _in_between(desk: Desk) -> AsyncIterator[str]:
    key = asyncssh.generate_private_key("ssh-ed25519")
    true = await _peer_key(desk)
    forged = key.public_data[-32:].hex()

    async def stream(request: web.Request) -> web.WebSocketResponse:
        ws, (ours, theirs) = web.WebSocketResponse(), socket.socketpair()
        await ws.prepare(request)
        ours.setblocking(False)

        async def serve() -> None:
            await asyncssh.run_server(ours, server_host_keys=[key], config=None)

        await asyncio.gather(serve(), byte_streams.bridge(ws, theirs), return_exceptions=True)
        return ws

    async def on(request: web.Request) -> web.Response:
        kept = {name: text for name, text in request.headers.items() if name != "Host"}
        async with session.request(
            request.method,
            desk.devnet.coordinator_url + request.raw_path,
            headers=kept,
            data=await request.read(),
        ) as answer:
            body = (await answer.read()).replace(true.encode(), forged.encode())
            return web.Response(body=body, status=answer.status, content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/runs/{job}/stream", stream)
    app.router.add_route("*", "/{path:.*}", on)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def _peer_key(desk: Desk) -> str:
    async with Market(desk.devnet.profiles[0]) as market:
        return (await market.offers())[0].offer.peer_key.hex()
