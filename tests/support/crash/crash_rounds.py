"""Rounds of the crash matrix: which programs die at which points at once, and what happens
meanwhile.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from quorate.base.errors import UnavailableError
from quorate.client.base.client_ledger import Ledger
from quorate_devnet.market.config import PASSPHRASE, ExecutorChoice
from quorate_node.base import settings as provider_settings
from quorate_node.executors.docker.docker_executor import PREFIX
from quorate_node.executors.docker.engine_connection import connect
from quorate_node.executors.docker.lease_dirs import remove_container
from quorate_node.executors.sandbox.supervised_leases import kill_supervised, lease_state
from quorate_node.status.node_gateway import TOKEN_HEADER, control_token
from quorate_protocol.messages.ports import TaskState
from quorate_protocol.refusals import Code
from quorate_protocol.units import Price
from quorate_protocol.values import replace
from quorate_runtime.process.crash_points import CRASH_VARIABLE
from support.crash.crash_checks import Checks
from support.crash.crash_market import (
    END_SECONDS,
    POLL_SECONDS,
    REACH_SECONDS,
    Armed,
    CrashMarket,
    Target,
)
from support.crash.crash_plan import Scenario, Trial
from support.crash.points import Program

CLIENT = Path(__file__).with_name("crash_client.py")
PARALLEL = 3  # jobs in progress at one time
IN_A_ROW = 2  # deaths of one daemon in one round
START_SECONDS = 4.0
NO_IMAGE = "docker.io/library/none@sha256:" + "00" * 32
UP_SECONDS = 20.0  # seconds that a program may need to start on a busy machine
LIVES_MAX = 30  # with a pause after each, longer than a coordinator takes to start
LIVES_PAUSE_SECONDS = 1.0
CLIENT_SECONDS = 120.0
FUND_USD = 3
ANY = "any provider"
BUSY = (Scenario.JOBS,)


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round: the trials of each program, in order.

    `ANY` stands for the provider that reaches the point first.
    """

    scenario: Scenario
    dying: tuple[tuple[str, Trial], ...]

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials of the round."""
        return tuple(trial for _, trial in self.dying)

    def __str__(self) -> str:
        return f"{self.scenario}: " + ", ".join(
            f"{name} {trial.point}" for name, trial in self.dying
        )


def plan_rounds(
    wanted: Sequence[Trial], providers: Sequence[str], in_a_row: int = IN_A_ROW
) -> list[RoundPlan]:
    """Plans rounds: ordinary jobs kill all `providers` in one round.

    They also kill daemons several times. Other scenarios kill one provider at a time.
    """
    rounds = []
    for scenario in Scenario:
        left = {
            program: [
                each for each in wanted if each.program is program and each.scenario is scenario
            ]
            for program in Program
        }
        times = in_a_row if scenario in BUSY else 1
        seats = list(providers) * times if scenario in (*BUSY, Scenario.START) else [ANY]
        while any(left.values()):
            dying = [
                (name, left[Program.PROVIDER].pop(0)) for name in seats if left[Program.PROVIDER]
            ]
            for program in (*[Program.COORDINATOR] * times, Program.CLIENT):
                dying += [(program.value, left[program].pop(0))] if left[program] else []
            if not dying:
                break
            rounds.append(RoundPlan(scenario, tuple(dying)))
    return rounds


def rounds_of_turn(
    wanted: Sequence[Trial], providers: Sequence[str], context: int
) -> list[RoundPlan]:
    """Returns all rounds, ordered so that over several turns each comes first.

    Rounds in which every program dies are an exception.
    """
    rounds = plan_rounds(wanted, providers, 1)
    programs = {trial.program for trial in wanted}
    whole = [
        plan for plan in rounds if {trial.program for trial in plan.trials} == programs
    ] or rounds
    first, place = whole[context % len(whole)], context // len(whole) % len(rounds)
    return [first, *(plan for plan in (*rounds[place:], *rounds[:place]) if plan is not first)]


async def play(crash: CrashMarket, checks: Checks, plan: RoundPlan) -> set[Trial]:
    """Plays one round; returns the trials whose point was passed."""
    client = next((trial for name, trial in plan.dying if name == Program.CLIENT), None)
    targets = {
        trial: _target(crash, name, trial) for name, trial in plan.dying if trial is not client
    }
    first = {item.name: item for target in reversed(targets.values()) for item in target.armed}
    for item in first.values():
        crash.arm(item.name, item.point)
    died: list[Trial] = []
    deeds: list[Awaitable[None]] = [_live(crash, client, died)] if client else []
    seconds = REACH_SECONDS
    deeds += (
        [_act_until_hit(crash, checks, plan, list(targets.values()), seconds)]
        if plan.scenario in DEEDS
        else []
    )
    await crash.feed(
        list(targets.values()), PARALLEL if plan.scenario in BUSY else 1, deeds, seconds
    )
    return {trial for trial, target in targets.items() if target.is_hit} | set(died)


def _target(crash: CrashMarket, name: str, trial: Trial) -> Target:
    """Returns a target of one child, or of all providers."""
    return Target(
        [Armed(each, trial.point) for each in (crash.providers if name == ANY else [name])]
    )


# ------------------------------------------------------------------------------- what has to happen


async def _act_until_hit(
    crash: CrashMarket, checks: Checks, plan: RoundPlan, targets: Sequence[Target], seconds: float
) -> None:
    """Repeats the scenario's action until every target was hit."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and not all(target.is_hit for target in targets):
        try:
            await DEEDS[plan.scenario](crash, checks, plan)
        except (UnavailableError, aiohttp.ClientError):
            pass  # the program has just died, as intended
        await asyncio.sleep(POLL_SECONDS)


