"""Tests streams between a client and its rental: relay and dialer, over real WebSockets."""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import asyncssh
import pytest
from aiohttp import web

from quorate.cli.openssh import WRONG_KEY
from quorate.rentals.ssh_files import Host, SshFiles
from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.handlers import add_handlers
from quorate_coordinator.api.relays import LOOK_SECONDS, Relays
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.core.archived_run import ArchivedRun, archived
from quorate_node.rentals.dialer import RENTAL_STREAMS_MAX, Serve, StreamDialer
from quorate_protocol.messages import frames
from quorate_protocol.refusals import MEANINGS, Code
from quorate_protocol.units import Address, Hash32, Seconds
from quorate_runtime.http import byte_streams
from quorate_runtime.http.coordinator_routes import Routes
from quorate_runtime.http.error_responses import failures, mark_started
from support.http_server import on_loopback
from support.markets.coordinator_stage import token
from support.markets.rented_market import Rentals
from support.markets.scripted_market import COORDINATOR, DOMAIN
from support.refusals import refuses
from support.virtual_clock import VirtualClock

WebSocket = aiohttp.ClientWebSocketResponse
Ran = tuple[int | None, bytes, str]
TESTS = Path(__file__).resolve().parents[2]
HOST_KEY = asyncssh.generate_private_key("ssh-ed25519")
USER_KEY = asyncssh.generate_private_key("ssh-ed25519")


class EchoServer(asyncssh.SSHServer):
    """Lets one key in. Stands for the SSH server of the node."""

    def __init__(self, allowed: asyncssh.SSHKey) -> None:
        self.allowed = allowed

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return bool(key.public_data == self.allowed.public_data)


async def echo(process: asyncssh.SSHServerProcess[bytes]) -> None:
    while data := await process.stdin.read(1 << 16):
        process.stdout.write(data)
        await process.stdout.drain()
    process.exit(3)


async def serve_ssh(
    sock: socket.socket, _lease: Hash32, allowed: asyncssh.SSHKey = USER_KEY
) -> None:
    connection = await asyncssh.run_server(
        sock,
        server_factory=partial(EchoServer, allowed),
        server_host_keys=[HOST_KEY],
        process_factory=echo,
        encoding=None,
    )
    await connection.wait_closed()


@dataclass
class Site:
    """A coordinator with one rental that runs, and its provider."""

    market: Rentals
    job_id: Hash32
    session: aiohttp.ClientSession
    serve: Serve
    url: str = ""
    dials: bool = True
    is_stopping: bool = False
    archived: dict[Hash32, ArchivedRun] = field(default_factory=dict)
    tickets: list[Hash32] = field(default_factory=list)
    _dialers: list[StreamDialer] = field(default_factory=list)

    @property
    def dialer(self) -> StreamDialer:
        if not self._dialers:
            urls = {COORDINATOR.address: self.url}
            self._dialers.append(StreamDialer(self.session, urls, self._is_live, self.serve))
        return self._dialers[0]

    async def request(self, _peer: Address, frame: bytes, _deadline: Seconds) -> bytes:
        """As `ports.Peers`: the provider gets a frame."""
        wanted = frames.decode(frame)
        assert isinstance(wanted, frames.StreamWanted)
        self.tickets.append(wanted.ticket)
        if self.dials:
            self.dialer.want(COORDINATOR.address, wanted)
        return frames.encode(frames.Ok())

    def connected(self) -> frozenset[Address]:
        return frozenset()

    async def close(self) -> None:
        return

    def _is_live(self, coordinator: Address, lease: Hash32) -> bool:
        leases = self.market.job(self.job_id).leases
        return coordinator == COORDINATOR.address and lease in leases

    def token(self, who: int) -> str:
        key, until = self.market.clients[who], self.market.at + 3600
        made = token(key.address, key, COORDINATOR.address, DOMAIN.chain_id, until)
        return made["Authorization"]

    async def open(self, who: int = 0, job_id: Hash32 | None = None) -> WebSocket:
        headers = {"Authorization": self.token(who)}
        path = Routes.STREAM.at(job=job_id or self.job_id)
        return await self.session.ws_connect(self.url + path, headers=headers, max_msg_size=0)

    async def dialed(self, ticket: Hash32) -> WebSocket:
        return await self.session.ws_connect(self.url + Routes.DIALED_STREAM.at(ticket=ticket))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[asyncssh.SSHClientConnection]:
        ours, theirs = socket.socketpair()
        ws = await self.open()
        bridged = asyncio.create_task(byte_streams.bridge(ws, theirs))
        async with asyncssh.connect(
            "rental",
            sock=ours,
            username="root",
            client_keys=[USER_KEY],
            known_hosts=([HOST_KEY.convert_to_public()], [], []),
            agent_path=None,
        ) as connection:
            yield connection
        await bridged


