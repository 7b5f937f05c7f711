"""Tests a service's gateway and control loop, with replicas that are servers on loopback."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from openai import APIError, APIStatusError, AsyncOpenAI, RateLimitError

from bench import service as service_bench
from quorate.job.yaml_reader import load_yaml
from quorate.serving.control import Control
from quorate.serving.gateway import BODY_BYTES_MAX, Gateway
from quorate.serving.key_book import Alert, KeyBook
from quorate.serving.replicas import Health, Replicas, is_canary
from quorate.serving.service_file import Service, service_of
from support.clocks import SetClock
from support.markets.local_machines import PIECES, LocalMachine, LocalMachines, local_machines

SECONDS = 15.0
FILE = """
type: service
name: chat
image: model.tar
command: [serve, "{version}"]
max_price: "1"
service:
  probe: /health
  wait: 1m
  replicas: {{min: {least}, max: {most}, in_flight: 2, idle: {idle}}}
  {extra}
"""


def a_service(
    version: int = 1, least: int = 1, most: int = 4, idle: str = "5m", extra: str = ""
) -> Service:
    text = FILE.format(version=version, least=least, most=most, idle=idle, extra=extra)
    return service_of(load_yaml(text.encode()), Path("/nowhere"))


@dataclass
class Stage:
    """A running service, with a client of OpenAI's."""

    service: Service
    machines: LocalMachines
    replicas: Replicas
    keys: KeyBook
    control: Control
    gateway: Gateway
    url: str
    key: str
    alerts: list[Alert] = field(default_factory=list)
    next_service: list[Service] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def client(self, key: str = "") -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.url + "/v1", api_key=key or self.key, max_retries=0)

    async def ask(self, user: str = "u", key: str = "") -> str:
        async with self.client(key) as client:
            answer = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], user=user
            )
        return str(answer.choices[0].message.content)

    async def until(self, holds: Callable[[], object], what: str = "it holds") -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():
                await asyncio.sleep(0.02)

    def ready(self) -> list[LocalMachine]:
        names = [it.name for it in self.replicas.found if it.health is Health.READY]
        return [it for it in (*self.machines.left, *self.machines.made) if it.name in names]


