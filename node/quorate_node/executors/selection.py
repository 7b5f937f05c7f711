"""Makes the executor that the configuration names, and those for trials on this machine.

Docker's SDK is imported only if it is used.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from quorate_node.base.config import Config, ExecutorKind
from quorate_node.core.terms import GpuDriver
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_node.executors.process_executor import ProcessExecutor
from quorate_node.executors.sandbox.bwrap_executor import BwrapExecutor
from quorate_node.machine.host_probe import read_gpus
from quorate_node.machine.nvml_probe import NvmlProbe
from quorate_protocol.messages.ports import Clock, Executor, Sandbox
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.clock import SystemClock

BANNER = (
    "\033[1;41;97m NO PROTECTION \033[0m\033[1;31m jobs run as processes of this user and can "
    "read your files. Devnets only; elsewhere use --executor docker or bwrap\033[0m"
)


async def choose(config: Config, owner: str, clock: Clock) -> Executor:
    """Raises Refused for processes outside a devnet, Unavailable without the sandbox."""
    match config.executor:
        case ExecutorKind.NOOP:
            return NoopExecutor(config.path("noop"), clock, config.noop_milliseconds)
        case ExecutorKind.PROCESS:
            return await _process(config, clock)
        case ExecutorKind.DOCKER:
            return await _docker(config, owner, clock)
        case ExecutorKind.DOCKER_RUNC:
            return await _docker(config, owner, clock, Sandbox.DOCKER_RUNC)
        case ExecutorKind.DOCKER_RUNSC:
            return await _docker(config, owner, clock, Sandbox.DOCKER_RUNSC)
        case ExecutorKind.BWRAP:
            return await _bwrap(config, clock)
        case ExecutorKind.AUTO:
            return await _best(config, owner, clock)


async def _best(config: Config, owner: str, clock: Clock) -> Executor:
    """A devnet must start on any machine, so that people can try it. There it is runc, as for the
    providers that `quorate devnet up` starts: another sandbox is another determinism class.
    """
    try:
        sandbox = Sandbox.DOCKER_RUNC if config.is_devnet else None
        return await _docker(config, owner, clock, sandbox)
    except Unavailable as engine:
        try:
            return await _bwrap(config, clock)
        except Unavailable as sandbox:
            if not config.is_devnet:
                raise Unavailable(
                    f"{engine}; no other sandbox works: {sandbox}", engine.retry_after
                ) from sandbox
            # Not re-raised on a devnet: the red banner says what it means.
            return await _process(config, clock)


async def _docker(
    config: Config, owner: str, clock: Clock, sandbox: Sandbox | None = None
) -> Executor:
    """`sandbox` None: the strongest one that the engine has."""
    from quorate_node.executors.docker.docker_executor import DockerExecutor
    from quorate_node.executors.docker.image_loader import ImagePolicy

    gpus = await asyncio.to_thread(read_gpus, NvmlProbe())
    policy = ImagePolicy(
        private=None if config.is_devnet else frozenset(config.images),
        driver=GpuDriver(gpus.driver_version, gpus.cuda_version),
    )
    try:
        executor = DockerExecutor(
            config.path("docker"),
            owner,
            clock,
            sandbox=sandbox,
            policy=policy,
            first_user=config.job_user,
        )
    except Exception as error:  # the SDK raises its own errors while it connects
        raise Unavailable(
            f"no container engine answers ({error}); install and start one: apt-get install "
            "docker.io",
            10.0,
        ) from error
    await executor.check()
    return executor


async def _bwrap(config: Config, clock: Clock) -> Executor:
    executor = BwrapExecutor(
        config.path("bwrap"), config.path("rootfs"), clock, first_user=config.job_user
    )
    await executor.check()
    return executor


async def _process(config: Config, clock: Clock) -> Executor:
    if not config.is_devnet:
        raise Refused(
            Code.UNSUPPORTED,
            "the process executor protects nothing; it is for devnets only (node init --limits "
            "devnet)",
        )
    executor = ProcessExecutor(config.path("process"), clock)
    await executor.check()
    return executor


@asynccontextmanager
async def local_executors(home: Path, sandbox: str) -> AsyncIterator[list[Executor]]:
    """The daemon's executors with the same profile, so that a client can try a job before it costs
    money. Yields the usable ones, the strongest first, and removes at the end all that they hold.
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
