"""Tests sandboxes over SSH, on machines that are processes here."""

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from quorate.base.errors import QuorateError, RefusedError, UnavailableError, UsageError
from quorate.sandboxes.commands import LINE_BYTES_MAX
from quorate.sandboxes.machines import Template, template
from quorate.sandboxes.pool import Sandboxes
from quorate.sandboxes.sandbox import Sandbox, one_sandbox
from quorate_protocol.units import Amount
from support.rentals.local_sandboxes import IMAGE, LocalMachines

SERVER = """import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_port, flush=True)
server.serve_forever()"""


def asked(**options: object) -> Template:
    return template(IMAGE, **{"max_price": "3.6", "budget": "1", **options})


@pytest.fixture
def machines(tmp_path: Path) -> LocalMachines:
    return LocalMachines(tmp_path / "machines")


@pytest_asyncio.fixture
async def box(machines: LocalMachines) -> AsyncIterator[Sandbox]:
    async with one_sandbox(machines, asked(files={"a/b.txt": b"hello"})) as made:
        yield made


async def test_a_command_gets_words_input_variables_and_a_folder(box: Sandbox) -> None:
    assert (await box.exec(["cat", "a/b.txt"])).stdout == b"hello"
    told = await box.exec("echo $X; pwd; echo no >&2; exit 3", env={"X": "a b'$c"}, cwd="a")
    assert told.status == 3 and told.stderr == b"no\n"
    assert told.stdout.startswith(b"a b'$c\n/") and told.stdout.endswith(b"/a\n")
    assert (await box.exec("cat", stdin=b"\0\xff\n")).stdout == b"\0\xff\n"
    assert (await box.exec("kill -9 $$")).status == 137
    assert (await box.exec("true", cwd="nowhere")).status == 126


