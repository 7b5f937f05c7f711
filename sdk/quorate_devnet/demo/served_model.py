"""A small model behind `quorate serve`, under load, with a replica killed in the middle."""

import asyncio
import json
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from quorate_devnet.chain.free_port import free_port
from quorate_devnet.demo.rented_box import Desk, quorate_words, until
from quorate_protocol.refusals import Unavailable

if TYPE_CHECKING:
    from openai import AsyncOpenAI

REQUESTS, STREAMS, ONE_BY_ONE, REPLICAS = 2000, 40, 50, 3
AFTER_KILL, AT_ONCE = 200, 32
MODEL, PORT = "byte-model", 8000
MESSAGES = [{"role": "user", "content": "A rental"}]
SLOW, PAUSE_SECONDS = 160, 0.2  # tokens of streams that all replicas share
SLOWER = 600  # of those that are under way when a replica is killed: a busy engine needs seconds
SHORT, STEP = 16, 8  # tokens of other answers, and of a piece of a stream


@dataclass(slots=True)
class Served:
    """A service that runs, and what its callers saw. `openai` is OpenAI's own client."""

    desk: Desk
    url: str
    key: str
    session: aiohttp.ClientSession
    openai: "AsyncOpenAI"
    failed: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)  # seconds to the first token
    replicas_max: int = 0
    asked: int = 0

    async def status(self) -> dict[str, Any]:
        async with self.session.get(f"{self.url}/-/status") as answer:
            found: dict[str, Any] = await answer.json()
        return found

    async def in_flight(self) -> dict[str, int]:
        """By ready replica, the one with the most in front."""
        rows = (await self.status())["replicas"]
        found = {row["name"]: row["inFlight"] for row in rows if row["state"] == "ready"}
        self.replicas_max = max(self.replicas_max, len(found))
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    async def ready(self, count: int) -> None:
        async def are_ready() -> bool:
            return len(await self.in_flight()) >= count

        await until(are_ready)

    async def ask(self, url: str = "") -> float:
        """Returns its seconds. `url`: of a replica, past the gateway."""
        headers, began = {"Authorization": f"Bearer {self.key}"}, time.perf_counter()
        body = {"model": MODEL, "max_tokens": SHORT, "messages": MESSAGES}
        place = f"{url or self.url}/v1/chat/completions"
        try:
            async with self.session.post(place, json=body, headers=headers) as answer:
                text = await answer.text()
                if answer.status != 200 or not json.loads(text)["choices"]:
                    raise Unavailable(f"status {answer.status}: {text[:100]}")
        except (aiohttp.ClientError, Unavailable, ValueError) as error:
            self.failed.append(f"request: {error}")  # not re-raised: it is counted
        self.asked += not url
        return time.perf_counter() - began

    async def stream(self, tokens: int, pause: float) -> None:
        self.asked += 1
        began, pieces = time.perf_counter(), 0
        try:
            create: Any = self.openai.chat.completions.create  # its types are for literals
            found = await create(
                model=MODEL,
                messages=MESSAGES,
                max_tokens=tokens,
                stream=True,
                extra_body={"pause": pause},
            )
            async for _ in found:
                if not pieces:
                    self.first.append(time.perf_counter() - began)
                pieces += 1
            if pieces < tokens // STEP:
                raise Unavailable(f"{pieces} pieces only")
        except Exception as error:  # noqa: BLE001 - counted: the client raises errors of its own
            self.failed.append(f"{'stream' if pieces else 'silent stream'}: {error}")

    def slow_streams(self, tokens: int) -> "list[asyncio.Task[None]]":
        return [asyncio.create_task(self.stream(tokens, PAUSE_SECONDS)) for _ in range(STREAMS)]

    async def at_once(self, count: int) -> float:
        """Returns the seconds of so many requests, AT_ONCE at a time."""
        turns, began = iter(range(count)), time.monotonic()

        async def caller() -> None:
            for _ in turns:
                await self.ask()

        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
        return time.monotonic() - began


@asynccontextmanager
async def serving(
    desk: Desk, session: aiohttp.ClientSession, example: Path, price: str
) -> AsyncIterator[Served]:
    """Ended with the block, which ends its machines."""
    from openai import AsyncOpenAI

    shutil.copytree(example, desk.folder, dirs_exist_ok=True)
    file, log = desk.folder / "service.yaml", desk.marker.parent / "logs" / "serve.log"
    file.write_text(file.read_text().replace('max_price: "1"', f'max_price: "{price}"'))
    key = (await desk.quorate("keys", "create", "app", "--budget", "20"))["key"]
    words = quorate_words("serve", str(file), "--listen", "127.0.0.1:0", "--yes", "--json")
    with log.open("wb") as errors:
        async with desk.started(*words, errors=errors) as process:
            assert process.stdout is not None
            line = await process.stdout.readline()
            if not line:
                raise Unavailable(f"serve: {log.read_text()[-400:]}")
            url = json.loads(line)["url"]
            async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as openai:
                yield Served(desk, url, key, session, openai)


async def load(served: Served, kill: Callable[[str], Awaitable[None]]) -> dict[str, Any]:
    """All requests: one by one, streams, many at once, and streams of which a replica is killed."""
    added = await _added_ms(served)
    slow = served.slow_streams(SLOW)
    await served.ready(REPLICAS)
    await asyncio.gather(*slow)
    served.first.clear()
    for _ in range(ONE_BY_ONE):
        await served.stream(SHORT, 0)
    ttft = statistics.median(served.first)
    count = REQUESTS - served.asked - STREAMS - AFTER_KILL
    rps = count / await served.at_once(count)
    slow = served.slow_streams(SLOWER)

    async def are_open() -> bool:
        return sum((await served.in_flight()).values()) >= STREAMS

    await until(are_open)
    before = len(served.failed)
    victim, count_open = next(iter((await served.in_flight()).items()))
    await kill(victim)
    await served.at_once(AFTER_KILL)
    await asyncio.gather(*slow)
    cut = [text for text in served.failed[before:] if text.startswith("stream:")]
    return {
        "requests": served.asked,
        "failed": len(served.failed),
        "open_on_killed": count_open,
        "failed_otherwise": len(served.failed) - min(len(cut), count_open),
        "replicas_max": served.replicas_max,
        "added_p50_ms": added,
        "rps": round(rps, 1),
        "ttft_p50_ms": round(ttft * 1000, 2),
        "usd_per_mtok": (await served.status())["models"][MODEL]["usdPerMillionTokens"],
    }


async def _added_ms(served: Served) -> float:
    """What the gateway adds to a request over the same replica's forwarded port."""
    name, port = next(iter(await served.in_flight())), free_port("127.0.0.1")
    direct = f"http://127.0.0.1:{port}"

    async def answers() -> bool:
        try:
            async with served.session.get(f"{direct}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False  # not re-raised: the port is not forwarded yet

    found: dict[str, list[float]] = {direct: [], "": []}
    async with served.desk.started(*quorate_words("forward", name, f"{PORT}:{port}")):
        await until(answers)
        for _ in range(ONE_BY_ONE):
            for url, seconds in found.items():
                seconds.append(await served.ask(url))
    return round((statistics.median(found[""]) - statistics.median(found[direct])) * 1000, 2)