@asynccontextmanager
async def running(
    tmp_path: Path,
    service: Service,
    machines: LocalMachines,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Stage]:
    replicas, keys = Replicas(), KeyBook(tmp_path)
    alerts: list[Alert] = []
    coming: list[Service] = []
    told: list[str] = []
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        control = Control(
            service,
            machines,
            replicas,
            session,
            load=lambda: coming.pop() if coming else None,
            tell=told.append,
            clock=clock,
            sleep=lambda seconds: asyncio.sleep(seconds / 20),
        )
        gateway = Gateway(
            service.name,
            keys,
            replicas,
            control.revisions,
            session,
            service.prices,
            service.wait_seconds,
            on_alert=alerts.append,
            clock=clock,
        )
        runner = web.AppRunner(gateway.app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        key = keys.create("app", 0.0)
        loop = asyncio.create_task(control.run())
        try:
            yield Stage(
                *(service, machines, replicas, keys, control, gateway, url, key),
                *(alerts, coming, told),
            )
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
            await runner.cleanup()
            keys.close()


async def test_openais_client_gets_answers_and_streams_and_is_metered(tmp_path: Path) -> None:
    async with local_machines() as machines, running(tmp_path, a_service(), machines) as stage:
        assert await stage.ask() == f"hello from {stage.service.stable.digest}"
        async with stage.client() as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            words = [piece.choices[0].delta.content async for piece in stream]
        assert words == [f"{number} " for number in range(PIECES)]
        [machine] = machines.made
        assert all("Authorization" not in headers for headers in machine.headers)
        summary = stage.gateway.meters.summary()["m"]
        assert (summary["requests"], summary["tokensIn"], summary["tokensOut"]) == (2, 7, 10)
        assert summary["firstByteMs"] is not None and summary["usdPerMillionTokens"] is not None
        [used] = stage.keys.usage()
        assert used.requests == 2 and used.spent > 0
        async with (
            aiohttp.ClientSession() as session,
            session.get(stage.url + "/metrics") as answer,
        ):
            told = await answer.text()
        assert 'quorate_service_tokens_total{direction="out",model="m"} 10.0' in told


async def test_any_path_and_body_passes_and_large_ones_are_refused(tmp_path: Path) -> None:
    async with local_machines() as machines, running(tmp_path, a_service(), machines) as stage:
        headers = {"X-Api-Key": stage.key}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.put(stage.url + "/any/%2Fpath?a=1&b=2", data=b"\0raw") as answer:
                assert (answer.status, await answer.read()) == (200, b"\0raw")
            assert machines.made[0].asked[-1] == "PUT /any/%2Fpath?a=1&b=2"
            large = io.BytesIO(bytes(BODY_BYTES_MAX + 1))
            async with session.post(stage.url + "/x", data=large) as answer:
                assert answer.status == 413 and "32 MiB" in await answer.text()
        async with aiohttp.ClientSession() as session, session.get(stage.url + "/x") as answer:
            assert answer.status == 401


async def test_a_budget_that_ends_in_a_stream_ends_the_stream_with_a_reason(tmp_path: Path) -> None:
    service = a_service(extra='prices: {output: "1"}')
    async with local_machines() as machines, running(tmp_path, service, machines) as stage:
        key = stage.keys.create("small", 0.0, budget="0.000003")
        async with stage.client(key) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            words = []
            with pytest.raises(Exception, match="budget of 0.000003 USD is used up"):
                async for piece in stream:
                    words.append(piece.choices[0].delta.content)
        assert 1 <= len(words) < PIECES
        with pytest.raises(RateLimitError, match="budget of"):
            await stage.ask(key=key)
        assert [alert.percent for alert in stage.alerts] == [50, 80, 100]


async def test_a_killed_replica_breaks_only_its_own_streams_and_is_replaced(tmp_path: Path) -> None:
    service = a_service(least=2, most=2)
    async with local_machines() as machines, running(tmp_path, service, machines) as stage:
        await stage.until(lambda: len(stage.ready()) == 2)
        for machine in machines.made:
            machine.piece_seconds = 0.2
        async with stage.client() as client:

            async def stream() -> int:
                answer = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], stream=True
                )
                return len([piece async for piece in answer])

            tasks = [asyncio.create_task(stream()) for _ in range(4)]
            await stage.until(lambda: sum(len(it.asked) for it in machines.made) == 4)
            await asyncio.sleep(0.3)
            await machines.made[0].kill()
            assert all([await stage.ask() for _ in range(4)])
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(end, APIError) for end in ends].count(True) == 2
        assert [end for end in ends if end == PIECES] == [PIECES, PIECES]
        await stage.until(lambda: len(stage.ready()) == 2)
        told = [line for line in stage.told if "machine-1 " in line or "machine-3 " in line]
        assert [" ".join(line.split()[:5]) for line in told] == [
            "replica machine-1 is ordered",
            "replica machine-1 is ready after",
            "replica machine-1 is over: killed",
            "replica machine-3 is ordered",
            "replica machine-3 is ready after",
        ]
        assert told[-1].endswith("at 3.60 USD an hour")


@pytest.mark.parametrize("has_all", [True, False])
async def test_a_stream_without_a_frame_is_whole_if_it_says_done(
    tmp_path: Path, has_all: bool
) -> None:
    async with local_machines() as machines, running(tmp_path, a_service(), machines) as stage:
        assert await stage.ask()
        machines.made[0].old_pieces = PIECES if has_all else 2
        words = []
        with nullcontext() if has_all else pytest.raises(APIError, match="before its answer did"):
            async with stage.client() as client:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], stream=True
                )
                async for piece in stream:
                    words.append(piece.choices[0].delta.content)
        assert len(words) == (PIECES if has_all else 2)


async def test_a_replica_that_waits_says_why(tmp_path: Path) -> None:
    async with (
        local_machines(load_seconds=3.0) as machines,
        running(tmp_path, a_service(), machines) as stage,
    ):
        line = "replica machine-1 waits: no provider has taken it yet"
        await stage.until(lambda: line in stage.told)


async def test_a_replica_that_only_answers_probes_is_replaced(tmp_path: Path) -> None:
    service = a_service(least=2, most=2)
    async with local_machines() as machines, running(tmp_path, service, machines) as stage:
        await stage.until(lambda: len(stage.ready()) == 2)
        liar = machines.made[0]
        liar.is_broken = True
        assert all([await stage.ask() for _ in range(12)])
        await stage.until(lambda: liar.stopped and len(stage.ready()) == 2)


async def test_replicas_follow_requests_from_zero_and_back(tmp_path: Path) -> None:
    service = a_service(least=0, most=3, idle="1s")
    async with (
        local_machines(load_seconds=0.2) as machines,
        running(tmp_path, service, machines) as stage,
    ):
        await stage.until(lambda: machines.made and not machines.live())
        answers = await asyncio.gather(*(stage.ask() for _ in range(6)))
        assert len(answers) == 6 and len(machines.made) >= 3
        assert len(machines.live()) <= 3
        await stage.until(lambda: not machines.live())


