"""Sends one JSON-RPC request to a chain node over aiohttp, with a deadline and a size limit.

There are two kinds of failure (see `Rpc.request`). The provider of `web3_provider` sends its
requests through it.
"""

import asyncio
import itertools
from collections.abc import Callable

import aiohttp

from quorate_protocol.codec.canonical import loads
from quorate_protocol.refusals import Unavailable
from quorate_runtime.chain.types import Json
from quorate_runtime.http.client_sessions import read_bounded

ANSWER_BYTES_MAX = 32 << 20
READ_TRIES = 3
RETRY_SECONDS = 0.2

_INTERNAL_ERROR = -32603  # JSON-RPC: the node failed; the request may be sound


class RpcFailure(Exception):
    """The node answered with an error. `data` is the revert output of a failed call, else b""."""

    def __init__(self, code: int, message: str, data: bytes = b"") -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class Rpc:
    """A chain node at a URL. It uses the caller's ClientSession and never closes it."""

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        timeout_seconds: float = 10.0,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        """`answered` is called at each answer of the node, also at a refusal."""
        self.url = url
        self._answered = answered
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._ids = itertools.count(1)

    async def request(self, method: str, *params: Json) -> Json:
        """Sends one request, once, and returns its result.

        Raises Unavailable if the node does not answer, is out of order, or sends nonsense. Raises
        RpcFailure if the node refuses the request.
        """
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": list(params)}
        try:
            async with self._session.post(
                self.url, json=body, timeout=self._timeout, allow_redirects=False
            ) as response:
                raw = await read_bounded(response, ANSWER_BYTES_MAX)
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"chain node {self.url}, {method}: {str(error) or type(error).__name__}"
            ) from error
        try:
            tree = loads(raw)
        except ValueError as error:
            raise Unavailable(
                f"chain node {self.url}, {method}: HTTP {status} without JSON"
            ) from error
        try:
            found = _result(tree, method)
        except RpcFailure:
            self._answered()
            raise
        self._answered()
        return found

    async def read(self, method: str, *params: Json) -> Json:
        """Sends a request that changes nothing, up to `READ_TRIES` times before Unavailable."""
        for attempt in range(READ_TRIES - 1):
            try:
                return await self.request(method, *params)
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS * 2**attempt)
        return await self.request(method, *params)


def _result(tree: Json, method: str) -> Json:
    if not isinstance(tree, dict):
        raise Unavailable(f"chain node, {method}: not a JSON-RPC answer")
    error = tree.get("error")
    if error is None:
        return tree.get("result")
    if not isinstance(error, dict) or not isinstance(error.get("code"), int):
        raise Unavailable(f"chain node, {method}: {str(error)[:200]}")
    message = str(error.get("message", ""))[:1000]
    if error["code"] == _INTERNAL_ERROR and "revert" not in message:
        raise Unavailable(f"chain node, {method}: {message}")
    return _raise_failure(error["code"], message, error.get("data"))


def _raise_failure(code: int, message: str, data: Json) -> Json:
    text = data.get("data") if isinstance(data, dict) else data
    try:
        output = bytes.fromhex(text[2:]) if isinstance(text, str) and text.startswith("0x") else b""
    except ValueError:
        # Some nodes put words there, and the message has them already.
        output = b""
    raise RpcFailure(code, message, output)
