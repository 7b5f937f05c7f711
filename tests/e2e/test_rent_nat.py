"""A machine is rented whose provider is behind a NAT: it dials out, and nothing can dial it."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from quorate_devnet.market.child_processes import ChildProcess
from quorate_devnet.market.devnet import READY_SECONDS, Devnet
from quorate_node.base import settings as provider_settings
from quorate_protocol.values import replace
from support.rentals.desk import Desk, forwarded, opened_desk
from support.rentals.nat_network import NatNetwork
from support.requirements import require

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]
PROVIDER = "provider-0"
COPIED_BYTES, LOCAL_PORT, OPEN_PORT = 16 << 20, 18_125, 7000
LISTENER = f"""
import socket
server = socket.create_server(("0.0.0.0", {OPEN_PORT}))
print("up", flush=True)
while True:
    server.accept()[0].sendall(b"home")
"""
CALL = "import socket, sys; print(socket.create_connection((sys.argv[1], {}), {}).recv(9))"
NOBODY_SECONDS, BUSY_SECONDS = 3.0, 60.0  # where nobody may answer, and where somebody must


@dataclass
class Forwarder:
    """Carries what the provider dials at `gateway` to the same port of loopback. `callers` are the
    addresses from which it was dialled.
    """

    gateway: str
    callers: set[str] = field(default_factory=set)
    carried: int = 0

    def url(self, url: str) -> str:
        return f"http://{self.gateway}:{urlsplit(url).port}"

    async def carry(self, stack: contextlib.AsyncExitStack, url: str) -> None:
        port = urlsplit(url).port

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.callers.add(writer.get_extra_info("peername")[0])
            back, on = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(self._copy(reader, on), self._copy(back, writer))

        server = await asyncio.start_server(connected, self.gateway, port)
        stack.callback(server.close)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # one of both has gone
            while data := await source.read(1 << 16):
                self.carried += len(data)
                target.write(data)
                await target.drain()
        target.close()


@dataclass
class Home:
    """The provider at home, and the client outside."""

    desk: Desk
    nat: NatNetwork
    forwarder: Forwarder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home(image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Home]:
    for needed in ("docker", "nat"):
        require(needed)
    with NatNetwork() as nat:
        async with (
            opened_desk(image, tmp_path_factory.mktemp("nat")) as desk,
            contextlib.AsyncExitStack() as stack,
        ):
            forwarder = Forwarder(nat.gateway)
            for url in (desk.devnet.coordinator_url, desk.devnet.chain_url):
                await forwarder.carry(stack, url)
            await _move(desk.devnet, nat, forwarder)
            yield Home(desk, nat, forwarder)


async def _move(devnet: Devnet, nat: NatNetwork, forwarder: Forwarder) -> None:
    """The provider starts again behind the router, where it knows the gateway alone."""
    folder, child = devnet.config.provider_home(0), devnet.processes.children[PROVIDER]
    devnet.kill(PROVIDER)
    urls = forwarder.url(devnet.coordinator_url), forwarder.url(devnet.chain_url)
    settings = replace(provider_settings.read(folder), coordinators=(urls[0],), chain_url=urls[1])
    provider_settings.write(folder, settings)
    devnet.config.provider_status(0).unlink(missing_ok=True)
    assert isinstance(child.process.args, list)
    with child.log.open("ab") as log:
        process = subprocess.Popen(
            nat.at_home(*map(str, child.process.args)), stdout=log, stderr=log
        )
    devnet.processes.register_cleanup({"child": process.pid})
    devnet.processes.children[PROVIDER] = ChildProcess(PROVIDER, process, child.log)
    await devnet.processes.ready(
        PROVIDER,
        devnet.config.provider_status(0),
        READY_SECONDS,
        lambda facts: bool(facts.get("connected")),
    )


@contextlib.contextmanager
def listening(nat: NatNetwork) -> Iterator[None]:
    """A program at home takes connections from anywhere, at every address that it has."""
    words = nat.at_home(sys.executable, "-c", LISTENER)
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            yield
        finally:
            process.kill()


def called(address: str, prefix: list[str], seconds: float) -> str:
    words = [*prefix, sys.executable, "-c", CALL.format(OPEN_PORT, seconds), address]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout or done.stderr.splitlines()[-1]


async def test_nothing_outside_can_connect_to_the_provider(home: Home) -> None:
    nat = home.nat
    with listening(nat):
        own = nat.inside_router()
        assert "home" in await asyncio.to_thread(called, nat.inner, own, BUSY_SECONDS)
        for address in (nat.inner, nat.router):
            told = await asyncio.to_thread(called, address, [], NOBODY_SECONDS)
            assert "TimeoutError" in told or "refused" in told, told
    process = home.desk.devnet.processes.children[PROVIDER].process
    shown = os.readlink(f"/proc/{process.pid}/ns/net")
    assert shown != os.readlink("/proc/self/ns/net"), "the daemon is in a network of its own"


async def test_ssh_scp_and_a_forwarded_port_work(home: Home) -> None:
    desk, forwarder = home.desk, home.forwarder
    rented = ("rent", "image.tar", "box", "--max-price", "9", "--for", "10m", "--memory", "1GB")
    await desk.quorate(*rented, "--yes")
    assert "hello" in await desk.quorate("shell", "box", "--", "echo hello; exit 3", status=3)
    data, before = os.urandom(COPIED_BYTES), forwarder.carried
    (desk.folder / "data").write_bytes(data)
    await desk.quorate("cp", "data", "box:/home/data")
    await desk.quorate("cp", "box:/home/data", "back")
    assert (desk.folder / "back").read_bytes() == data
    assert forwarder.carried - before > 2 * COPIED_BYTES, "it went over the router"
    assert b"data" in await forwarded(desk, "box", LOCAL_PORT)
    await desk.quorate("stop", "box")
    over = (await desk.json("describe", "box"))["run"]
    assert over["charged"] > 0 and over["state"] == "ended"
    assert forwarder.callers == {home.nat.router}, "all comes from one address, the router's"
    print(json.dumps({"carried_mb": forwarder.carried >> 20, "callers": [*forwarder.callers]}))
