"""The chain client: JSON-RPC over aiohttp, no filters, nothing that a reorganisation can
surprise.

`rpc` (one request) · `types` (blocks, logs, receipts) · `client` (reading) · `transactions`
(EIP-1559 signing) · `outbox` (what was signed, on disk) · `sender` (one key's transactions, once
each) · `follower` (logs, with walk-back).

Depth: a block at the head has depth 1. k = 1 therefore means "mined".
"""

from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.follower import Checkpoint, Cursor, LogBatch, LogFollower, Reorganised
from quorate_runtime.chain.outbox import Outbox
from quorate_runtime.chain.rpc import Rpc, RpcFailure
from quorate_runtime.chain.sender import Outgoing, Sender, SendPolicy
from quorate_runtime.chain.types import BlockHead, Fees, RawLog, Receipt

__all__ = [
    "BlockHead",
    "ChainClient",
    "Checkpoint",
    "Cursor",
    "Fees",
    "LogBatch",
    "LogFollower",
    "Outbox",
    "Outgoing",
    "RawLog",
    "Receipt",
    "Reorganised",
    "Rpc",
    "RpcFailure",
    "SendPolicy",
    "Sender",
]
