"""An MCP server over standard input and output. When it ends, so do all its sandboxes."""

import asyncio
import inspect
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from threading import Thread
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from quorate.base.errors import QuorateError
from quorate.sandboxes.tools import Tools

INSTRUCTIONS = (
    "Sandboxes are rented machines that cost money. "
    "Ask quote, then create_sandbox, and destroy it when you are done."
)
READ_BYTES = 64 << 10


async def serve(tools: Tools) -> list[BaseException]:
    """Answers until its input ends, or SIGTERM or SIGINT comes. Then it destroys everything, and
    returns what failed.
    """
    server = _Server("quorate", instructions=INSTRUCTIONS, log_level="WARNING")
    for name, method in inspect.getmembers(tools, inspect.ismethod):
        if not name.startswith("_"):
            server.add_tool(_answering(method))
    end = _ending_stdin()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        await server.run_stdio_async()
    finally:
        failed = await tools._destroy_all()
    return failed


class _Server(MCPServer):
    async def call_tool(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Wrong arguments get one sentence that names the first."""
        try:
            return await super().call_tool(name, *args, **kwargs)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            wrong = error.__cause__.errors(include_url=False)[0]
            field = ".".join(str(item) for item in wrong["loc"])
            raise ToolError(f"{field}: {wrong['msg']}; see the input schema of {name}") from error


def _answering(
    method: Callable[..., Awaitable[dict[str, Any]]],
) -> Callable[..., Awaitable[dict[str, Any]]]:
    @wraps(method)
    async def answer(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return await method(*args, **kwargs)
        except QuorateError as error:
            raise ToolError(str(error)) from error

    return answer


def _ending_stdin() -> Callable[[], None]:
    """Puts a socket in the place of standard input, for a read of that cannot be interrupted.
    Returns what ends it.
    """
    ours, theirs = socket.socketpair()

    def end() -> None:
        try:
            ours.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # not re-raised: it has ended

    def copy() -> None:
        try:
            while data := os.read(0, READ_BYTES):
                ours.sendall(data)
        except OSError:
            pass  # not re-raised: either side is gone
        end()

    Thread(target=copy, name="standard input", daemon=True).start()
    sys.stdin = theirs.makefile("r", encoding="utf-8")
    return end
