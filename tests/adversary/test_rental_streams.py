"""What a client, a stranger or a program inside can do through the SSH server of a rental."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from quorate_node.rentals.channels import VARIABLES_MAX, WINDOW_BYTES
from quorate_node.rentals.session import Session
from quorate_node.rentals.ssh_server import CONNECTIONS_MAX, host_key
from quorate_runtime.keys.crypto import PeerKey
from support.executors.rented import Rental, client, ran, read_until, rented, shell_image, until

pytestmark = pytest.mark.docker
MIB = 1 << 20


@pytest.fixture(scope="module")
def shells(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shell_image(image, tmp_path_factory.mktemp("shells") / "shells.tar")


@pytest.fixture
async def rental(shells: Path, tmp_path: Path) -> AsyncIterator[Rental]:
    async with rented(shells, tmp_path) as made:
        yield made


@pytest.mark.rule("12.19")
async def test_strangers_stay_out_and_a_forged_host_is_noticed(rental: Rental) -> None:
    found = await ran(rental.ssh("id", key="stranger"))
    assert found.status == 255 and b"Permission denied" in found.errors and not found.out
    forged = host_key(PeerKey(bytes([7] * 32))).export_public_key().decode()
    (rental.folder / "known_hosts").write_text(f"[127.0.0.1]:{rental.port} {forged}")
    found = await ran(rental.ssh("id"))
    assert found.status == 255 and b"HOST IDENTIFICATION HAS CHANGED" in found.errors


@pytest.mark.rule("12.20")
async def test_sftp_never_leaves_the_container(rental: Rental, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the owner")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    links = "ln -s /proc/1/root/../../.. up; ln -s /proc/self/exe exe; ln -s /proc/self/fd fd"
    links = links.replace("ln -s", "python3 -c 'import os,sys; os.symlink(*sys.argv[1:])'")
    assert (await ran(rental.ssh(links))).status == 0
    async with client(rental) as connection, connection.start_sftp_client() as files:
        for path in (secret, f"up{secret}", f"/proc/1/root{secret}", f"/proc/1/cwd/..{secret}"):
            with pytest.raises(asyncssh.SFTPError):
                await files.getsize(str(path))
        for path in ("exe", "fd", "/proc/self/exe", "/proc/self/environ", "/proc/thread-self/fd"):
            with pytest.raises(asyncssh.SFTPError):
                await files.stat(path)
        seen = [name for name in await files.listdir("/proc") if str(name).isdecimal()]
        for pid in (*seen, str(os.getpid())):
            with pytest.raises(asyncssh.SFTPError):
                async with files.open(f"/proc/{pid}/root/{secret}", "rb") as file:
                    await file.read()
        for path in ("/sbin/quorate-shell", "/etc/hosts", "/x", "/proc/1/oom_score_adj"):
            with pytest.raises(asyncssh.SFTPError):
                async with files.open(path, "wb") as file:
                    await file.write(b"-1000")
        async with files.open("/home/made", "wb") as file:
            await file.write(b"x")
        made = rental.executor._dirs.folder(rental.lease) / "scratch" / "home" / "made"
        assert made.stat().st_uid == rental.user() != 0
        child = await only_child(rental)
        status = Path(f"/proc/{child}/status").read_text()
        assert f"Uid:\t{rental.user()}\t" in status and "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
        assert rental.lease in Path(f"/proc/{child}/cgroup").read_text()
        opened = [os.readlink(item) for item in Path(f"/proc/{child}/fd").iterdir()]
        assert all(name.startswith(("socket:", "anon_inode:", "/dev/null")) for name in opened)


async def only_child(rental: Rental) -> int:
    """The program that serves files."""
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    found = [int(pid) for pid in own if b"sftp_child" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(found) == 1
    return found[0]


async def test_a_fork_bomb_harms_its_rental_only(rental: Rental) -> None:
    bomb = asyncio.create_task(ran(rental.ssh("bomb() { bomb | bomb & }; bomb; sleep 60")))
    await asyncio.sleep(3)
    found = await ran(rental.ssh("echo alive"), seconds=50)
    assert found.out == b"alive\n" or found.status != 0
    assert len(os.listdir("/proc")) < 5_000
    await rental.stop()
    assert (await asyncio.wait_for(bomb, 30)).status != 0


@pytest.mark.rule("12.20")
async def test_a_shell_ends_with_its_channel_and_nohup_with_the_lease(rental: Rental) -> None:
    stubborn = "trap '' HUP; echo up; while :; do sleep 1; done"
    kept = "nohup sleep 1000 >/dev/null 2>&1 & disown; exec 2>/dev/null; "
    ssh = await asyncio.create_subprocess_exec(
        *rental.ssh("-tt", kept + stubborn), stdout=asyncio.subprocess.PIPE
    )
    assert ssh.stdout is not None
    await ssh.stdout.readuntil(b"up")
    await until(lambda: sleeps(rental, 2), 30)
    ssh.kill()
    await ssh.wait()
    await until(lambda: has_shells(rental, 0), 30)
    await until(lambda: sleeps(rental, 1), 30)  # as with any SSH server
    await rental.stop()
    await until(lambda: has_shells(rental, 0), 30)
    assert await sleeps(rental, 0)


async def has_shells(rental: Rental, count: int) -> bool:
    return len([line for line in commands(rental) if b"while" in line]) == count


async def sleeps(rental: Rental, count: int) -> bool:
    return len([line for line in commands(rental) if line.startswith(b"sleep")]) == count


def commands(rental: Rental) -> list[bytes]:
    """The command lines of all processes of the rental's user on this machine."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and folder.stat().st_uid == rental.user():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.rule("12.20")
