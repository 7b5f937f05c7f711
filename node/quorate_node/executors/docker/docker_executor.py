"""The default executor: hardened containers of a Docker engine. The SDK blocks, so each call
runs in a worker thread.

The container's name is the lease id and its labels are the record: a daemon that restarts, or a
second executor object, finds everything by asking the engine. Nothing is stopped when the daemon
ends.
"""

import asyncio
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import docker.errors
import requests

from quorate_node.executors import cgroups
from quorate_node.executors.cgroups import Counters
from quorate_node.executors.docker.boot_id import engine_life, is_of_life
from quorate_node.executors.docker.container_logs import LogReaders
from quorate_node.executors.docker.engine_connection import connect
from quorate_node.executors.docker.hardened_profile import (
    LABEL_LEASE,
    LABEL_MAX_DURATION,
    LABEL_OUTPUT_BYTES,
    LABEL_OUTPUT_INODES,
    LABEL_OWNER,
    RUNTIME_GVISOR,
    EngineFacts,
    container_request,
    strange_mounts,
)
from quorate_node.executors.docker.image_cache import KeptImages
from quorate_node.executors.docker.image_fetches import ImageFetches
from quorate_node.executors.docker.image_loader import Fetcher, ImageRules, Images
from quorate_node.executors.docker.lease_dirs import (
    HOLD_SUFFIX,
    LeasePlaces,
    OutputKind,
    choose_kind,
    remove_container,
)
from quorate_node.executors.elapsed import Seen, look, since_boot
from quorate_node.executors.exit_status import exit_status
from quorate_node.executors.log_file import follow_file
from quorate_node.executors.outputs import OutputCaps
from quorate_protocol.ports import Clock, EngineRefuses, Exit, Sandbox, Task, TaskState, Usage
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Milliseconds, Seconds
from quorate_runtime.process.crash_points import crash_point

_logger = logging.getLogger(__name__)

PREFIX = "quorate-"
STOP_SECONDS = 5
REFUSING_SECONDS = (
    30.0  # an engine that is restarted, or a disk that is cleaned up, is through by then
)
FETCH_SECONDS = 600.0  # for an image that went between its lease's fetch and its start
_LEASE_ID = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_.-]{0,99}")
_WAIT_SECONDS = 30.0
_SAMPLE_SECONDS = 0.5
_CALLS_MAX = 16
_COULD_NOT_START = (126, 127)
_SECCOMP = Path(__file__).parents[1] / "seccomp.json"
Result = TypeVar("Result")
Inspection = Mapping[str, "Mapping[str, object]"]


