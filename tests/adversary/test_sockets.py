"""An attack on the owner's memory by the buffers of sockets."""

from pathlib import Path

import pytest

from support.executors.executor_cases import MIB, SANDBOXES, ending, make_executor, python_task

FILL = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 0), backlog=4096)
kept, sent = [], 0
for _ in range(300):
    try:
        one = socket.create_connection(server.getsockname(), timeout=2)
        two, _ = server.accept()
    except OSError:
        break
    kept += (one, two)
    for end in (one, two):
        end.setblocking(False)
        try:
            while True:
                sent += end.send(bytes(1 << 20))
        except OSError:
            pass
    file = os.open("/outputs/sent", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.write(file, str(sent).encode())
    os.close(file)
"""


@pytest.mark.rule("11.4")
@pytest.mark.parametrize("kind", SANDBOXES)
async def test_buffers_of_sockets_stay_within_the_memory_of_a_job(
    kind: str, tmp_path: Path, image: Path, attack
) -> None:  # type: ignore[no-untyped-def]
    async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
        task = python_task(image, FILL, memory_bytes=128 * MIB)
        await executor.start(task)
        ended = await executor.wait(task.lease_id)
        await executor.collect(task.lease_id, tmp_path / "collected")
    held = int((tmp_path / "collected" / "sent").read_text()) // MIB
    # A job that reaches its memory's limit is killed, as by any other memory.
    assert ended.status in (0, 513)
    assert held < 128
    attack(
        name=f"socket buffers beside the memory's limit of 128 MiB ({kind})",
        before="at most 128 MiB" if kind == "docker-runsc" else "2,246 MiB of 600 connections",
        now=f"{held} MiB",
        cost="the price of one run",
    )