async def _stop(crash: CrashMarket, checks: Checks, plan: RoundPlan) -> None:
    """Stops a long job while it runs."""
    run = await crash.submit(seconds=30)
    if run is None:
        return
    crash.may_lapse.add(run.id)
    await _until_held(crash)
    await asyncio.sleep(0.5)
    await _retry_while_away(run.stop)
    await _retry_while_away(run.wait)


async def _retry_while_away(ask: Callable[[], Awaitable[object]]) -> None:
    """Repeats a request while the coordinator is away, as a client does."""
    async with asyncio.timeout(END_SECONDS):
        while True:
            try:
                await ask()
                return
            except UnavailableError:
                await asyncio.sleep(POLL_SECONDS)  # the coordinator is starting


async def _remove_run(crash: CrashMarket, checks: Checks, plan: RoundPlan) -> None:
    """Removes a job's container or process behind the provider's back."""
    run = await crash.submit(seconds=4)
    if run is None:
        return
    for home, lease in await _until_held(crash):
        await asyncio.to_thread(_remove, crash, home, lease)
    await _retry_while_away(run.wait)


async def _start(crash: CrashMarket, checks: Checks, plan: RoundPlan) -> None:
    """Kills and restarts every program that is to die during its start."""
    names = {
        name: trial
        for name, trial in plan.dying
        if name in crash.devnet.processes.children and crash.is_armed(name)
    }
    for name, trial in names.items():
        started = (
            crash.providers[-1] if trial.point.endswith("OfferReceived") else name
        )  # offers are sent when a provider starts
        crash.devnet.kill(started)
        crash.devnet.start(started)
    await _until_hit(crash, list(names))


async def _configure(crash: CrashMarket, checks: Checks, plan: RoundPlan) -> None:
    """Restarts a provider with another price."""
    name = next(name for name in crash.providers if crash.is_armed(name))
    home = _home(crash, name)
    told = provider_settings.read(home)
    provider_settings.write(home, replace(told, price=Price(told.price + 1)))
    crash.devnet.kill(name)
    crash.devnet.start(name)
    await _until_hit(crash, [name])


def _home(crash: CrashMarket, name: str) -> Path:
    return crash.devnet.config.provider_home(int(name.removeprefix("provider-")))