class DockerExecutor:
    """`Executor` on a Docker engine. `home` holds one folder per lease; `owner` labels this
    daemon's containers.

    `sandbox` None: gVisor where the engine has it, else runc.
    """

    def __init__(
        self,
        home: Path,
        owner: str,
        clock: Clock,
        engine_url: str | None = None,
        outputs: OutputKind | None = None,
        sandbox: Sandbox | None = None,
        rules: ImageRules | None = None,
    ) -> None:
        self.sandbox = sandbox or Sandbox.DOCKER_RUNC
        self._wanted = sandbox
        self._owner = owner
        self._clock = clock
        self._api, self._engine_url = connect(engine_url), engine_url
        rules, folder = rules or ImageRules(), home.with_name(f"{home.name}-images")
        kept = KeptImages(folder, rules.kept_bytes_max)
        self._images = Images(self._api, kept)
        self._fetches = ImageFetches(Fetcher(self._images, kept, folder, rules).fetch)
        self._logs = LogReaders(self._api)
        self._places = LeasePlaces(self._api, home, owner, outputs or choose_kind())
        self._home = home
        self._engine: EngineFacts | None = None
        self._sampled: dict[str, Counters] = {}
        self._seen: dict[str, Seen] = {}  # leases whose process ran when we looked
        self._failing: dict[
            str, float
        ] = {}  # leases that the engine does not start, and since when
        self._overdue: set[str] = set()  # leases that were ended because their time was over
        self._pool = ThreadPoolExecutor(_CALLS_MAX, thread_name_prefix="docker")
        self._starting = asyncio.Semaphore(
            2 * (os.cpu_count() or 1)
        )  # more at once only lengthens each start

    async def check(self) -> None:
        """Asks the engine what it can do, and settles on a sandbox. Unavailable when it has not
        the one that is wanted.
        """
        engine = await self._call(self._facts)
        self.sandbox = (
            Sandbox.DOCKER_RUNSC if engine.runtime == RUNTIME_GVISOR else Sandbox.DOCKER_RUNC
        )

    async def fetch_image(self, lease_id: str, name: str, deadline_seconds: float) -> None:
        """Brings a registry's image into the engine; `stop` and `remove` end it. Other leases do
        not wait for it.
        """
        if not await self._has(name):
            await self._fetches.fetch(lease_id, name, deadline_seconds, lambda: self._has(name))

    async def start(self, task: Task) -> None:
        """Loads the image, makes the lease's folders, creates and starts the container: each
        step only if it is not done.
        """
        if not _LEASE_ID.fullmatch(task.lease_id):
            raise Refused(
                Code.MALFORMED, f"lease_id: {task.lease_id[:100]!r} cannot name a container"
            )
        if isinstance(task.image, str) and await self.state(task.lease_id) is TaskState.ABSENT:
            await self.fetch_image(task.lease_id, task.image, FETCH_SECONDS)
        async with self._starting:
            await self._call(lambda: self._start_in_time(task))

    async def state(self, lease_id: str) -> TaskState:
        """What the engine says."""
        return await self._call(lambda: self._observe(lease_id)[0])

    async def wait(self, lease_id: str) -> Exit:
        """Ends the container when its time is over. Unavailable when there is none, or the
        engine is away.
        """
        while True:
            state, found = await self._call(lambda: self._observe(lease_id))
            match state:
                case TaskState.ABSENT:
                    raise Unavailable(
                        f"lease {lease_id} has no container, or one that ended with the engine"
                    )
                case TaskState.EXITED:
                    assert found is not None, "an absent container has not exited"
                    return await self._call(lambda found=found: self._exit(lease_id, found))  # type: ignore[misc]
                case TaskState.RUNNING:
                    assert found is not None, "an absent container does not run"
                    await self._wait_on(lease_id, found)

    async def logs(self, lease_id: str, follow: bool) -> AsyncIterator[bytes]:
        """The captured file; with `follow` until the container has ended."""
        name = PREFIX + lease_id
        async for chunk in follow_file(
            self._log_file(lease_id), self._clock, lambda: follow and self._logs.is_reading(name)
        ):
            yield chunk

    async def collect(self, lease_id: str, destination: Path) -> None:
        """Copies the outputs within the caps of the task, which the container's labels keep."""
        found = await self._call(lambda: self._inspect(lease_id))
        if found is None:
            raise Unavailable(f"lease {lease_id} has no container")
        labels = _labels(found)
        caps = OutputCaps(int(labels[LABEL_OUTPUT_BYTES]), int(labels[LABEL_OUTPUT_INODES]))
        crash_point("container.before-collect")
        await self._call(
            lambda: self._places.collect(lease_id, PREFIX + lease_id, destination, caps)
        )
        crash_point("container.after-collect")

    async def stop(self, lease_id: str) -> None:
        """SIGTERM to the program, SIGKILL 5 s later."""
        self._fetches.stop(lease_id)
        await self._call(
            lambda: self._ignoring_absent(
                lambda: self._api.stop(PREFIX + lease_id, timeout=STOP_SECONDS)
            )
        )

    async def remove(self, lease_id: str) -> None:
        """Removes container, volume, mounts, folder and control groups."""
        self._fetches.stop(lease_id)
        await self._call(lambda: self._remove(lease_id))

    async def leases(self) -> Sequence[str]:
        """From the engine's labels and the folders: a crash may have left either without the
        other.
        """
        return await self._call(self._leases)

    async def close(self) -> None:
        """Closes the connections; containers run on."""
        self._fetches.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._api.close()

    # ---------------------------------------------------------------------------- in worker threads

    async def _has(self, name: str) -> bool:
        return await self._call(lambda: self._images.has(name))

    async def _call(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, _translated, work)

    def _facts(self) -> EngineFacts:
        info = self._api.info()
        if "name=seccomp" not in ",".join(info.get("SecurityOptions") or ()):
            raise Unavailable(
                "the container engine has no seccomp; strangers' programs are not run without it",
                3600.0,
            )
        runtime = self._runtime(info.get("Runtimes") or {})
        parent = cgroups.PARENT if info.get("CgroupDriver") == "cgroupfs" else ""
        self._engine = EngineFacts(
            _SECCOMP.read_text(), parent, runtime, bool(info.get("CDISpecDirs"))
        )
        return self._engine

    def _runtime(self, known: Mapping[str, Mapping[str, object]]) -> str:
        """gVisor's name where it is registered so that jobs have a loopback device, "" for runc.
        Unavailable names what is wanted.
        """
        problem = gvisor_problem(known)
        if self._wanted is Sandbox.DOCKER_RUNSC and problem:
            raise Unavailable(problem, 3600.0)
        if self._wanted is None and problem and RUNTIME_GVISOR in known:
            _logger.warning("jobs run under runc: %s", problem)
        return "" if problem or self._wanted is Sandbox.DOCKER_RUNC else RUNTIME_GVISOR

    def _start_in_time(self, task: Task) -> None:
        """An engine that answers, and says no for long enough, says it to the job: its slot is
        not kept for the whole duration.
        """
        try:
            self._start(task)
        except docker.errors.APIError as error:
            since, now = (
                self._failing.setdefault(task.lease_id, self._clock.now()),
                self._clock.now(),
            )
            if now - since < REFUSING_SECONDS:
                raise
            self._remove(task.lease_id)
            raise EngineRefuses(
                Code.UNSUPPORTED,
                f"the container engine does not start it: {str(error.explanation)[:400]}",
            ) from error
        except (docker.errors.DockerException, requests.exceptions.RequestException):
            self._failing.pop(
                task.lease_id, None
            )  # it is away: once it is back it gets its time again
            raise
        self._failing.pop(task.lease_id, None)

    def _start(self, task: Task) -> None:
        name, life = PREFIX + task.lease_id, engine_life(self._api)
        state, found = self._observe(task.lease_id)
        if state is not TaskState.ABSENT:
            return
        if found is not None and not is_of_life(_labels(found), life):
            self._remove(
                task.lease_id
            )  # it ended with the engine, in the middle of what it wrote: the program runs anew
        image = self._images.ensure(task.image, task.argv)
        try:
            places = self._places.prepare(task, name)
            facts = replace(self._engine or self._facts(), life=life)
            self._create(container_request(task, self._owner, facts, image, places), name)
        except Refused:
            self._remove(task.lease_id)
            raise
        self._logs.attach(name, self._log_file(task.lease_id))
        crash_point("container.before-start")
        try:
            self._api.start(name)
        except docker.errors.APIError:
            found = self._inspect(task.lease_id)
            if _state(found) is not TaskState.EXITED:
                raise
            # the program could not be started (not there, not executable): as with a shell, that is
            # its exit status 127 or 126
        crash_point("container.after-start")

    def _create(self, body: dict[str, object], name: str) -> None:
        crash_point("container.before-create")
        try:
            self._api.create_container_from_config(body, name)  # type: ignore[no-untyped-call]
        except docker.errors.APIError as error:
            if error.status_code != 409:
                raise
            # it exists: a crash came between create and start
        crash_point("container.after-create")
        self._check_mounts(body, name)

    def _check_mounts(self, body: dict[str, object], name: str) -> None:
        """Whatever an image can make an engine add: what was made is looked at before it runs.
        The caller removes what is refused.
        """
        strange = strange_mounts(body, self._api.inspect_container(name))
        if strange:
            raise Refused(
                Code.UNSUPPORTED,
                (
                    f"image: the engine mounts {strange} for it, which was not asked; build it "
                    f"without VOLUME"
                ),
            )

    def _exit(self, lease_id: str, found: Inspection) -> Exit:
        state = found["State"]
        limit = Seconds(int(_labels(found)[LABEL_MAX_DURATION]))
        started, finished = _moment(state["StartedAt"]), _moment(state["FinishedAt"])
        seen = self._seen.get(lease_id)
        ran = seen.ran(finished - started, since_boot()) if seen and started else finished - started
        if lease_id in self._overdue:
            ran = max(ran, float(limit))
        wall = Milliseconds(max(0, round(ran * 1000)) if started else 0)
        counters = cgroups.lease_counters(lease_id).at_least(
            self._sampled.get(lease_id, Counters())
        )
        status = exit_status(_exit_code(state), wall, limit, bool(state.get("OOMKilled")))
        usage = Usage(
            Milliseconds(min(wall, limit * 1000)), counters.cpu_ms, counters.peak_memory_bytes
        )
        return Exit(status, usage)

    def _remove(self, lease_id: str) -> None:
        crash_point("container.before-remove")
        remove_container(self._api, PREFIX + lease_id)
        self._places.remove(lease_id, PREFIX + lease_id)
        cgroups.remove_lease_groups(lease_id)
        crash_point("container.after-remove")
        self._logs.forget(PREFIX + lease_id)
        self._sampled.pop(lease_id, None)
        self._seen.pop(lease_id, None)
        self._overdue.discard(lease_id)
        self._failing.pop(lease_id, None)

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
        """State and record. A container that ended with an earlier life of the engine is as good
        as none: its program did not end.

        The life is asked for on a connection of its own: an engine that is stopping still
        answers on those that it has.
        """
        found = self._inspect(lease_id)
        state = _state(found)
        if state is not TaskState.EXITED or found is None:
            return state, found
        api = connect(self._engine_url, version=self._api.api_version)
        try:
            return (
                state if is_of_life(_labels(found), engine_life(api)) else TaskState.ABSENT
            ), found
        finally:
            api.close()

    def _inspect(self, lease_id: str) -> Inspection | None:
        try:
            found: Inspection = self._api.inspect_container(PREFIX + lease_id)
        except docker.errors.NotFound:
            return None  # the answer to the question
        return found

    def _ignoring_absent(self, work: Callable[[], object]) -> None:
        try:
            work()
        except docker.errors.NotFound:
            pass  # what is not there need not be stopped
        except docker.errors.APIError as error:
            if error.status_code != 409:
                raise
            # it has ended meanwhile

    # -------------------------------------------------------------------------------------- waiting

    async def _wait_on(self, lease_id: str, found: Inspection) -> None:
        """Waits until the container ends, its time is over, or a while has passed; reads its log
        if nobody does.
        """
        name = PREFIX + lease_id
        await self._call(
            lambda: self._ignoring_absent(lambda: self._logs.attach(name, self._log_file(lease_id)))
        )
        limit = int(_labels(found)[LABEL_MAX_DURATION])
        seen = look(_pid(found))
        if seen is not None:
            self._seen[lease_id] = seen
        told = self._clock.now() - _moment(found["State"]["StartedAt"])
        remaining = limit - (seen.age(told) if seen else told)
        if remaining <= 0:
            self._overdue.add(lease_id)
            await self._call(lambda: self._kill(name))
            remaining = 1.0
        is_sampled = self._engine is not None and not self._engine.cgroup_parent
        if is_sampled:
            self._sample(lease_id, found)
        await self._exit_within(
            name, min(remaining, _SAMPLE_SECONDS if is_sampled else _WAIT_SECONDS)
        )

    def _kill(self, name: str) -> None:
        try:
            self._api.kill(name, "SIGKILL")
        except docker.errors.APIError as error:
            # Not re-raised: engines say so of one that is ending just now, too. Whoever waits looks
            # again in a second.
            _logger.debug("%s is not killed: %s", name, error.explanation)

    def _sample(self, lease_id: str, found: Inspection) -> None:
        self._sampled[lease_id] = cgroups.process_counters(_pid(found)).at_least(
            self._sampled.get(lease_id, Counters())
        )

    async def _exit_within(self, name: str, seconds: float) -> None:
        """Returns at the exit or when the time is over. A thread of its own, not one of the
        pool: many leases wait at once, and a cancelled wait must not keep the daemon from
        ending.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(ended.set)
            except RuntimeError:
                pass  # the loop was closed: nobody waits any more

        def block() -> None:
            try:
                # fractions work
                self._api.wait(name, timeout=max(seconds, 0.05))  # type: ignore[arg-type]
            except (requests.exceptions.RequestException, docker.errors.DockerException):
                # a time-out (which the SDK gives many names) or an engine that is away: the caller
                # asks the engine again
                pass
            tell()

        threading.Thread(target=block, name=f"wait-{name}", daemon=True).start()
        await ended.wait()

    def _log_file(self, lease_id: str) -> Path:
        return self._places.folder(lease_id) / "log"


def _translated(work: Callable[[], Result]) -> Result:
    """Errors of the SDK as ours: whatever the engine refuses or fails at is the world failing;
    rules were checked before.
    """
    try:
        return work()
    except docker.errors.APIError as error:
        raise Unavailable(f"the container engine: {error.explanation}", 2.0) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        remedy = "start it, or give this user access to its socket"
        raise Unavailable(
            f"the container engine cannot be reached ({error}); {remedy}", 5.0
        ) from error


def gvisor_problem(known: Mapping[str, Mapping[str, object]]) -> str:
    """Why the engine's runtimes cannot run jobs under gVisor; "" when they can.

    With a network stack of the container's (its default) gVisor takes the loopback device as the
    engine left it, which is down.
    """
    if RUNTIME_GVISOR not in known:
        return (
            f"the container engine has no runtime {RUNTIME_GVISOR}; install gVisor and register it"
        )
    arguments = known[RUNTIME_GVISOR].get("runtimeArgs") or []
    assert isinstance(arguments, list), "the engine lists a runtime's arguments"
    if "network=none" not in [str(item).lstrip("-") for item in arguments]:
        return (
            f"the engine's runtime {RUNTIME_GVISOR} is registered without --network=none, so "
            f"programs would have no loopback device"
        )
    return ""


def _state(found: Inspection | None) -> TaskState:
    if found is None:
        return TaskState.ABSENT
    match found["State"]["Status"]:
        case "running" | "paused" | "restarting":
            return TaskState.RUNNING
        case "exited" | "dead":
            return TaskState.EXITED
        case "created" if found["State"]["ExitCode"] in _COULD_NOT_START:
            return TaskState.EXITED
        case _:
            return (
                TaskState.ABSENT
            )  # created but never started (a crash came between), or being removed


def _exit_code(state: Mapping[str, object]) -> int:
    code = state["ExitCode"]
    assert isinstance(code, int), "the engine gives the exit code as a number"
    return code


def _pid(found: Inspection) -> int:
    pid = found["State"]["Pid"]
    assert isinstance(pid, int), "the engine gives the process id as a number"
    return pid


def _labels(found: Inspection) -> Mapping[str, str]:
    labels = found["Config"]["Labels"]
    assert isinstance(labels, dict), "every container of ours has labels"
    return labels


def _moment(text: object) -> float:
    """The engine's RFC 3339 time with nanoseconds as Unix seconds; 0 for its zero time."""
    value = str(text)
    return 0.0 if value.startswith("0001-") else datetime.fromisoformat(value).timestamp()


__all__ = ["HOLD_SUFFIX", "PREFIX", "DockerExecutor"]
