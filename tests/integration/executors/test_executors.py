"""Tests every executor: first the port's contract, then programs in real sandboxes."""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from quorate_devnet import cli
from quorate_devnet.demo.run_demo import DemoOptions
from quorate_devnet.market.config import ExecutorChoice
from quorate_devnet.market.devnet import resolve_executor
from quorate_node.base.config import Config
from quorate_node.executors.base.kept_log import TAIL_BYTES
from quorate_node.executors.docker import docker_executor as docker_adapter
from quorate_node.executors.process_executor import ProcessExecutor
from quorate_node.executors.selection import choose
from quorate_protocol.messages.ports import Executor, Exit, Sandbox, Task, TaskState
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import EXIT_MEMORY_KILL, EXIT_SIGNAL_BASE, EXIT_TIMEOUT, Seconds
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock
from support.executors.executor_cases import (
    BWRAP,
    MIB,
    RUNC,
    SANDBOXES,
    VOLUME,
    make_executor,
    new_lease,
    python_task,
    what_is_left,
)
from support.process_memory import resident_bytes

Factory = Callable[[], Executor]


@pytest.fixture
async def factory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Factory]:
    """Makes executors over the same folder: a second one is what a restarted daemon has."""
    made: list[Executor] = []

    def make() -> Executor:
        made.append(make_executor(request.param, tmp_path))
        return made[-1]

    yield make
    for lease in await make().leases():
        await made[-1].remove(lease)
    for executor in made:
        await executor.close()
    assert await asyncio.to_thread(what_is_left, request.param, tmp_path) == 0
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


every = pytest.mark.parametrize("factory", ["noop", "process", VOLUME, *SANDBOXES], indirect=True)
running = pytest.mark.parametrize("factory", ["process", *SANDBOXES], indirect=True)


async def run(executor: Executor, task: Task) -> Exit:
    async with asyncio.timeout(60):
        await executor.check()
        await executor.start(task)
        return await executor.wait(task.lease_id)


async def outputs(executor: Executor, task: Task, folder: Path) -> dict[str, bytes]:
    await executor.collect(task.lease_id, folder)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


async def log(executor: Executor, task: Task, *, follow: bool = True) -> bytes:
    return b"".join([piece.text async for piece in executor.logs(task.lease_id, follow)])


def portable(code: str) -> str:
    """The process executor rewrites whole words and no program text, so programs read the folders
    from the environment.
    """
    return "import os; OUT=os.environ['QUORATE_OUTPUTS']; IN=os.environ['QUORATE_INPUTS']; " + code


WRITING = portable("os.mkdir(OUT+'/d'); open(OUT+'/d/x','w').write('7'); print('done')")


# ------------------------------------------------------------------------- the contract of the port


@every
async def test_a_task_starts_ends_and_is_removed(
    factory: Factory, image: Path, tmp_path: Path
) -> None:
    executor = factory()
    task = python_task(image, WRITING)
    assert await executor.state(task.lease_id) is TaskState.ABSENT
    ended = await run(executor, task)
    assert ended.status == 0
    assert ended.usage.wall_ms > 0
    assert await executor.state(task.lease_id) is TaskState.EXITED
    assert await executor.leases() == [task.lease_id]
    assert await outputs(executor, task, tmp_path / "first")
    assert await log(executor, task)
    await executor.remove(task.lease_id)
    assert await executor.state(task.lease_id) is TaskState.ABSENT
    assert await executor.leases() == []


@every
async def test_start_is_idempotent_and_removal_too(factory: Factory, image: Path) -> None:
    executor = factory()
    task = python_task(image, portable("open(OUT+'/count','a').write('x')"))
    first = await run(executor, task)
    again = await run(executor, task)
    assert (again.status, again.usage.wall_ms) == (first.status, first.usage.wall_ms)
    # The kernel may count the last millisecond of a process after its end.
    assert 0 <= again.usage.cpu_ms - first.usage.cpu_ms <= 5
    await executor.remove(task.lease_id)
    await executor.remove(task.lease_id)
    await executor.stop(task.lease_id)