@asynccontextmanager
async def site(serve: Serve = serve_ssh) -> AsyncIterator[Site]:
    market = Rentals()
    clock = VirtualClock(float(market.at))
    rates = RequestRates(dataclasses.replace(DEVNET_BOUNDS, account_relays_max=3), clock.now)
    auth = Auth(market.core.rules, market.core.state, clock, rates)
    app = web.Application(middlewares=[failures])
    app.on_response_prepare.append(mark_started)
    async with aiohttp.ClientSession() as session:
        found = Site(market, market.start(), session, serve)
        relays = Relays(
            market.core.state, auth, found, lambda: found.is_stopping, found.archived.get
        )
        add_handlers(app, relays)
        async with on_loopback(app) as url:
            found.url = url
            running = asyncio.create_task(found.dialer.run())
            yield found
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@dataclass
class Ssh:
    """OpenSSH of a profile whose configuration names the site's rental as `quorate-box`."""

    site: Site
    files: SshFiles

    async def run(self, command: str, data: bytes = b"", program: str = "ssh") -> Ran:
        words = [program, "-F", str(self.files.config), "-o", "BatchMode=yes"]
        pipe = asyncio.subprocess.PIPE
        started = await asyncio.create_subprocess_exec(
            *words, "quorate-box", command, stdin=pipe, stdout=pipe, stderr=pipe
        )
        out, err = await started.communicate(data)
        return started.returncode, out, err.decode()


@asynccontextmanager
async def openssh(home: Path) -> AsyncIterator[Ssh]:
    """The SSH server lets the profile's key in, and no other."""
    files = SshFiles(home)
    allowed = asyncssh.import_public_key(files.public_key())
    async with site(partial(serve_ssh, allowed=allowed)) as found:
        client = found.market.clients[0].address
        tree = {"coordinator": found.url, "limits": "devnet"}
        (home / "client.json").write_text(json.dumps(tree))
        kept = {"token": found.token(0), "expires": time.time() + 3600, "for": client.hex()}
        (home / "token.json").write_text(json.dumps(kept))
        host = Host("box", found.job_id)
        files.pin(host, HOST_KEY.public_data[-32:])
        program = [sys.executable, "-m", "support.stream_program", "stream", "--home", str(home)]
        files.write_config([host], ["env", f"PYTHONPATH={TESTS}", *program])
        yield Ssh(found, files)


async def status_of(opening: Awaitable[WebSocket]) -> int:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await opening
    return caught.value.status


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.mark.rule("12.25")
async def test_ssh_flows_both_ways_and_ends_with_its_exit_status() -> None:
    data = os.urandom(3_000_000)
    async with site() as found, found.client() as connection:
        done = await connection.run("echo", input=data, encoding=None)
        assert (done.stdout, done.exit_status) == (data, 3)


@pytest.mark.rule("12.25")
async def test_only_the_client_of_a_rental_that_runs_gets_a_stream() -> None:
    async with site() as found:
        assert await status_of(found.open(who=1)) == 404
        assert await status_of(found.open(job_id=Hash32(bytes(32)))) == 404
        path = Routes.STREAM.at(job=found.job_id)
        assert await status_of(found.session.ws_connect(found.url + path)) == 401
        assert not found.tickets
        found.market.meter(found.job_id, 1, exit_status=0)
        assert await status_of(found.open()) == MEANINGS[Code.TOO_LATE].status


async def test_the_client_of_a_rental_that_was_retired_learns_why_it_ended(tmp_path: Path) -> None:
    async with openssh(tmp_path) as ssh:
        found, state = ssh.site, ssh.site.market.core.state
        found.market.meter(found.job_id, 1, exit_status=0)
        found.archived[found.job_id] = archived(state, state.jobs.pop(found.job_id))
        status, _, err = await ssh.run("echo")
        assert status == 255 and "the rental is over: exit 0" in err
        assert await status_of(found.open(who=1)) == 404


