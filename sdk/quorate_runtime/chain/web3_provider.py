"""Connects web3.py to the bounded transport of `rpc`.

Only this module of the chain client imports web3 at its own import, and that takes more than a
second. Import it where the chain is called, not before.

It replaces web3's own HTTP provider. That one reads an answer of any size into memory, and it
repeats `eth_sendRawTransaction` by itself, while only the `Sender` may decide that.
"""

from typing import Any

from web3 import AsyncWeb3
from web3.middleware import ExtraDataToPOAMiddleware
from web3.middleware.formatting import FormattingMiddlewareBuilder
from web3.middleware.validation import block_validator
from web3.providers.async_base import AsyncBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from quorate_protocol.refusals import Unavailable
from quorate_runtime.chain.rpc import Rpc, RpcFailure

SEND = "eth_sendRawTransaction"

# The part of web3's ValidationMiddleware that reads blocks. The rest would ask for the chain's id
# before every call.
BlockValidation = FormattingMiddlewareBuilder.build(
    result_formatters={
        RPCEndpoint("eth_getBlockByHash"): block_validator,
        RPCEndpoint("eth_getBlockByNumber"): block_validator,
    }
)


class BoundedProvider(AsyncBaseProvider):
    """An asynchronous web3 provider: one request per call, a deadline, a limit on answer bytes.

    `raise_failures`: raise the node's own RpcFailure instead of web3's exceptions, which lose its
    error code.
    """

    # EIP-3668: a contract may answer with URLs that the caller should fetch. A hostile node could
    # send us to any address in our network, so web3 must not follow them.
    global_ccip_read_enabled = False

    def __init__(self, rpc: Rpc, raise_failures: bool) -> None:
        super().__init__()
        self._rpc, self._raise_failures = rpc, raise_failures

    async def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """Sends a request. A read is repeated when the node is away, a transaction never is."""
        ask = self._rpc.request if method == SEND else self._rpc.read
        try:
            result = await ask(method, *params)
        except RpcFailure as failure:
            if self._raise_failures:
                raise
            data = {"data": "0x" + failure.data.hex()} if failure.data else {}
            error = {"code": failure.code, "message": failure.message, **data}
            return {"jsonrpc": "2.0", "id": 1, "error": error}  # type: ignore[typeddict-item]
        return {"jsonrpc": "2.0", "id": 1, "result": result}

    async def is_connected(self, show_traceback: bool = False) -> bool:
        try:
            await self._rpc.request("eth_chainId")
        except (Unavailable, RpcFailure):
            if show_traceback:
                raise
            return False
        return True


def make_web3(rpc: Rpc, *, raise_failures: bool = False) -> AsyncWeb3[BoundedProvider]:
    """Returns an AsyncWeb3 over our transport, without web3's names, gas prices and gas estimates.
    A request asks the node for what it names and for nothing else.
    """
    provider = BoundedProvider(rpc, raise_failures)
    return AsyncWeb3(provider, middleware=[(BlockValidation, "blocks")])


def accept_long_extra_data(w3: AsyncWeb3[BoundedProvider]) -> None:
    """Makes `w3` read blocks of proof-of-authority chains, whose extraData exceeds 32 bytes."""
    if "proof-of-authority" not in w3.middleware_onion:
        w3.middleware_onion.inject(ExtraDataToPOAMiddleware, "proof-of-authority", layer=0)