@every
async def test_unknown_leases_and_images_are_refused(
    factory: Factory, image: Path, tmp_path: Path
) -> None:
    executor = factory()
    await executor.check()
    with pytest.raises(Unavailable):
        await executor.wait(new_lease())
    with pytest.raises(Unavailable):
        await executor.collect(new_lease(), tmp_path / "nothing")
    task = python_task(image.with_name("other.tar"), WRITING)
    with pytest.raises(Refused) as refusal:
        await executor.start(task)
    assert refusal.value.code is Code.UNKNOWN
    with pytest.raises(Refused):
        await executor.start(replace(python_task(image, WRITING), lease_id="../x"))


@every
async def test_another_daemon_finds_a_running_and_an_ended_task(
    factory: Factory, image: Path, tmp_path: Path
) -> None:
    task = python_task(
        image, portable("import time; time.sleep(0.6); open(OUT+'/x','w').write('late')")
    )
    first = factory()
    await first.check()
    await first.start(task)
    await first.close()
    second = factory()
    await second.check()
    assert await second.state(task.lease_id) in (TaskState.RUNNING, TaskState.EXITED)
    ended = await run(second, task)
    third = factory()
    assert await third.wait(task.lease_id) == ended
    assert ended.status == 0
    assert await outputs(third, task, tmp_path / "collected") == await outputs(
        second, task, tmp_path / "again"
    )


@every
async def test_stop_ends_it_at_once(factory: Factory, image: Path) -> None:
    executor = factory()
    task = python_task(image, "import time; print('up', flush=True); time.sleep(50)")
    await executor.check()
    await executor.start(task)
    async with asyncio.timeout(20):
        await executor.stop(task.lease_id)
        ended = await executor.wait(task.lease_id)
    assert ended.status == EXIT_SIGNAL_BASE + 15
    assert ended.usage.wall_ms < 20_000


# --------------------------------------------------------------------------------- what programs do


@pytest.mark.rule("I4", "3.31")
@running
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(255)", 255),
        ("import os; os.abort()", EXIT_SIGNAL_BASE + 6),
        ("import os; os.kill(os.getpid(), 11)", EXIT_SIGNAL_BASE + 11),
    ],
)
async def test_a_programs_exit_status_is_its_result(
    factory: Factory, image: Path, code: str, status: int
) -> None:
    assert (await run(factory(), python_task(image, code))).status == status


@pytest.mark.rule("I4", "3.31")
@running
async def test_time_out_is_a_result_that_is_paid(factory: Factory, image: Path) -> None:
    ended = await run(factory(), python_task(image, "while True: pass", max_duration=Seconds(2)))
    assert ended.status == EXIT_TIMEOUT
    assert ended.usage.wall_ms == 2000
    assert ended.usage.cpu_ms > 100  # of 2000: on a busy machine the start takes half of them


@running
async def test_a_time_out_while_the_daemon_was_down(factory: Factory, image: Path) -> None:
    """The daemon was away for longer than the task may run.

    It finds a time-out, and no more than the limit is paid.
    """
    task = python_task(image, "import time; time.sleep(2)", max_duration=Seconds(1))
    first = factory()
    await first.check()
    await first.start(task)
    await first.close()
    second = factory()
    deadline = time.monotonic() + 20
    while await second.state(task.lease_id) is TaskState.RUNNING and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    ended = await second.wait(task.lease_id)
    assert (ended.status, ended.usage.wall_ms) == (EXIT_TIMEOUT, 1000)


@pytest.mark.rule("I4", "3.31")
@running
async def test_memory_kill_is_a_result_that_is_paid(factory: Factory, image: Path) -> None:
    grow = (
        "import time\nheld=[]\nwhile True: held.append(bytearray(b'x')*(8<<20)); time.sleep(0.02)"
    )
    ended = await run(factory(), python_task(image, grow, memory_bytes=128 * MIB))
    assert ended.status == EXIT_MEMORY_KILL
    assert ended.usage.wall_ms > 0
    assert 64 * MIB < ended.usage.peak_memory_bytes < 512 * MIB


