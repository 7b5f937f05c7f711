"""The chain's HTTP server and its clock, which makes a block at each whole second."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aiohttp import web

from quorate_devnet.chain.accounts import FUNDED
from quorate_devnet.chain.evm_chain import Ledger
from quorate_devnet.chain.json_forms import Json
from quorate_devnet.chain.rpc_errors import INVALID_REQUEST, PARSE_ERROR, SERVER_ERROR, RpcError
from quorate_devnet.chain.rpc_methods import Method, answer, control_methods, read_methods
from quorate_devnet.chain.saved_chain import new_ledger
from quorate_protocol.codec.canonical import loads

REQUEST_BYTES_MAX = 2 << 20
BATCH_MAX = 100

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChainConfig:
    """How the devnet chain runs.

    If `block_seconds` is None, it has no clock and makes blocks only by evm_mine. `control` allows
    evm_mine and anvil_reorg.
    """

    host: str = "127.0.0.1"
    port: int = 0
    block_seconds: int | None = 1
    control: bool = False
    accounts: int = FUNDED


@dataclass(frozen=True, slots=True)
class RunningChain:
    """A chain that answers at `url`."""

    url: str
    ledger: Ledger
    ticker: asyncio.Task[None] | None  # ends only when mining fails


@contextlib.asynccontextmanager
async def running_chain(
    config: ChainConfig, clock: Callable[[], float] = time.time, restored: Ledger | None = None
) -> AsyncIterator[RunningChain]:
    """Serves a fresh chain, or a restored one, until the context ends."""
    ledger = restored or new_ledger(int(clock()), config.accounts)
    table = read_methods() | (control_methods(lambda: int(clock())) if config.control else {})
    runner = web.AppRunner(_application(ledger, table), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.host, config.port)
        await site.start()
        port = runner.addresses[0][1]
        # Not a TaskGroup: it would wrap whatever the body raises.
        ticker = (
            asyncio.create_task(_tick(ledger, config.block_seconds, clock))
            if config.block_seconds
            else None
        )
        try:
            yield RunningChain(f"http://{config.host}:{port}", ledger, ticker)
        finally:
            if ticker is not None:
                ticker.cancel()
                with contextlib.suppress(
                    asyncio.CancelledError
                ):  # our own cancellation; a crash of the clock is raised here
                    await ticker
    finally:
        await runner.cleanup()


async def _tick(ledger: Ledger, seconds: int, clock: Callable[[], float]) -> None:
    """Makes a block at each whole multiple of `seconds`.

    If a busy machine misses some, it makes no extra blocks later.
    """
    while True:
        now = clock()
        await asyncio.sleep((now // seconds + 1) * seconds - now)
        # A sleep may end a little early; rounding keeps the time on the intended second.
        block = ledger.mine(int(clock() + 0.05))
        if block.transactions:
            log.info("block %d: %d transactions", block.number, len(block.transactions))


def _application(ledger: Ledger, table: dict[str, Method]) -> web.Application:
    async def handle(request: web.Request) -> web.Response:
        try:
            tree = loads(await request.read())
        except ValueError:
            # The sender gets an error in JSON-RPC's own form.
            return web.json_response(_failure(None, RpcError(PARSE_ERROR, "not JSON")))
        if isinstance(tree, list):
            if not 1 <= len(tree) <= BATCH_MAX:
                return web.json_response(
                    _failure(
                        None, RpcError(INVALID_REQUEST, f"1 to {BATCH_MAX} requests in a batch")
                    )
                )
            return web.json_response([_one(ledger, table, item) for item in tree])
        return web.json_response(_one(ledger, table, tree))

    application = web.Application(client_max_size=REQUEST_BYTES_MAX)
    application.router.add_post("/", handle)
    return application


def _one(ledger: Ledger, table: dict[str, Method], tree: Json) -> Json:
    if (
        not isinstance(tree, dict)
        or not isinstance(tree.get("method"), str)
        or not isinstance(tree.get("params", []), list)
    ):
        return _failure(None, RpcError(INVALID_REQUEST, "not a request"))
    try:
        result = answer(table, ledger, tree["method"], tree.get("params", []))
    except RpcError as error:
        # This is the one place where refusals become answers.
        return _failure(tree.get("id"), error)
    except Exception as error:
        # A bug in one method must not end the chain under a whole devnet: logged with its trace,
        # told to the caller.
        log.exception("%s failed", tree["method"])
        return _failure(
            tree.get("id"), RpcError(SERVER_ERROR, f"internal error: {type(error).__name__}")
        )
    return {"jsonrpc": "2.0", "id": tree.get("id"), "result": result}


def _failure(request_id: Json, error: RpcError) -> Json:
    body = {"code": error.code, "message": error.message} | (
        {} if error.data is None else {"data": error.data}
    )
    return {"jsonrpc": "2.0", "id": request_id, "error": body}
