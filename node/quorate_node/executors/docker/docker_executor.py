"""The default executor: runs each task in a hardened container of a Docker engine.

The Docker SDK blocks, so each call to the engine runs in a worker thread. The container's name
holds the lease id, and its labels hold all that the executor must know later. A daemon that
restarts, or a second executor object, asks the engine for both. Containers run on when the daemon
ends.
"""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import docker
import docker.errors
import requests
from docker.utils.socket import frames_iter

from quorate_content.store.threads import Stopped, StopSignal, in_thread
from quorate_node.executors.base import cgroups
from quorate_node.executors.base.hardened_profile import (
    ENTER_TARGET,
    FILES,
    LABEL_ENGINE_BOOT,
    LABEL_LEASE,
    LABEL_OUTPUT_BYTES,
    LABEL_OUTPUT_INODES,
    LABEL_OWNER,
    RUNTIME_GVISOR,
    SECRETS_TARGET,
    SHELL_TARGET,
    WAIT_TARGET,
    ContainerMounts,
    EngineFacts,
    ImageFacts,
    container_request,
    program_path,
    program_words,
    runs_in_gvisor,
    shell_script,
    unrequested_mounts,
)
from quorate_node.executors.base.kept_log import HEAD_BYTES, TAIL_BYTES, KeptLog
from quorate_node.executors.base.lease import check_lease_id, follow_log
from quorate_node.executors.base.outputs import OutputCaps
from quorate_node.executors.base.seccomp_bpf import filter_for
from quorate_node.executors.base.slot_users import SHOWN_USER, SlotUsers
from quorate_node.executors.base.start_program import MACHINE, start_program
from quorate_node.executors.docker.container_usage import (
    ContainerUsage,
    Inspection,
    container_state,
    hears_sigterm,
    labels,
    process_id,
)
from quorate_node.executors.docker.engine_connection import connect, read_engine_facts, translated
from quorate_node.executors.docker.image_loader import (
    ImageCache,
    ImageLoader,
    ImagePolicy,
    RegistryImageFetcher,
)
from quorate_node.executors.docker.inside import DockerInside
from quorate_node.executors.docker.lease_dirs import (
    DockerOutputs,
    LeaseDirs,
    choose_outputs,
    lend_secrets,
    remove_container,
    waiting_program,
)
from quorate_node.executors.docker.lease_keeper import START_SECONDS, LeaseKeeper
from quorate_node.executors.docker.namespaces import limit_terminals, opened_container
from quorate_node.executors.docker.registry_image import CudaRequirements, image_env
from quorate_protocol.messages.ports import (
    Clock,
    EngineRefuses,
    Exit,
    LogPiece,
    RegistryLogin,
    Sandbox,
    Task,
    TaskState,
)
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.process.crash_points import crash_point

FETCHES_MAX = 4
Fetch = Callable[[str, bool, StopSignal, RegistryLogin | None], None]


