"""Shared by the chain tests: a contract, keys, and both kinds of chain node behind one class."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import lru_cache

import aiohttp
import coincurve

from quorate_devnet.chain.accounts import dev_account, dev_address
from quorate_devnet.chain.anvil_process import start_anvil
from quorate_devnet.chain.server import ChainConfig, running_chain
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.units import Address, Signature
from quorate_runtime.chain import ChainClient, Rpc
from support.requirements import require

CHAIN_ID = 31337  # of both kinds of node

SOURCE = """
# pragma version 0.4.3
event Ping:
    who: indexed(address)
    number: uint256

total: public(uint256)

@external
def ping(number: uint256):
    self.total += number
    log Ping(who=msg.sender, number=number)

@external
def late(deadline: uint256):
    assert block.timestamp <= deadline, "late"

@external
@view
def seen_time() -> uint256:
    return block.timestamp
"""


@lru_cache(maxsize=1)
def pinger_code() -> bytes:
    """Creation code of the contract above."""
    from vyper.compiler import compile_code

    return bytes.fromhex(compile_code(SOURCE, output_formats=["bytecode"])["bytecode"][2:])


def calldata(signature: str, *words: int) -> bytes:
    """Returns the data of a call of a function with integer arguments."""
    return keccak256(signature.encode())[:4] + b"".join(word.to_bytes(32, "big") for word in words)


class Key:
    """A development account as a `Signer`."""

    def __init__(self, index: int) -> None:
        self.address = Address(dev_address(index))
        self._key = coincurve.PrivateKey(dev_account(index))

    def sign(self, digest: bytes) -> Signature:
        raw = self._key.sign_recoverable(digest, hasher=None)
        return Signature(raw[:64] + bytes([27 + raw[64]]))


@dataclass(frozen=True, slots=True)
class Node:
    """A chain node under test. Only `mine` makes its blocks, unless `node` sets a block time."""

    url: str
    client: ChainClient

    async def mine(self, blocks: int = 1) -> None:
        for _ in range(blocks):
            await self.client.rpc.request("evm_mine")

    async def drop(self, depth: int) -> None:
        """Replaces the newest `depth` blocks by empty ones."""
        await self.client.rpc.request("anvil_reorg", depth, [])


@contextlib.asynccontextmanager
async def node(kind: str, block_seconds: int | None = None) -> AsyncIterator[Node]:
    """A fresh node of a kind: "devnet" or "anvil" (skipped where it is not installed)."""
    if kind == "anvil":
        require("anvil")
    async with contextlib.AsyncExitStack() as stack:
        if kind == "anvil":
            url = await stack.enter_async_context(start_anvil(block_seconds=block_seconds))
        else:
            chain = await stack.enter_async_context(
                running_chain(ChainConfig(block_seconds=block_seconds, control=True))
            )
            url = chain.url
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Node(url, ChainClient(Rpc(url, session)))