async def _decline(crash: CrashMarket, checks: Checks, plan: RoundPlan) -> None:
    """Makes the cheapest owner allow only one image, which no job uses, and later all images."""
    name = crash.providers[-1]
    home = _home(crash, name)
    told = provider_settings.read(home)
    lower = Price(told.price // 2)  # so that the coordinator asks it before others
    provider_settings.write(home, replace(told, images=(NO_IMAGE,), price=lower))
    await crash.renew(name)
    await _until_hit(
        crash,
        [item for item in (*crash.providers, Program.COORDINATOR.value) if crash.is_armed(item)],
        REACH_SECONDS,
    )
    provider_settings.write(home, told)
    await crash.renew(name)


async def _drain(crash: CrashMarket, checks: Checks, plan: RoundPlan) -> None:
    """Drains a provider and takes it back."""
    home = crash.devnet.config.provider_home(0)
    settings = provider_settings.read(home)
    url = f"http://{settings.listen_host}:{settings.listen_port}"
    headers = {TOKEN_HEADER: control_token(home)}
    for query in ("", "?off=1"):
        async with crash.session.post(f"{url}/v1/drain{query}", headers=headers) as response:
            assert response.status == 200, await response.text()


async def _reorganise(crash: CrashMarket, checks: Checks, plan: RoundPlan) -> None:
    """Makes the chain revert its newest block."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "anvil_reorg", "params": [1, []]}
    async with crash.session.post(crash.devnet.chain_url, json=body) as response:
        assert "error" not in await response.json()
    await asyncio.sleep(START_SECONDS / 2)


async def _session(crash: CrashMarket, checks: Checks, plan: RoundPlan) -> None:
    """Sends the client's newest session once more."""
    ledger = Ledger(crash.devnet.profiles[0].ledger_path)
    try:
        shown = ledger.newest_session(crash.devnet.coordinator)
    finally:
        ledger.close()
    if shown is not None:
        async with crash.session.post(
            f"{crash.devnet.coordinator_url}/v1/sessions", data=shown
        ) as response:
            assert response.status in (200, 503), await response.text()


DEEDS: dict[Scenario, Callable[[CrashMarket, Checks, RoundPlan], Awaitable[None]]] = {
    Scenario.STOP: _stop,
    Scenario.LOSE: _remove_run,
    Scenario.START: _start,
    Scenario.CONFIGURE: _configure,
    Scenario.DRAIN: _drain,
    Scenario.REORGANISE: _reorganise,
    Scenario.SESSION: _session,
    Scenario.DECLINE: _decline,
}


async def _until_hit(crash: CrashMarket, names: Sequence[str], seconds: float = UP_SECONDS) -> None:
    """Waits until all named children have died during their start, or have been up for long."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and any(crash.is_armed(name) for name in names):
        await asyncio.sleep(POLL_SECONDS)


async def _until_held(crash: CrashMarket) -> list[tuple[int, str]]:
    """Waits until something runs; returns all (provider index, lease) pairs."""
    while True:
        held = [
            (index, lease)
            for index in range(crash.devnet.config.providers)
            for lease in crash.leases(index)
        ]
        if held:
            return held
        await asyncio.sleep(POLL_SECONDS)


def _remove(crash: CrashMarket, index: int, lease: str) -> None:
    """Waits until the lease's program runs, then ends it from outside."""
    folder = crash.devnet.config.provider_home(index) / crash.devnet.executor.value / lease
    limit = time.monotonic() + START_SECONDS
    if crash.devnet.executor is not ExecutorChoice.DOCKER:
        while lease_state(folder) is not TaskState.RUNNING and time.monotonic() < limit:
            time.sleep(POLL_SECONDS)
        kill_supervised(folder)
        return
    api = connect()
    try:
        mine = {"name": PREFIX + lease, "status": "running"}
        while not api.containers(filters=mine) and time.monotonic() < limit:
            time.sleep(POLL_SECONDS)
        remove_container(api, PREFIX + lease)
    finally:
        api.close()


# -------------------------------------------------------------------------- a client that is killed


async def _live(crash: CrashMarket, trial: Trial, died: list[Trial]) -> None:
    """Runs a client session that is killed at a point, and restarts it until it has done
    everything.
    """
    profile = crash.devnet.profiles[1]
    crash.jobs += 1
    plan = {
        "home": str(profile.home),
        "password": PASSPHRASE,
        "name": f"client-{crash.jobs}",
        "image": str(crash.image),
    }
    if trial.scenario is Scenario.FUND:
        plan |= {"fund": str(FUND_USD), "chain": crash.devnet.chain_url}
    said = ""
    for _ in range(LIVES_MAX):
        env = os.environ | ({} if died else {CRASH_VARIABLE: trial.point})
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CLIENT),
            json.dumps(plan),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), CLIENT_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            break  # not re-raised: the lines below report it
        said = out.decode().strip()
        if process.returncode == 0:
            told = json.loads(said.splitlines()[-1])
            if trial.scenario is not Scenario.FUND and told["text"] not in (
                None,
                f"the answer of {plan['name']}",
            ):
                crash.violations.append(f"{plan['name']}: its output is {told['text']!r}")
            return
        if process.returncode == -signal.SIGKILL:
            died.append(trial)
        elif "UnavailableError" not in said and f"({Code.NO_OFFER})" not in said:
            # any other failure must come from a coordinator that is away or has just come back
            break
        else:
            await asyncio.sleep(LIVES_PAUSE_SECONDS)
    crash.violations.append(f"{plan['name']} after {trial.point}: {said[-600:]}")