class ImageFetches:
    """Fetches images in separate threads, one at a time for each image: a registry may send slowly
    on purpose. A fetch ends at its deadline, with its lease, or below `TransferRate`.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._threads = ThreadPoolExecutor(FETCHES_MAX, thread_name_prefix="image")
        self._turns = asyncio.Semaphore(FETCHES_MAX)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._stops: dict[str, StopSignal] = {}

    async def fetch(
        self,
        lease_id: str,
        name: str,
        seconds: float,
        has: Callable[[], Awaitable[bool]],
        needs_gpu: bool = False,
        login: RegistryLogin | None = None,
    ) -> None:
        """Unless `has`. Raises Unavailable also at the deadline and after `stop`."""
        stop = StopSignal(seconds)
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._stops[lease_id] = stop
        try:
            async with asyncio.timeout(max(0.0, seconds)), lock, self._turns:
                if not await has():
                    await in_thread(
                        self._threads, lambda: self._fetch(name, needs_gpu, stop, login), stop
                    )
        except TimeoutError as error:
            raise Unavailable(f"image {name} did not arrive within its deadline", 1.0) from error
        except Stopped as error:
            raise Unavailable(f"the lease that needs {name} has ended", 1.0) from error
        finally:
            if self._stops.get(lease_id) is stop:
                del self._stops[lease_id]

    def stop(self, lease_id: str) -> None:
        if lease_id in self._stops:
            self._stops[lease_id].stop()

    def close(self) -> None:
        for stop in self._stops.values():
            stop.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)


FRAMES_MAX = 5_000  # a second, of a program that has written a MiB: each costs the daemon CPU time
FRAMES_AT_ONCE = 100
STDERR, ERRORS_BYTES = 2, 8 << 10
LATE_SECONDS = 60.0  # after a container's end, in which its last output comes


class LogReaders:
    """Threads that read the output of containers into files.

    The engine keeps no logs: it would use CPU time of the host that no limit of the job covers.
    What a container writes while no daemon is attached is lost; logs are no part of a result.
    """

    def __init__(self, api: docker.APIClient) -> None:
        self._api = api
        self._readers: dict[str, threading.Thread] = {}
        self._ended: dict[str, float] = {}
        self._open: dict[str, KeptLog] = {}
        self._writing = threading.Lock()

    def attach(self, container: str, path: Path) -> None:
        """Returns once the engine has accepted: later output is not lost."""
        if self.is_reading(container):
            return
        stream = self._api.attach_socket(container, {"stdout": 1, "stderr": 1, "stream": 1})
        reader = threading.Thread(
            target=self._copy, args=(stream, container, path), name=f"log-{container}", daemon=True
        )
        self._readers[container] = reader
        reader.start()

    def note_end(self, container: str) -> None:
        """A busy engine may never end the stream of a container that has ended."""
        self._ended.setdefault(container, time.monotonic())

    def is_reading(self, container: str) -> bool:
        """False once the container has ended and everything is in the file, or cannot come."""
        reader, ended = self._readers.get(container), self._ended.get(container)
        is_late = ended is not None and time.monotonic() > ended + LATE_SECONDS
        return reader is not None and reader.is_alive() and not is_late

    def forget(self, container: str) -> None:
        self._readers.pop(container, None)
        self._ended.pop(container, None)

    def add(self, container: str, text: str) -> None:
        """Adds a line of the node's own, while the container runs."""
        with self._writing:
            if container in self._open:
                self._open[container].write(f"\n[{text}]\n".encode())

    def _copy(self, stream: socket.SocketIO, container: str, path: Path) -> None:
        try:
            with self._opened(container, path) as log:
                errors, errors_at, frames = b"", 0, frames_iter(stream, tty=False)  # type: ignore[no-untyped-call]
                for number, (kind, chunk) in enumerate(frames):
                    with self._writing:
                        log.write(chunk)
                    if kind == STDERR:
                        errors, errors_at = (errors + chunk)[-ERRORS_BYTES:], log.end
                    if log.end > HEAD_BYTES and not number % FRAMES_AT_ONCE:
                        time.sleep(FRAMES_AT_ONCE / FRAMES_MAX)
                # The engine's pipes hold standard output that was written before the last error.
                if errors and log.end > HEAD_BYTES and log.end - errors_at > TAIL_BYTES // 2:
                    log.write(b"\n[the end of standard error]\n" + errors)
        except (OSError, requests.exceptions.RequestException, docker.errors.DockerException):
            return  # The engine or the lease's folder is gone. Logs may be lost.
        finally:
            # The response owns the connection. The SDK keeps two handles on the stream, so closing
            # that first would leave the socket open.
            stream._response.close()  # type: ignore[attr-defined]

    @contextmanager
    def _opened(self, container: str, path: Path) -> Iterator[KeptLog]:
        with closing(KeptLog(path)) as log:
            self._open[container] = log
            try:
                yield log
            finally:
                with self._writing:
                    if self._open.get(container) is log:
                        del self._open[container]


# Tells whether a container ended by itself or because the container engine stopped.
#
# An engine that stops ends its containers. They look like programs that were killed: exit code
# 137, or what the program makes of SIGTERM. The engine's record of a container does not show the
# difference (tried with a stop and a kill -9 of the engine), and times may jump. But the engine
# makes a new bridge network whenever it starts, unless containers live on across its start. So
# the network's id identifies one run of the engine. The executor writes it on each container as a
# label, and believes an exit only in the same run. An engine without a bridge network has no such
# id. There a stop of the engine still looks like an exit.

BRIDGE = "bridge"