@pytest.mark.rule("12.25")
async def test_a_ticket_is_good_for_one_connection() -> None:
    async with site() as found:
        ws = await found.open()
        for ticket in (found.tickets[0], Hash32(os.urandom(32))):
            assert await status_of(found.dialed(ticket)) == 404
        await ws.close()
        found.dials = False
        waiting = asyncio.create_task(found.open())
        await until(lambda: len(found.tickets) == 2)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(LOOK_SECONDS + 0.2)
        assert await status_of(found.dialed(found.tickets[1])) == 404


async def test_a_client_opens_so_many_streams_and_no_more() -> None:
    async with site() as found:
        opened = [await found.open() for _ in range(3)]
        assert await status_of(found.open()) == 429
        await opened[0].close()
        await until(lambda: found.dialer.open_streams == 2)
        again = await found.open()
        await again.close()


@pytest.mark.rule("12.25")
async def test_a_stream_ends_when_a_side_goes_or_the_rental_ends() -> None:
    async with site() as found:
        ws = await found.open()
        await ws.receive()  # the server's version line
        await ws.close()
        await until(lambda: found.dialer.open_streams == 0)
        ws = await found.open()
        await ws.receive()
        found.market.meter(found.job_id, 1, exit_status=0)
        async with asyncio.timeout(20):
            while (await ws.receive()).type is aiohttp.WSMsgType.BINARY:
                pass
        await until(lambda: found.dialer.open_streams == 0)


async def test_a_reader_that_stops_makes_the_sender_wait() -> None:
    """Nothing between them buffers more than a few messages."""
    sent = 0

    async def flood(sock: socket.socket, _lease: Hash32) -> None:
        nonlocal sent
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        with sock, contextlib.suppress(OSError):
            while True:
                await loop.sock_sendall(sock, bytes(1 << 16))
                sent += 1 << 16

    async with site(flood) as found:
        ws = await found.open()
        stalled = -1
        while not sent or stalled != sent:
            stalled = sent
            await asyncio.sleep(0.5)
            assert sent < 32 << 20
        await ws.close()


async def test_a_provider_dials_only_for_rentals_that_run_and_within_a_bound() -> None:
    async with site() as found:
        lease = found.market.job(found.job_id).leases[0]
        wanted = frames.StreamWanted(Hash32(bytes(32)), Hash32(bytes(32)))
        with refuses(Code.UNKNOWN, "does not run here"):
            found.dialer.want(COORDINATOR.address, wanted)
        for number in range(RENTAL_STREAMS_MAX):
            ticket = Hash32(number.to_bytes(32, "big"))
            found.dialer.want(COORDINATOR.address, frames.StreamWanted(lease, ticket))
        with refuses(Code.BUSY, "too many streams"):
            found.dialer.want(COORDINATOR.address, frames.StreamWanted(lease, Hash32(bytes(32))))
        await until(lambda: found.dialer.open_streams == 0)  # the coordinator knows no such ticket


@pytest.mark.rule("12.25", "12.26")
async def test_openssh_itself_gets_through_and_gets_the_exit_status(tmp_path: Path) -> None:
    data = os.urandom(5_000_000)
    async with openssh(tmp_path) as ssh:
        status, out, err = await ssh.run("echo", data)
        assert (status, err) == (3, "") and out == data


@pytest.mark.rule("12.26")
async def test_openssh_refuses_a_machine_with_another_host_key(tmp_path: Path) -> None:
    async with openssh(tmp_path) as ssh:
        ssh.files.pin(Host("box", ssh.site.job_id), bytes(32))
        status, out, err = await ssh.run("echo")
        assert (status, out) == (255, b"") and WRONG_KEY in err.lower()


async def test_openssh_shows_why_there_is_no_stream(tmp_path: Path) -> None:
    async with openssh(tmp_path) as ssh:
        opened = [await ssh.site.open() for _ in range(3)]
        status, _, err = await ssh.run("echo")
        assert status == 255 and "quorate: " in err and "too many streams to rentals" in err
        for ws in opened:
            await ws.close()
        ssh.site.market.meter(ssh.site.job_id, 1, exit_status=0)
        assert "the rental is over: exit 0" in (await ssh.run("echo"))[2]