@pytest.mark.parametrize(
    ("command", "env", "told"),
    [
        (" ", {}, "command"),
        ("a\0b", {}, "NUL"),
        ("x" * (LINE_BYTES_MAX + 1), {}, "longer"),
        ("true", {"A;rm -rf /": "1"}, "env"),
    ],
)
async def test_wrong_commands_are_named(
    box: Sandbox, command: str, env: dict[str, str], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        await box.exec(command, env=env)


async def test_output_is_bounded_and_commands_without_end_are_stopped(box: Sandbox) -> None:
    long = await box.exec("seq 1 200000", output_max=1000)
    assert long.status == 0 and long.was_cut and len(long.stdout) < 1100
    assert long.stdout.startswith(b"1\n2\n") and long.stdout.endswith(b"\n200000\n")
    assert b"bytes left out" in long.stdout
    endless = await box.exec("yes")
    assert endless.status is None and endless.was_cut
    began = time.monotonic()
    slow = await box.exec("echo first; sleep 1000", timeout=3)
    assert slow.status is None and slow.stdout == b"first\n" and time.monotonic() - began < 30
    # The connection is as good as before.
    assert (await box.exec("echo on")).stdout == b"on\n"


async def test_output_streams_and_waits_for_its_reader(box: Sandbox) -> None:
    pieces = [it async for it in box.stream("echo out; echo err >&2; exit 4")]
    assert {(it.data, it.is_error) for it in pieces[:-1]} == {(b"out\n", False), (b"err\n", True)}
    assert pieces[-1].is_last and pieces[-1].status == 4
    flood = box.stream("cat /dev/zero")
    first = await anext(flood)
    await asyncio.sleep(0.3)
    assert first.data and (await anext(flood)).data
    await flood.aclose()
    assert (await box.exec("true")).status == 0


async def test_files_go_both_ways(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "x").write_bytes(b"\0\1")
    await box.upload(tmp_path / "tree", "new/tree")
    assert await box.download("new/tree/deep/x") == b"\0\1"
    assert [(it.name, it.is_folder) for it in await box.list("new")] == [("tree", True)]
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (tmp_path / "link").symlink_to(secret)
    await box.download("a/b.txt", tmp_path / "link")
    assert secret.read_text() == "mine" and (tmp_path / "link").read_bytes() == b"hello"
    await box.exec("head -c 5000 /dev/zero > big")
    with pytest.raises(UsageError, match="larger than 100 bytes"):
        await box.download("big", tmp_path / "big", bytes_max=100)
    assert not (tmp_path / "big").exists()
    for path in ("", "a\0b", "x" * 5000, "missing", "../../../../etc/passwd"):
        with pytest.raises(UsageError):
            await box.download(path)
    with pytest.raises(UsageError, match="missing"):
        await box.upload(tmp_path / "missing", "x")


async def test_a_port_is_reached_by_a_url(box: Sandbox) -> None:
    server = box.stream(["python3", "-c", SERVER], cwd="a")
    url = await box.port(int((await anext(server)).data))
    answer = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/b.txt").read())
    assert answer == b"hello"
    await server.aclose()
    with pytest.raises(UsageError, match="port"):
        await box.port(70_000)


async def test_it_says_why_it_is_over_and_when_it_only_broke(
    machines: LocalMachines, box: Sandbox
) -> None:
    (machine,) = machines.made
    running = asyncio.create_task(box.exec("sleep 1000"))
    await asyncio.sleep(0.2)
    machine.connections[-1].abort()
    with pytest.raises(UnavailableError, match="it goes on"):
        await running
    assert (await box.exec("true")).status == 0
    machine.problem = UnavailableError("the coordinator does not answer")
    machine.connections[-1].abort()
    with pytest.raises(UnavailableError, match="coordinator does not answer"):
        await box.exec("true")
    machine.problem = None
    running = asyncio.create_task(box.exec("sleep 1000"))
    await asyncio.sleep(0.2)
    machine.end("its budget is used up")
    with pytest.raises(RefusedError, match="is over: its budget"):
        await running
    with pytest.raises(RefusedError, match="start another"):
        await box.list()


async def test_the_budget_ends_it_in_the_middle(machines: LocalMachines) -> None:
    async with one_sandbox(machines, asked(budget="0.1")) as box:
        running = asyncio.create_task(box.exec("sleep 1000"))
        (machine,) = machines.made
        await until(lambda: machine.commands)
        machine.spend_all()
        with pytest.raises(RefusedError, match="budget is used up"):
            await running
        assert await box.spent() == Amount(100_000)


@pytest.mark.parametrize("ending", ["raises", "is cancelled", "is cancelled while it starts"])
async def test_it_is_destroyed_however_its_caller_ends(
    machines: LocalMachines, ending: str
) -> None:
    machines.load_seconds = 0.3 if "starts" in ending else 0.0

    async def use() -> None:
        async with one_sandbox(machines, asked()) as box:
            if ending == "raises":
                raise KeyError("mine")
            await box.exec("sleep 1000")

    using = asyncio.create_task(use())
    await asyncio.sleep(0.2)
    using.cancel()
    with pytest.raises((KeyError, asyncio.CancelledError)):
        await using
    assert len(machines.made) == 1 and not machines.live()


async def test_a_stop_that_fails_is_told_with_what_follows(
    machines: LocalMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.sandboxes.sandbox.STOP_PAUSES", (0.0, 0.01))
    with pytest.raises(UnavailableError, match="within two minutes"):
        async with one_sandbox(machines, asked()):
            machines.made[0].problem = UnavailableError("the coordinator does not answer")
    assert machines.made[0].stops == 2
    machines.made[0].end("unpaid")


async def test_warm_sandboxes_start_at_once_and_are_never_shared(machines: LocalMachines) -> None:
    seen: list[str] = []

    async def use(pool: Sandboxes) -> None:
        async with pool.sandbox() as box:
            assert (await box.exec("ls -A; touch left; mkdir -p d; touch d/x")).stdout == b""
            seen.append(box.id)

    async with Sandboxes(machines, asked(), 2) as pool:
        await ready(pool, 2)
        warm = {it.id for it in machines.made}
        await asyncio.gather(use(pool), use(pool))
        assert set(seen) == warm, "those that ran already"
        await asyncio.gather(*(use(pool) for _ in range(6)))
        assert len(set(seen)) == len(seen) == 8
        assert all(it.stops == 1 for it in machines.made if it.id in seen)
    assert not machines.live()
    with pytest.raises(UsageError, match="closed"):
        await use(pool)


async def test_a_pool_replaces_what_ended_while_it_waited(
    machines: LocalMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.sandboxes.pool.LOOK_SECONDS", 0.05)
    async with Sandboxes(machines, asked(), 1) as pool:
        await ready(pool, 1)
        machines.made[0].end("its owner left")
        await until(lambda: len(machines.made) == 2)
        await ready(pool, 1)
        async with pool.sandbox() as box:
            assert box.id == machines.made[1].id
    assert not machines.live()


async def test_a_pool_ends_what_nobody_uses_and_nothing_that_a_caller_waits_for(
    machines: LocalMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a pool stopped and started machines for ever that loaded for longer than `idle`."""
    monkeypatch.setattr("quorate.sandboxes.pool.LOOK_SECONDS", 0.05)
    machines.load_seconds = 1.5
    async with Sandboxes(machines, asked(), 1, idle="1s") as pool:
        async with asyncio.timeout(30), pool.sandbox() as box:
            assert box.id == machines.made[0].id
            machines.load_seconds = 0.0  # of the next one
        await until(lambda: len(machines.made) == 2 and not machines.live())


async def test_a_pool_tells_what_failed(machines: LocalMachines) -> None:
    async with Sandboxes(machines, asked(), 1) as pool:
        await ready(pool, 1)
        machines.made[0].end("its owner left")
        await until(lambda: not pool.ready)
        machines.failing = 1
        with pytest.raises(QuorateError, match="no owner has one"):
            async with pool.sandbox():
                pass
        async with pool.sandbox() as box:
            assert (await box.exec("true")).status == 0
    assert not machines.live()
    with pytest.raises(UsageError, match="warm"):
        Sandboxes(machines, asked(), 0)


async def ready(pool: Sandboxes, count: int) -> None:
    await until(lambda: pool.ready >= count)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)