async def test_an_update_goes_to_new_replicas_once_they_are_ready(tmp_path: Path) -> None:
    old, new = a_service(version=1), a_service(version=2)
    async with local_machines() as machines, running(tmp_path, old, machines) as stage:
        assert await stage.ask() == f"hello from {old.stable.digest}"
        machines.failing, machines.load_seconds = 1, 0.2
        stage.next_service.append(new)
        answers = []
        while not answers or answers[-1] != f"hello from {new.stable.digest}":
            answers.append(await stage.ask())
        assert answers[0] == f"hello from {old.stable.digest}"
        await stage.until(lambda: machines.made[0].stopped)
        assert [it.revision for it in machines.live()] == [new.stable.digest]


async def test_short_requests_keep_their_replicas_and_let_an_update_and_its_canary_come(
    tmp_path: Path,
) -> None:
    """Each ends between two looks. The old replicas are more than these requests need."""
    clock = SetClock()
    old = a_service(least=0, idle="2s")
    new = a_service(
        version=2, least=0, idle="2s", extra="canary: {share: 30%, command: [serve, new]}"
    )
    async with (
        local_machines(load_seconds=0.2) as machines,
        running(tmp_path, old, machines, clock) as stage,
    ):
        await asyncio.gather(*(stage.ask() for _ in range(6)))
        await stage.until(lambda: len(stage.ready()) == 3)
        stage.next_service.append(new)
        assert new.canary is not None
        missing, came = {new.stable.digest, new.canary.digest}, list[str]()
        async with asyncio.timeout(SECONDS):
            while missing - set(came[-40:]):
                came.append((await stage.ask(f"user-{len(came) % 20}")).split()[-1])
                clock.at += 0.04
                await asyncio.sleep(0.02)
        made, user = len(machines.made), "user-0"
        assert not is_canary(user, new.share)
        for _ in range(25):
            assert await stage.ask(user)
            clock.at += 0.1
            await asyncio.sleep(0.08)
        ready = {it.revision for it in stage.ready()}
        assert ready == {new.stable.digest, new.canary.digest} and len(machines.made) == made


async def test_a_canary_takes_its_share_of_the_users_and_keeps_them(tmp_path: Path) -> None:
    service = a_service(extra="canary: {share: 30%, command: [serve, new]}")
    assert service.canary is not None
    async with local_machines() as machines, running(tmp_path, service, machines) as stage:
        await stage.until(lambda: len(stage.ready()) == 2)
        users = [f"user-{number}" for number in range(40)]
        first = [await stage.ask(user) for user in users]
        assert first == [await stage.ask(user) for user in users]
        assert 5 <= first.count(f"hello from {service.canary.digest}") <= 22
        [canary] = [it for it in machines.made if it.revision == service.canary.digest]
        await canary.kill()
        assert await stage.ask(users[0])


async def test_a_gateway_that_starts_again_adopts_its_machines(tmp_path: Path) -> None:
    service = a_service()
    async with local_machines() as machines:
        machines.left.append(LocalMachine("machine-0", service.stable.digest))
        async with running(tmp_path, service, machines) as stage:
            assert await stage.ask() and not machines.made


async def test_without_a_replica_a_request_is_told_so_and_others_wait(tmp_path: Path) -> None:
    service = replace(a_service(), wait_seconds=0.2)
    async with local_machines(failing=1) as machines, running(tmp_path, service, machines) as stage:
        with pytest.raises(APIStatusError, match="no replica of chat answers now"):
            await stage.ask()
        stage.gateway.wait_seconds = SECONDS
        assert await stage.ask()


async def test_a_caller_that_leaves_frees_its_replica(tmp_path: Path) -> None:
    async with local_machines() as machines, running(tmp_path, a_service(), machines) as stage:
        assert await stage.ask()
        machines.made[0].piece_seconds = 5.0
        async with aiohttp.ClientSession() as session:
            body = json.dumps({"model": "m", "stream": True, "messages": []}).encode()
            headers = {"Authorization": f"Bearer {stage.key}", "Content-Type": "application/json"}
            async with session.post(stage.url + "/v1/x", data=body, headers=headers) as answer:
                await answer.content.readany()
        await stage.until(lambda: all(it.in_flight == 0 for it in stage.replicas.found))


async def test_the_benchmark_of_the_gateway_runs() -> None:
    figures = await service_bench.measure(40)
    assert figures["requests"] == 40 and figures["requests_per_second"] > 0
