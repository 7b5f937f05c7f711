"""Machines of a service without a market: each is a small server of OpenAI's form on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from quorate.base.errors import QuorateError
from quorate.serving.control import Machine
from quorate.serving.service_file import Revision

PIECES = 5


@dataclass(eq=False)
class LocalMachine:
    """One server. `manners`: refuses to load, hangs in answers, or breaks streams."""

    name: str
    revision: str
    price: int = 3_600_000
    load_seconds: float = 0.0
    is_broken: bool = False  # answers probes and nothing else
    piece_seconds: float = 0.01
    old_pieces: int = 0  # of a stream of HTTP/1.0, whose end is the connection's
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    stopped: bool = False
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _runner: web.AppRunner | None = None
    _why: str = ""

    async def url(self) -> str:
        await asyncio.sleep(self.load_seconds)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/health", self._health)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def why_waits(self) -> str:
        return "" if self._runner else "no provider has taken it yet"

    async def wait_end(self) -> str:
        await self._ended.wait()
        return self._why

    async def stop(self) -> None:
        self.stopped = True
        await self.kill("stopped")

    async def kill(self, why: str = "killed") -> None:
        """All its connections break at once."""
        self._why = why
        self._ended.set()
        if self._runner is not None:
            for connection in list(self._runner.server.connections if self._runner.server else ()):
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append(request.method + " " + request.path_qs)
        self.headers.append(dict(request.headers))
        if self.is_broken:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if request.content_type != "application/json":
            return web.Response(body=body, headers={"X-Machine": self.name})
        tree = json.loads(body)
        text = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        if not tree.get("stream"):
            await asyncio.sleep(self.piece_seconds)
            message = {"role": "assistant", "content": f"hello from {self.revision}"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 7, "completion_tokens": PIECES, "total_tokens": 12}
            return web.json_response({**text, "choices": [choice], "usage": usage})
        pieces = []
        for number in range(PIECES):
            choice = {"index": 0, "delta": {"content": f"{number} "}, "finish_reason": None}
            chunk = {**text, "object": "chat.completion.chunk", "choices": [choice]}
            pieces.append(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if self.old_pieces:
            assert request.transport is not None
            done = b"data: [DONE]\n\n" if self.old_pieces == PIECES else b""
            told = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
            request.transport.write(told + b"".join(pieces[: self.old_pieces]) + done)
            request.transport.close()
            return answer
        await answer.prepare(request)
        for piece in pieces:
            await answer.write(piece)
            await asyncio.sleep(self.piece_seconds)
        await answer.write(b"data: [DONE]\n\n")
        return answer


@dataclass
class LocalMachines:
    """Makes local machines. `failing`: so many starts fail first."""

    failing: int = 0
    load_seconds: float = 0.0
    made: list[LocalMachine] = field(default_factory=list)
    left: list[LocalMachine] = field(default_factory=list)  # by an earlier run

    async def start(self, revision: Revision) -> Machine:
        if self.failing > 0:
            self.failing -= 1
            raise QuorateError("no owner has one now")
        name, load = f"machine-{len(self.made) + 1}", self.load_seconds
        machine = LocalMachine(name, revision.digest, load_seconds=load)
        self.made.append(machine)
        return machine

    async def adopt(self) -> list[tuple[str, Machine]]:
        return [(it.revision, it) for it in self.left]

    def live(self) -> list[LocalMachine]:
        return [it for it in (*self.left, *self.made) if not it._ended.is_set()]


@asynccontextmanager
async def local_machines(**fields: float) -> AsyncIterator[LocalMachines]:
    machines = LocalMachines(**fields)  # type: ignore[arg-type]
    try:
        yield machines
    finally:
        for machine in machines.live():
            await machine.kill()
