"""The chain client: web3.py over a bounded transport, and what web3 lacks.

`rpc` (one request) · `web3_provider` (web3 over it) · `types` (blocks, logs, receipts) · `client`
(typed reads) · `compared_client` (two nodes that must agree) · `transactions` (EIP-1559 signing) ·
`fee_bids` (what a transaction offers) · `send_records` (what was signed, on disk) ·
`account_nonces` (which purpose has which nonce) · `sender` (each purpose once) · `follower` (logs
through reorganisations) · `node_errors` (what a refusal means).

Depth: a block at the head has depth 1, so k = 1 means "mined".
"""

from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.compared_client import ComparedClient, chain_client
from quorate_runtime.chain.follower import Checkpoint, Cursor, LogBatch, LogFollower, Reorganised
from quorate_runtime.chain.rpc import Rpc, RpcFailure
from quorate_runtime.chain.send_records import SendRecords
from quorate_runtime.chain.sender import Outgoing, Sender, SendPolicy
from quorate_runtime.chain.types import BlockHead, Fees, RawLog, Receipt

__all__ = [
    "BlockHead",
    "ChainClient",
    "Checkpoint",
    "ComparedClient",
    "Cursor",
    "Fees",
    "LogBatch",
    "LogFollower",
    "SendRecords",
    "Outgoing",
    "RawLog",
    "Receipt",
    "Reorganised",
    "Rpc",
    "RpcFailure",
    "SendPolicy",
    "Sender",
    "chain_client",
]