@pytest.mark.rule("4.14", "4.17")
@running
async def test_usage_is_measured(factory: Factory, image: Path) -> None:
    code = (
        "import time\nheld=bytearray(b'x')*(64<<20)\nend=time.process_time()+0.5\nwhile "
        "time.process_time()<end: pass\ntime.sleep(0.9)"  # an engine may record the start late
    )
    usage = (await run(factory(), python_task(image, code))).usage
    assert usage.wall_ms >= 800
    assert 400 <= usage.cpu_ms <= usage.wall_ms
    assert usage.peak_memory_bytes >= 64 * MIB


@running
async def test_a_program_reads_its_inputs_and_its_outputs_are_collected(
    factory: Factory, image: Path, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "b").write_text("second")
    (tmp_path / "file").write_text("first")
    code = (
        "import sys; "
        "open(sys.argv[2],'w').write(open(sys.argv[1]).read()+open(sys.argv[3][5:]).read())"
    )
    task = python_task(
        image, code, mounts={"/inputs/a": tmp_path / "file", "/inputs/tree": tmp_path / "tree"}
    )
    task = replace(task, argv=(*task.argv, "/inputs/a", "/outputs/joined", "--in=/inputs/tree/b"))
    executor = factory()
    assert (await run(executor, task)).status == 0, await log(executor, task)
    assert await outputs(executor, task, tmp_path / "collected") == {"joined": b"firstsecond"}