def engine_boot_id(api: docker.APIClient) -> str:
    """Returns the id of the engine's current run, or "" if it has none."""
    try:
        return str(api.inspect_network(BRIDGE)["Id"])
    except docker.errors.NotFound:
        return ""  # an engine without a bridge network


def is_of_boot(labels: Mapping[str, str], life: str) -> bool:
    return labels[LABEL_ENGINE_BOOT] == life


log = logging.getLogger(__name__)

PREFIX = "quorate-"
STOP_SECONDS = 5
# At most until a container that has just started can be stopped; on a busy machine a tenth of it.
HEARING_SECONDS, _HEARING_PAUSE = 2.0, 0.01
# Within this time an engine restarts, or somebody frees a full disk.
REFUSING_SECONDS = 30.0
FETCH_SECONDS = 600.0  # to fetch an image again that was removed between fetch and start
_WAIT_SECONDS = 30.0
_SAMPLE_SECONDS = 0.5
_CALLS_MAX = 16
Result = TypeVar("Result")


class DockerExecutor:
    """`Executor` on a Docker engine. `owner` labels this daemon's containers. `sandbox` None:
    gVisor if the engine has it, else runc.
    """

    def __init__(
        self,
        home: Path,
        owner: str,
        clock: Clock,
        engine_url: str | None = None,
        outputs: DockerOutputs | None = None,
        sandbox: Sandbox | None = None,
        policy: ImagePolicy | None = None,
        first_user: int = 0,
    ) -> None:
        self.sandbox = sandbox or Sandbox.DOCKER_RUNC
        kind = outputs or choose_outputs()
        self.has_volumes = kind is DockerOutputs.LOOP
        self._wanted = sandbox
        self._owner = owner
        self._clock = clock
        self._api, self._engine_url = connect(engine_url), engine_url
        policy, folder = policy or ImagePolicy(), home.with_name(f"{home.name}-images")
        cache = ImageCache(folder, policy.kept_bytes_max)
        self._images = ImageLoader(self._api, cache, owner)
        self._requirements = CudaRequirements(policy.driver)
        fetcher = RegistryImageFetcher(self._images, cache, folder, policy, self._requirements)
        self._fetches = ImageFetches(fetcher.fetch)
        self._logs = LogReaders(self._api)
        self._dirs = LeaseDirs(self._api, home, owner, kind)
        self._home = home
        self._engine: EngineFacts | None = None
        self._usage = ContainerUsage()
        self._users = SlotUsers(home, first_user)
        # Lease id -> since when the engine has refused to start it, by the clock.
        self._refused_since: dict[str, float] = {}
        self._pool = ThreadPoolExecutor(_CALLS_MAX, thread_name_prefix="docker")
        self.inside = DockerInside(
            self._api,
            lambda: self.sandbox,
            self._inspect,
            self._add_to_log,
            LeaseKeeper(home, PREFIX, engine_url),
        )
        # With more starts at once, each of them would only be slower.
        self._starting = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    async def check(self) -> None:
        """Asks the engine what it can do and settles on a sandbox.

        Raises Unavailable if the engine does not answer or does not have the sandbox that is
        wanted.
        """
        engine = await self._call(self._facts)
        self.sandbox = (
            Sandbox.DOCKER_RUNSC if engine.runtime == RUNTIME_GVISOR else Sandbox.DOCKER_RUNC
        )
        await self._call(self._images.tidy)

    async def fetch_image(
        self,
        lease_id: str,
        name: str,
        deadline_seconds: float,
        needs_gpu: bool = False,
        login: RegistryLogin | None = None,
    ) -> None:
        """Brings a registry's image into the engine; `stop` and `remove` cancel the fetch.

        Other leases do not wait for it.
        """
        if not await self._has(name):
            await self._fetches.fetch(
                lease_id, name, deadline_seconds, lambda: self._has(name), needs_gpu, login
            )

    def image_requirement(self, name: str) -> str:
        """Returns what a registry's image asks of the GPU driver, if it was read before."""
        return self._requirements.get(name)

    async def start(self, task: Task) -> None:
        """Loads the image, makes the lease's folders, creates and starts the container.

        Each step is skipped if it is already done.
        """
        check_lease_id(task.lease_id, "a container")
        if isinstance(task.image, str) and await self.state(task.lease_id) is TaskState.ABSENT:
            await self.fetch_image(task.lease_id, task.image, FETCH_SECONDS, bool(task.gpus))
        async with self._starting:
            await self._call(lambda: self._start_or_give_up(task))

    async def state(self, lease_id: str) -> TaskState:
        return await self._call(lambda: self._observe(lease_id)[0])

    async def wait(self, lease_id: str) -> Exit:
        """Waits for the exit and kills the container at its time limit.

        Raises Unavailable if there is no container, or the engine does not answer.
        """
        while True:
            state, found = await self._call(lambda: self._observe(lease_id))
            match state:
                case TaskState.ABSENT:
                    raise Unavailable(
                        f"lease {lease_id} has no container, or its container ended when the "
                        "engine stopped"
                    )
                case TaskState.EXITED:
                    assert found is not None, "an absent container has not exited"
                    self._logs.note_end(PREFIX + lease_id)
                    return await self._call(
                        lambda found=found: self._exit(lease_id, found)  # type: ignore[misc]
                    )
                case TaskState.RUNNING:
                    assert found is not None, "an absent container does not run"
                    await self._wait_on(lease_id, found)

    def logs(self, lease_id: str, follow: bool, at: int = 0) -> AsyncIterator[LogPiece]:
        name = PREFIX + lease_id
        return follow_log(
            self._log_file(lease_id),
            self._clock,
            lambda: follow and self._logs.is_reading(name),
            at,
        )

    async def collect(self, lease_id: str, destination: Path) -> None:
        found = await self._call(lambda: self._inspect(lease_id))
        if found is None:
            raise Unavailable(f"lease {lease_id} has no container")
        values = labels(found)
        caps = OutputCaps(int(values[LABEL_OUTPUT_BYTES]), int(values[LABEL_OUTPUT_INODES]))
        crash_point("container.before-collect")
        await self._call(lambda: self._dirs.collect(lease_id, PREFIX + lease_id, destination, caps))
        crash_point("container.after-collect")

    async def stop(self, lease_id: str) -> None:
        self._fetches.stop(lease_id)
        await self._call(lambda: self._ignoring_absent(lambda: self._stop(lease_id)))

    async def remove(self, lease_id: str) -> None:
        self._fetches.stop(lease_id)
        await self._call(lambda: self._remove(lease_id))

    async def leases(self) -> Sequence[str]:
        """Returns the lease ids of the engine's labels and of the folders.

        A crash may have left a container without a folder, or a folder without a container.
        """
        return await self._call(self._leases)

    async def close(self) -> None:
        self._fetches.close()
        self.inside.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._api.close()

    # ---------------------------------------------------------------------------- in worker threads

    async def _has(self, name: str) -> bool:
        return await self._call(lambda: self._images.has(name))

    async def _call(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, translated, work)

    def _exit(self, lease_id: str, found: Inspection) -> Exit:
        return self._usage.exit_of(lease_id, found, self._dirs.folder(lease_id))

    def _facts(self) -> EngineFacts:
        self._engine = read_engine_facts(self._api, self._wanted, self._home)
        return self._engine

    def _start_or_give_up(self, task: Task) -> None:
        """Raises EngineRefuses after too long: the lease would occupy its run slot."""
        lease_id = task.lease_id
        try:
            self._start(task)
        except docker.errors.APIError as error:
            now = self._clock.now()
            if now - self._refused_since.setdefault(lease_id, now) < REFUSING_SECONDS:
                raise
            self._remove(lease_id)
            raise EngineRefuses(
                Code.UNSUPPORTED,
                f"the container engine does not start it: {str(error.explanation)[:400]}",
            ) from error
        except (docker.errors.DockerException, requests.exceptions.RequestException):
            # The engine does not answer: it gets the whole time again once it does.
            self._refused_since.pop(lease_id, None)
            raise
        self._refused_since.pop(lease_id, None)

    def _start(self, task: Task) -> None:
        name, boot_id = PREFIX + task.lease_id, engine_boot_id(self._api)
        state, found = self._observe(task.lease_id)
        if state is not TaskState.ABSENT:
            return
        if found is not None and not is_of_boot(labels(found), boot_id):
            # The container ended because the engine stopped, so the program must run again.
            self._remove(task.lease_id)
        image = self._images.ensure(task.image, task.argv)
        if task.gpus:
            self._requirements.check(image_env(image.env))
        try:
            facts = replace(self._engine or self._facts(), boot_id=boot_id)
            mounts = self._prepare(task, facts, image)
            body = container_request(task, self._owner, facts, image, mounts)
            identity = self._create(body, name)
        except Refused:
            self._remove(task.lease_id)
            raise
        # gVisor has sockets of its own in its memory, and sets no limits of a group that exists.
        if facts.cgroup_parent and not runs_in_gvisor(task, facts):
            cgroups.limit_sockets(task.lease_id, identity, task.memory_bytes)
        self._logs.attach(name, self._log_file(task.lease_id))
        if task.is_rental:
            self.inside.keep_for(task.lease_id, START_SECONDS)
        crash_point("container.before-start")
        try:
            self._api.start(name)
        except docker.errors.APIError:
            if container_state(self._inspect(task.lease_id)) is not TaskState.EXITED:
                raise
            # The program is missing or not executable: exit code 127 or 126, as in a shell.
        crash_point("container.after-start")
        if task.is_rental:
            self._limit_terminals(task.lease_id)

    def _limit_terminals(self, lease_id: str) -> None:
        """Raises Unavailable, and removes the container, if it can take the machine's terminals."""
        try:
            with opened_container(self._inspect(lease_id)) as container:
                limit_terminals(container)
        except Unavailable:
            if container_state(self._inspect(lease_id)) is TaskState.RUNNING:
                self._remove(lease_id)
                raise
            # Not re-raised: its program has ended already.

    def _prepare(self, task: Task, engine: EngineFacts, image: ImageFacts) -> ContainerMounts:
        lease_id, name = task.lease_id, PREFIX + task.lease_id
        self._dirs.make_folder(lease_id)
        has_user = engine.has_user_namespaces and not runs_in_gvisor(task, engine)
        user = self._users.of(lease_id) if has_user else SHOWN_USER
        mounts = self._dirs.prepare(task, name, user)
        path = program_path(task, image)

        def program(words: Sequence[str]) -> bytes:
            return start_program(user, SHOWN_USER, filter_for(MACHINE), words, path)

        shared = {target: (text.encode(), 0o644) for target, text in FILES.items()}
        if task.is_rental:
            shared |= {
                SHELL_TARGET: (shell_script(task, image), 0o555),
                WAIT_TARGET: (waiting_program(), 0o555),
            }
            if has_user:
                shared[ENTER_TARGET] = program([SHELL_TARGET]), 0o555
        files = tuple(
            (self._dirs.write_file(lease_id, Path(target).name, content, mode), target)
            for target, (content, mode) in shared.items()
        )
        if task.secrets is not None:
            lend_secrets(task.secrets, user)
            files = (*files, (str(task.secrets), SECRETS_TARGET))
        if not has_user:
            return replace(mounts, files=files)
        start = self._dirs.write_file(lease_id, "start", program(program_words(task, image)), 0o555)
        return replace(mounts, files=files, start=start)

    def _create(self, body: dict[str, object], name: str) -> str:
        crash_point("container.before-create")
        try:
            self._api.create_container_from_config(body, name)  # type: ignore[no-untyped-call]
        except docker.errors.APIError as error:
            if error.status_code != 409:
                raise
            # it exists: a crash came between create and start
        crash_point("container.after-create")
        found = self._api.inspect_container(name)
        self._check_mounts(body, found)
        return str(found["Id"])

    def _check_mounts(self, body: dict[str, object], found: Inspection) -> None:
        """An image can make an engine add mounts. The caller removes the container."""
        added = unrequested_mounts(body, found)
        if added:
            raise Refused(
                Code.UNSUPPORTED,
                f"image: the engine would mount {added}, which the job did not ask for; build the "
                "image without VOLUME",
            )

    def _remove(self, lease_id: str) -> None:
        crash_point("container.before-remove")
        remove_container(self._api, PREFIX + lease_id)
        self._dirs.remove(lease_id, PREFIX + lease_id)
        cgroups.remove_lease_groups(lease_id)
        crash_point("container.after-remove")
        self._logs.forget(PREFIX + lease_id)
        self._usage.forget(lease_id)
        self._refused_since.pop(lease_id, None)

    def _stop(self, lease_id: str) -> None:
        """Not before the container's init hears it. gVisor keeps the signal for its own init."""
        found, limit = self._inspect(lease_id), time.monotonic() + HEARING_SECONDS
        if found is not None and found["HostConfig"].get("Runtime") != RUNTIME_GVISOR:
            while not hears_sigterm(process_id(found)) and time.monotonic() < limit:
                time.sleep(_HEARING_PAUSE)
        self._api.stop(PREFIX + lease_id, timeout=STOP_SECONDS)

    def _leases(self) -> Sequence[str]:
        found = self._api.containers(all=True, filters={"label": f"{LABEL_OWNER}={self._owner}"})
        held = {str(item["Labels"][LABEL_LEASE]) for item in found}
        folders = (
            {path.name for path in self._home.iterdir() if path.is_dir()}
            if self._home.is_dir()
            else set()
        )
        return sorted(held | folders)

    def _observe(self, lease_id: str) -> tuple[TaskState, Inspection | None]:
        """ABSENT if the container ended because the engine stopped. Asks on a new connection: an
        engine that is stopping still answers on those that it has.
        """
        found = self._inspect(lease_id)
        state = container_state(found)
        if state is not TaskState.EXITED or found is None:
            return state, found
        api = connect(self._engine_url, version=self._api.api_version)
        try:
            is_exit = is_of_boot(labels(found), engine_boot_id(api))
            return (state if is_exit else TaskState.ABSENT), found
        finally:
            api.close()

    def _inspect(self, lease_id: str) -> Inspection | None:
        try:
            found: Inspection = self._api.inspect_container(PREFIX + lease_id)
        except docker.errors.NotFound:
            return None  # there is no such container
        return found

    def _ignoring_absent(self, work: Callable[[], object]) -> None:
        try:
            work()
        except docker.errors.NotFound:
            pass  # there is nothing to stop
        except docker.errors.APIError as error:
            if error.status_code != 409:
                raise
            # it has ended meanwhile

    # -------------------------------------------------------------------------------------- waiting

    async def _wait_on(self, lease_id: str, found: Inspection) -> None:
        """Waits for end, time limit, or some seconds, and starts reading the log."""
        name = PREFIX + lease_id
        await self._call(
            lambda: self._ignoring_absent(lambda: self._logs.attach(name, self._log_file(lease_id)))
        )
        remaining = self._usage.remaining_seconds(lease_id, found, self._clock.now())
        if remaining <= 0:
            self._usage.mark_timed_out(lease_id)
            await self._call(lambda: self._kill(name))
            remaining = 1.0
        is_sampled = self._engine is not None and not self._engine.cgroup_parent
        if is_sampled:
            self._usage.sample(lease_id, found)
        await self._exit_within(
            name, min(remaining, _SAMPLE_SECONDS if is_sampled else _WAIT_SECONDS)
        )

    def _kill(self, name: str) -> None:
        try:
            self._api.kill(name, "SIGKILL")
        except docker.errors.APIError as error:
            # Not re-raised: engines also refuse when the container is just ending. `wait` looks
            # again within a second.
            log.debug("%s is not killed: %s", name, error.explanation)

    async def _exit_within(self, name: str, seconds: float) -> None:
        """Each wait has a thread of its own: many leases wait at once, and a cancelled wait must
        not keep the daemon.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(ended.set)
            except RuntimeError:
                pass  # the loop was closed, so the waiting task has ended

        def block() -> None:
            try:
                # The engine takes fractions of a second, although the types say otherwise.
                self._api.wait(name, timeout=max(seconds, 0.05))  # type: ignore[arg-type]
            except (requests.exceptions.RequestException, docker.errors.DockerException):
                # A time-out (the SDK has many errors for it), or the engine does not answer. The
                # caller asks the engine again.
                pass
            wake()

        threading.Thread(target=block, name=f"wait-{name}", daemon=True).start()
        await ended.wait()

    def _add_to_log(self, lease_id: str, text: str) -> None:
        self._logs.add(PREFIX + lease_id, text)

    def _log_file(self, lease_id: str) -> Path:
        return self._dirs.folder(lease_id) / "log"