async def test_200_connections_leave_room_for_the_first(rental: Rental) -> None:
    async with client(rental) as connection:
        opened = [await asyncio.open_connection("127.0.0.1", rental.port) for _ in range(200)]
        await until(lambda: refused(rental, 200 - CONNECTIONS_MAX + 1), 60)
        assert (await connection.run("echo on")).stdout == "on\n"
        for _, writer in opened:
            writer.close()
        await until(lambda: can_join(rental), 60)
    assert "16 connections" in rental.refused[0]


async def refused(rental: Rental, count: int) -> bool:
    return len(rental.refused) == count


async def can_join(rental: Rental) -> bool:
    return (await ran(rental.ssh("true"))).status == 0


@pytest.mark.rule("12.20")
async def test_a_client_that_does_not_read_costs_no_memory(rental: Rental) -> None:
    async with client(rental) as connection:
        channel, _ = await connection.create_session(
            asyncssh.SSHClientSession, "cat /dev/zero", encoding=None, window=1 << 31
        )
        transport = connection._transport
        assert transport is not None
        transport.pause_reading()  # type: ignore[attr-defined]
        before = memory()
        # Requests that ask for an answer each.
        for _ in range(20_000):
            connection._send_global_request(b"keepalive@openssh.com", want_reply=True)
            if transport.get_write_buffer_size() > MIB:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
        await asyncio.sleep(3)
        assert memory() - before < 40 * MIB
        channel.abort()
        transport.resume_reading()  # type: ignore[attr-defined]


async def test_input_that_nobody_reads_costs_no_more_than_a_window(rental: Rental) -> None:
    async with client(rental) as connection:
        process = await connection.create_process("sleep 100", encoding=None)
        session = only_session(rental)
        for _ in range(6 * MIB // 64):
            process.channel.write(b"x" * 64)
            await asyncio.sleep(0)
        await until(lambda: is_full(session), 20)
        kept = session._channel._recv_buf
        assert sum(len(data) for data, _ in kept) <= WINDOW_BYTES
        assert len(kept) < WINDOW_BYTES // 2048, "small packets are joined"
        many = {f"NAME{number}": "x" for number in range(500)}
        await connection.create_process("sleep 100", env=many)
        assert max(len(item._channel._env) for item in sessions(rental)) == VARIABLES_MAX


async def is_full(session: Session) -> bool:
    return session._channel._recv_window < 4096


def sessions(rental: Rental) -> list[Session]:
    streams = rental.server._streams[rental.lease]
    return [session for item in streams.connections for session in item._sessions]


def only_session(rental: Rental) -> Session:
    (found,) = sessions(rental)
    return found


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_line_reaches_open_terminals_and_the_log(rental: Rental) -> None:
    async with client(rental) as connection:
        shell = await connection.create_process(term_type="xterm")
        shell.stdin.write("echo rea''dy\n")
        await read_until(shell, "ready")
        rental.server.warn(rental.hash, "quorate: five minutes left")
        await read_until(shell, "five minutes left")
        assert rental.executor.inside.problem() == ""
        await rental.executor.inside.note(rental.lease, "five minutes left")
        pieces = [piece.text async for piece in rental.executor.logs(rental.lease, follow=False)]
        assert b"".join(pieces) == b"\n[five minutes left]\n"
