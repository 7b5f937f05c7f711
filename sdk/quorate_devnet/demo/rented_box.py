"""One rented machine, used by OpenSSH's own programs: what `quorate devnet demo-rent` measures."""

import asyncio
import functools
import http.server
import json
import os
import socket
import statistics
import sys
import threading
import time
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

import aiohttp

from quorate_devnet.chain.free_port import free_port
from quorate_protocol.refusals import Unavailable

BOX, HOST = "box", "packages.test"  # the one host that rentals reach
COPIED_BYTES = 128 << 20
LINES = 50
SECONDS, LOOK_SECONDS = 120.0, 0.2
METADATA = ("169.254.169.254", "169.254.170.2", "fd00:ec2::254")
ASK = 'echo rea""dy; while read n; do echo "got$n."; done'
INSTALL = (
    f"python3 -m pip install --user --no-cache-dir --trusted-host {HOST} "
    f"--index-url http://{HOST}/simple/ hello && python3 -c 'import hello; print(hello.text)'"
)


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = SECONDS) -> None:
    """Asks again and again. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 - other programs tell nothing
            await asyncio.sleep(LOOK_SECONDS)


def quorate_words(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("quorate")), *words]


@dataclass(frozen=True, slots=True)
class Desk:
    """A client at its terminal. `folder` is its home."""

    marker: Path
    folder: Path

    @asynccontextmanager
    async def started(
        self, *words: str, errors: int | IO[bytes] = PIPE
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """A program that is ended with the block, if it still runs."""
        env = {**os.environ, "QUORATE_DEVNET": str(self.marker), "HOME": str(self.folder)}
        process = await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, stderr=errors, cwd=self.folder, env=env
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                await process.communicate()

    async def call(self, *words: str, data: bytes = b"", status: int = 0) -> bytes:
        """Returns what a program prints. Raises Unavailable if it ends with another status."""
        async with self.started(*words) as process, asyncio.timeout(SECONDS):
            out, err = await process.communicate(data)
        if process.returncode != status:
            told = (err or out).decode(errors="replace")[-400:]
            raise Unavailable(f"{' '.join(words)[:120]} ended with {process.returncode}: {told}")
        return out

    async def quorate(self, *words: str) -> Any:
        """Returns the JSON that a command of ours prints."""
        return json.loads(await self.call(*quorate_words(*words), "--json"))

    def ssh(self, program: str, *words: str) -> list[str]:
        return [program, "-F", str(self.folder / ".ssh" / "config"), *words]

    async def inside(self, command: str, data: bytes = b"", status: int = 0) -> bytes:
        return await self.call(
            *self.ssh("ssh", f"quorate-{BOX}", command), data=data, status=status
        )


async def is_ssh_good(desk: Desk) -> bool:
    """Whether plain ssh gets in, and has output and exit status of a command."""
    return await desk.inside("echo hello; exit 7", status=7) == b"hello\n"


async def copy_rate(desk: Desk) -> float:
    """MB/s of the slower direction, with the start of scp and of its connection."""
    here, back = desk.folder / "data", desk.folder / "back"
    here.write_bytes(os.urandom(COPIED_BYTES))
    there, rates = f"quorate-{BOX}:/home/data", []
    for source, target in ((str(here), there), (there, str(back))):
        began = time.monotonic()
        await desk.call(*desk.ssh("scp", "-q", source, target))
        rates.append(COPIED_BYTES / 1e6 / (time.monotonic() - began))
    if here.read_bytes() != back.read_bytes():
        raise Unavailable("scp: what came back differs from what was sent")
    return round(min(rates), 1)


async def round_trip_ms(desk: Desk) -> float:
    """The median from a line that is typed to the shell's answer to it."""
    found: list[float] = []
    words = desk.ssh("ssh", "-tt", f"quorate-{BOX}", ASK)
    async with desk.started(*words) as process, asyncio.timeout(SECONDS):
        assert process.stdin is not None and process.stdout is not None
        await process.stdout.readuntil(b"ready")
        for number in range(LINES):
            began = time.monotonic()
            process.stdin.write(f"{number}\n".encode())
            await process.stdout.readuntil(f"got{number}.".encode())
            found.append(time.monotonic() - began)
    return round(statistics.median(found) * 1000, 2)


async def is_jupyter_good(desk: Desk, session: aiohttp.ClientSession) -> bool:
    """Whether it lists /home to who has its token, and nothing to others."""
    words = quorate_words("jupyter", BOX, "--port", str(free_port("127.0.0.1")), "--json")
    async with desk.started(*words) as process, asyncio.timeout(SECONDS):
        assert process.stdout is not None and process.stderr is not None
        line = await process.stdout.readline()
        url = json.loads(line or b"{}").get("url")
        if url is None:
            told = line + await process.stderr.read()
            raise Unavailable(f"jupyter: {told.decode(errors='replace')[-800:]}")
        place, _, token = url.partition("?token=")
        async with session.get(f"{place}api/contents?token={token}") as answer:
            shown = await answer.text()
        async with session.get(f"{place}api/contents?token=wrong") as answer:
            hidden = await answer.text()
    return '"data"' in shown and '"data"' not in hidden


async def egress(desk: Desk, urls: list[str], program: Path) -> dict[str, Any]:
    """Installs a package through the proxy. Then tries places of this machine and its network."""
    installed = await desk.inside(INSTALL)
    ports = sorted({int(url.rpartition(":")[2].strip("/")) for url in urls} | {22, 80, 443, 2375})
    hosts = [*METADATA, *_own_hosts(urls)]
    places = [[host, port] for host in hosts for port in ports]
    words = f"python3 - '{json.dumps(places)}'"
    reached = json.loads(await desk.inside(words, await asyncio.to_thread(program.read_bytes)))
    tried = {"lan_tried": len(places), "lan_reached": len(reached)}
    return {"pip_ok": installed.endswith(b"hello from the index\n"), **tried}


def _own_hosts(urls: list[str]) -> list[str]:
    """This machine by each of its addresses, the engine's bridge, and the neighbours of both."""
    found = {"localhost", *(url.split("/")[2].rpartition(":")[0] for url in urls)} - {"127.0.0.1"}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # this sends nothing
        own = str(probe.getsockname()[0])
    for host in (own, "172.17.0.1"):
        found |= {host, *(f"{host.rpartition('.')[0]}.{last}" for last in (1, 2, 254))}
    return sorted(found)


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@contextmanager
def package_index(folder: Path) -> Iterator[int]:
    """An index with one package, whose pages are lists of files. Yields its port."""
    wheel = folder / "simple" / "hello" / "hello-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    info = {"METADATA": "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n", "RECORD": ""}
    info["WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("hello.py", "text = 'hello from the index'\n")
        for name, text in info.items():
            file.writestr(f"hello-1.0.dist-info/{name}", text)
    handler = functools.partial(_Files, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()
