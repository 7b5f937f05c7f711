"""Gives the client this machine's sandboxes, so that a job can be tried before it costs money.

They are the executors of the daemon with the same profile. Only the folder and the owner's label
differ, and no coordinator is involved.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from quorate_node.executors.process_executor import ProcessExecutor
from quorate_node.executors.sandbox.bwrap_executor import BwrapExecutor
from quorate_protocol.messages.ports import Executor, Sandbox
from quorate_protocol.refusals import Unavailable
from quorate_runtime.clock import SystemClock


@asynccontextmanager
async def local_executors(home: Path, sandbox: str) -> AsyncIterator[list[Executor]]:
    """Yields the usable executors, the strongest first; removes at the end all that they hold.
    Raises Unavailable if none can be used.
    """
    usable: list[Executor] = []
    problems: list[str] = []
    async with AsyncExitStack() as stack:
        for made in _candidates(home, sandbox, problems):
            try:
                await made.check()
            except Unavailable as problem:
                problems.append(str(problem))  # not re-raised: another sandbox may work
                await made.close()
                continue
            stack.push_async_callback(_end, made)
            usable.append(made)
        if not usable:
            raise Unavailable("; ".join(problems) or "there is no sandbox here", 60.0)
        yield usable


def _candidates(home: Path, sandbox: str, problems: list[str]) -> list[Executor]:
    clock = SystemClock()
    found: list[Executor] = []
    if not sandbox or sandbox.startswith("docker"):
        from quorate_node.executors.docker.docker_executor import DockerExecutor
        from quorate_node.executors.docker.image_loader import ImagePolicy

        wanted = Sandbox(sandbox) if sandbox else None
        owner, policy = f"check-{os.getpid()}", ImagePolicy(private=None)
        try:
            found.append(
                DockerExecutor(home / "docker", owner, clock, sandbox=wanted, policy=policy)
            )
        except Exception as error:  # noqa: BLE001 - the SDK raises its own errors while it connects
            problems.append(f"no container engine answers ({error})")
    if sandbox in ("", Sandbox.BWRAP):
        found.append(BwrapExecutor(home / "bwrap", home / "rootfs", clock))
    if not sandbox:
        # The user's own program on the user's own machine needs no protection.
        found.append(ProcessExecutor(home / "process", clock))
    return found


async def _end(executor: Executor) -> None:
    for lease in await executor.leases():
        await executor.remove(lease)
    await executor.close()
