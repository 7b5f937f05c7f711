"""A rental on this machine: a container, an SSH server for it, and OpenSSH's own programs."""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from quorate_node.executors.base.hardened_profile import WAIT_TARGET
from quorate_node.executors.docker.docker_executor import DockerExecutor
from quorate_node.rentals.ssh_server import SshServer, host_key
from quorate_protocol.messages.ports import Task
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Hash32, Seconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import PeerKey
from support.executors.executor_cases import MIB, ending, make_executor, python_task
from support.executors.image_archives import add_layer

SHELLS = ("bash", "cat", "dd", "env", "head", "id", "ls", "nohup", "sleep", "stty", "tty", "wc")


def shell_image(base: Path, target: Path) -> Path:
    """Writes an archive like `base` with a shell and some of this machine's small programs."""
    files: dict[str, Path] = {}
    for name in SHELLS:
        found = shutil.which(name)
        assert found is not None, name
        files[f"usr/local/bin/{name}"] = Path(found)
        listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                files[word.lstrip("/")] = Path(word).resolve()
    add_layer(base, target, files | {"bin/sh": files["usr/local/bin/bash"]}, ())
    return target


def rental_task(image: Path | str, lease: Hash32, **changes: object) -> Task:
    return python_task(
        image,
        "",
        **{
            "lease_id": lease.hex(),
            "argv": (WAIT_TARGET,),
            "is_rental": True,
            "max_duration": Seconds(300),
            "scratch_bytes": 256 * MIB,
            "disk_scratch_bytes": 256 * MIB,
            **changes,
        },
    )


@dataclass
class Rental:
    """`serving` holds a task for each connection; `ssh` has the options of OpenSSH's programs."""

    executor: DockerExecutor
    server: SshServer
    folder: Path
    port: int
    hash: Hash32  # of its lease
    serving: set["asyncio.Task[None]"] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    def options(self, key: str = "client") -> list[str]:
        settings = (
            "HostKeyAlgorithms=ssh-ed25519",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self.folder / 'known_hosts'}",
            "IdentitiesOnly=yes",
            "BatchMode=yes",
        )
        return ["-F", "/dev/null", "-i", str(self.folder / key), *_each("-o", settings)]

    def ssh(self, *words: str, key: str = "client") -> list[str]:
        return ["ssh", *self.options(key), "-p", str(self.port), "any@127.0.0.1", *words]

    def copy(self, *words: str) -> list[str]:
        return ["scp", *self.options(), "-P", str(self.port), *words]

    @property
    def lease(self) -> str:
        return self.hash.hex()

    async def stop(self) -> None:
        await self.executor.stop(self.lease)

    def user(self) -> int:
        """The host's number of the rental's user."""
        return int((self.folder / "leases" / self.lease / "user").read_text())

    def at(self, path: str) -> str:
        return f"any@127.0.0.1:{path}"


@asynccontextmanager
async def client(rental: Rental, **options: object) -> AsyncIterator[asyncssh.SSHClientConnection]:
    async with asyncssh.connect(
        "127.0.0.1",
        rental.port,
        username="any",
        config=None,
        client_keys=[str(rental.folder / "client")],
        known_hosts=str(rental.folder / "known_hosts"),
        agent_path=None,
        **options,  # type: ignore[arg-type]
    ) as connection:
        yield connection


async def read_until(process: asyncssh.SSHClientProcess[str], wanted: str) -> str:
    text = ""
    async with asyncio.timeout(20):
        while wanted not in text:
            piece = await process.stdout.read(4096)
            assert piece, text
            text += piece
    return text


@dataclass(frozen=True)
class Ran:
    status: int
    out: bytes
    errors: bytes


async def ran(words: Sequence[str], given: bytes = b"", seconds: float = 60.0) -> Ran:
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(given), seconds)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return Ran(process.returncode, out, errors)


@asynccontextmanager
async def rented(image: Path | str, folder: Path, **changes: object) -> AsyncIterator[Rental]:
    """Yields a running rental whose server takes connections on loopback."""
    peer = PeerKey(bytes(32))
    for name in ("client", "stranger"):
        if not (folder / name).exists():
            await ran(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)])
    made = make_executor("docker-runc", folder)
    assert isinstance(made, DockerExecutor)
    async with ending(made, "docker-runc", folder) as executor:
        access = ((folder / "client.pub").read_text(),)
        server = SshServer(peer, executor.inside, lambda _: access, SystemClock(), lambda _: {})
        lease = Hash32(os.urandom(32))  # what ends an earlier rental does not find this one
        task = rental_task(image, lease, **changes)
        await executor.start(task)
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        known = host_key(peer).export_public_key().decode()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {known}")
        rental = Rental(executor, server, folder, port, lease)
        accepting = asyncio.create_task(_accept(listening, rental))
        try:
            yield rental
        finally:
            accepting.cancel()
            with suppress(asyncio.CancelledError):
                await accepting
            listening.close()
            await rental.stop()
            if rental.serving:
                await asyncio.wait(rental.serving, timeout=60)
            assert not [task for task in rental.serving if not task.done()], "connections are left"


async def _accept(listening: socket.socket, rental: Rental) -> None:
    listening.setblocking(False)
    while True:
        sock, _ = await asyncio.get_running_loop().sock_accept(listening)
        sock.setblocking(False)
        rental.serving.add(asyncio.create_task(_serve(rental, sock)))


async def _serve(rental: Rental, sock: socket.socket) -> None:
    try:
        await rental.server.serve(sock, rental.hash)
    except Refused as refused:
        rental.refused.append(str(refused))


def _each(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


async def until(holds: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.1)
