"""Byte streams over WebSocket: copies between two WebSockets, or between one and a socket.

A message is a piece of the stream and has no meaning of its own. What flows is SSH, so who copies
sees ciphertext.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web

MESSAGE_BYTES_MAX = 128 * 1024
PING_SECONDS = 15.0
CLOSE_SECONDS = 2.0
WebSocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def join(one: WebSocket, other: WebSocket) -> None:
    """Copies both ways until one of them ends. Both are closed then."""
    await _until_one_ends(_receive(one, other.send_bytes), _receive(other, one.send_bytes))
    await asyncio.gather(close(one), close(other))


async def bridge(ws: WebSocket, sock: socket.socket) -> None:
    """Copies both ways until one of them ends. Both are closed then."""
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await carry(ws, partial(loop.sock_recv, sock), partial(loop.sock_sendall, sock))
    finally:
        sock.close()


async def carry(
    ws: WebSocket,
    read: Callable[[int], Awaitable[bytes]],
    write: Callable[[bytes], Awaitable[None]],
) -> None:
    """Copies both ways until one side ends, and closes the WebSocket. `read` returns nothing at
    its end.
    """
    await _until_one_ends(_receive(ws, write), _send(ws, read))
    await close(ws)


async def close(ws: WebSocket) -> None:
    """Sends what is buffered, as far as the other side reads it in time."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await ws.close()
    except (TimeoutError, ConnectionError):
        return  # its owner closes the connection


async def _until_one_ends(*copies: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(item) for item in copies]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except ConnectionError:
        return  # the ordinary end of a stream
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _receive(ws: WebSocket, write: Callable[[bytes], Awaitable[None]]) -> None:
    while True:
        message = await ws.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return
        await write(message.data)


async def _send(ws: WebSocket, read: Callable[[int], Awaitable[bytes]]) -> None:
    while data := await read(MESSAGE_BYTES_MAX):
        await ws.send_bytes(data)