@pytest.mark.rule("2.21")
@running
async def test_environment_is_the_job_s_alone(
    factory: Factory, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWNER_SECRET", "of the daemon")
    executor = factory()
    task = python_task(
        image, "import os,json; print(json.dumps(dict(os.environ)))", env={"GIVEN": "yes"}
    )
    await run(executor, task)
    env = json.loads(await log(executor, task))
    assert env["GIVEN"] == "yes"
    assert "OWNER_SECRET" not in env
    assert env["HOME"] == env["TMPDIR"] == env["QUORATE_SCRATCH"]


@running
async def test_program_that_is_not_there_exits_as_in_a_shell(factory: Factory, image: Path) -> None:
    executor = factory()
    if isinstance(executor, ProcessExecutor):
        with pytest.raises(Refused) as refusal:
            await run(executor, replace(python_task(image, ""), argv=("/bin/nothing",)))
        assert refusal.value.code is Code.UNSUPPORTED
        return
    assert (
        await run(executor, replace(python_task(image, ""), argv=("/bin/nothing",)))
    ).status == 127


@running
async def test_command_line_needs_a_shell(factory: Factory, image: Path) -> None:
    task = replace(python_task(image, ""), argv=("/bin/sh", "-c", "echo hello > /outputs/x"))
    with pytest.raises(Refused) as refusal:
        await run(factory(), task)
    assert refusal.value.code is Code.MALFORMED
    assert "no shell" in refusal.value.detail
    assert "argv" in refusal.value.detail


@running
async def test_log_is_capped_and_followed(factory: Factory, image: Path) -> None:
    executor = factory()
    task = python_task(
        image,
        "import sys\nfor _ in range(64): sys.stdout.write('x'*65536)\n"
        "sys.stdout.flush(); sys.stderr.write('end')",
    )
    await executor.check()
    await executor.start(task)
    async with asyncio.timeout(30):
        pieces = [piece async for piece in executor.logs(task.lease_id, follow=True)]
        assert (await executor.wait(task.lease_id)).status == 0
        again = [piece async for piece in factory().logs(task.lease_id, False, MIB)]
    text = b"".join(piece.text for piece in pieces if piece.at < MIB)
    assert len(text) == MIB and text.startswith(b"xxxx")
    end = b"".join(piece.text for piece in again)
    assert len(end) == TAIL_BYTES and b"end" in end
    assert again[0].at >= 4 * MIB + len("end") - TAIL_BYTES


@running
async def test_hostile_outputs_are_refused(factory: Factory, image: Path, tmp_path: Path) -> None:
    executor = factory()
    attacks = {
        "link": "os.symlink('/etc/shadow', OUT+'/link')",
        "fifo": "os.mkfifo(OUT+'/fifo')",
        "deep": "os.chdir(OUT)\nfor _ in range(150): os.mkdir('deep'); os.chdir('deep')",
    }
    if executor.sandbox is Sandbox.DOCKER_RUNSC:
        del attacks["fifo"]  # which stays in gVisor's own kernel
    for name, code in attacks.items():
        task = python_task(image, portable("\n" + code))
        assert (await run(executor, task)).status == 0, await log(executor, task)
        with pytest.raises(Refused) as refusal:
            await executor.collect(task.lease_id, tmp_path / name)
        assert refusal.value.code is Code.MALFORMED
        assert name in refusal.value.detail
        assert not (tmp_path / name).exists()
        await executor.remove(task.lease_id)


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment names an engine's address where nothing listens."""
    away = f"unix://{tmp_path}/no.sock"
    monkeypatch.setenv("DOCKER_HOST", away)
    return away


@pytest.mark.bwrap
def test_a_devnet_without_an_engine_takes_bwrap(no_engine: str) -> None:
    assert resolve_executor(ExecutorChoice.AUTO) is ExecutorChoice.BWRAP
    with pytest.raises(Unavailable, match="--executor bwrap"):
        resolve_executor(ExecutorChoice.DOCKER)


def test_the_demo_does_not_fix_the_executor() -> None:
    """`quorate devnet demo` without an option asks for what `resolve_executor` decides above."""
    words: Any = get_command(cli.app)
    option = next(
        item for item in words.get_command(None, "demo").params if item.name == "executor"
    )
    assert ExecutorChoice(option.default) is DemoOptions(Path()).executor is ExecutorChoice.AUTO


@pytest.mark.docker
def test_an_engine_that_answers_comes_first() -> None:
    assert resolve_executor(ExecutorChoice.AUTO) is ExecutorChoice.DOCKER


@pytest.mark.bwrap
async def test_a_daemon_without_an_engine_takes_bwrap(no_engine: str, tmp_path: Path) -> None:
    """The daemon is no devnet's, which would fall back to plain processes."""
    executor = await choose(Config(home=tmp_path / "node", coordinators=()), "owner", SystemClock())
    try:
        assert executor.sandbox is Sandbox.BWRAP
    finally:
        await executor.close()


NAMED = {"newline": "open(b'/outputs/a\\nb', 'w')", "latin": "open(b'/outputs/\\xff', 'w')"}
KEPT = """
import os
open('/outputs/x', 'w').write('x')
os.link('/outputs/x', '/outputs/y')
os.chmod('/outputs/x', 0o6777)
os.mkdir('/outputs/d'); open('/outputs/d/z', 'w'); os.chmod('/outputs/d', 0)
try: os.link('/inputs/a', '/outputs/a')
except OSError: pass
os.chmod('/outputs', 0)
"""


async def test_strange_names_are_refused_and_modes_are_not_kept(
    executor: Executor, image: Path, tmp_path: Path
) -> None:
    (tmp_path / "input").write_text("given")
    for name, code in NAMED.items():
        task = python_task(image, code)
        await executor.start(task)
        assert (await executor.wait(task.lease_id)).status == 0
        with pytest.raises(Refused) as refusal:
            await executor.collect(task.lease_id, tmp_path / name)
        assert refusal.value.code is Code.MALFORMED
    task = python_task(image, KEPT, mounts={"/inputs/a": tmp_path / "input"})
    await executor.start(task)
    assert (await executor.wait(task.lease_id)).status == 0
    await executor.collect(task.lease_id, tmp_path / "kept")
    modes = {
        str(path.relative_to(tmp_path / "kept")): path.stat().st_mode & 0o7000
        for path in (tmp_path / "kept").rglob("*")
    }
    assert modes == {"x": 0, "y": 0, "d": 0, "d/z": 0}


async def test_a_program_that_ignores_sigterm_is_killed(executor: Executor, image: Path) -> None:
    code = """
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(3):
    if not os.fork():
        os.setsid()
        if not os.fork():
            while True: time.sleep(1)
print('up', flush=True)
while True:
    try: time.sleep(1)
    except BaseException: pass
"""
    task = python_task(image, code)
    async with asyncio.timeout(60):
        await executor.start(task)
        async for piece in executor.logs(task.lease_id, follow=True):
            if b"up" in piece.text:
                break
        await executor.stop(task.lease_id)
        assert (await executor.wait(task.lease_id)).status == 256 + 9
        assert await executor.state(task.lease_id) is TaskState.EXITED


async def test_a_stopped_program_ends_at_its_time_limit(executor: Executor, image: Path) -> None:
    if executor.sandbox is Sandbox.BWRAP:
        code = "import os, signal\nfor _ in range(2):\n  os.fork()\nos.kill(0, signal.SIGSTOP)\n"
    else:
        code = "import time\ntime.sleep(50)"
    task = python_task(image, code, max_duration=Seconds(2))
    async with asyncio.timeout(40):
        await executor.start(task)
        if executor.sandbox is not Sandbox.BWRAP:
            await asyncio.to_thread(
                subprocess.run,
                ["docker", "pause", f"quorate-{task.lease_id}"],
                check=True,
                capture_output=True,
            )
            assert await executor.state(task.lease_id) is TaskState.RUNNING
        assert (await executor.wait(task.lease_id)).status == EXIT_TIMEOUT
    await executor.remove(task.lease_id)


BLAB = """
import os, sys
line = b'y' * 65535 + b'\\n'
for _ in range({pieces}):
    done = 0
    while done < len(line):
        done += os.write(1 + (_ & 1), line[done:])
with open(os.environ['QUORATE_OUTPUTS'] + '/said', 'w') as file:
    file.write(str({pieces} * len(line)))
sys.exit(7)
"""


both = pytest.mark.parametrize("executor", [RUNC, BWRAP], indirect=True)


def bytes_on_disk(folder: Path) -> int:
    """Bytes of logs under a folder, without images."""
    return sum(
        path.stat().st_blocks * 512
        for path in (folder / "leases").rglob("*")
        if path.is_file() and path.name.partition(".")[0] == "log"
    )


def blabbing(image: Path, megabytes: int) -> Task:
    return python_task(image, BLAB.format(pieces=megabytes * 16), max_duration=Seconds(300))


@both
async def test_a_log_of_256_mib_costs_its_beginning_and_its_end(
    executor: Executor, image: Path, tmp_path: Path
) -> None:
    task = blabbing(image, 256)
    before, most, seen = resident_bytes(), 0, 0
    await executor.start(task)
    waiting = asyncio.create_task(executor.wait(task.lease_id))
    async with asyncio.timeout(240):
        async for piece in executor.logs(task.lease_id, follow=True):
            seen, end = seen + len(piece.text), piece.at + len(piece.text)
            most = max(most, resident_bytes())
        while not waiting.done():
            most = max(most, resident_bytes())
            await asyncio.sleep(0.05)
    assert (await waiting).status == 7
    repeated = 64 << 10  # Docker orders the two streams as it likes: the end of stderr comes again
    assert seen >= MIB + TAIL_BYTES and 0 <= end - 256 * MIB < repeated
    assert bytes_on_disk(tmp_path) <= MIB + 2 * TAIL_BYTES + (64 << 10)
    assert most - before < 24 * MIB, f"grew by {(most - before) >> 20} MiB"
    await executor.collect(task.lease_id, tmp_path / "collected")
    assert (tmp_path / "collected" / "said").read_text() == str(256 * MIB)


@both
async def test_a_program_that_prints_without_end_fills_no_disk(
    executor: Executor, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon reads the container again several times, and once more after a restart."""
    monkeypatch.setattr(docker_adapter, "_WAIT_SECONDS", 0.05)
    task = replace(blabbing(image, 1_000_000), max_duration=Seconds(4))
    await executor.start(task)
    async with asyncio.timeout(60):
        await executor.wait(task.lease_id)
    pieces = [piece async for piece in executor.logs(task.lease_id, follow=False)]
    assert sum(len(piece.text) for piece in pieces) == MIB + TAIL_BYTES
    assert bytes_on_disk(tmp_path) <= MIB + 2 * TAIL_BYTES + (64 << 10)
