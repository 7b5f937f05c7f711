"""JSON forms of blocks, transactions, receipts and logs, as in the Ethereum execution API."""

from collections.abc import Mapping
from typing import Any

from eth_utils.address import to_checksum_address

from quorate_devnet.chain.block_records import Block, Event, Mined
from quorate_devnet.chain.transaction_pool import Pending

Json = Any  # a JSON tree; see the codec for why it has no better type


def quantity(value: int) -> str:
    return hex(int(value))


def data(value: bytes) -> str:
    return "0x" + bytes(value).hex()


def address(value: bytes) -> str:
    """Returns a checksummed address."""
    return str(to_checksum_address(bytes(value)))


def block_form(block: Block, full: bool) -> Mapping[str, Json]:
    """Returns a block, with whole transactions or their hashes."""
    header = block.header
    return {
        "number": quantity(block.number),
        "hash": data(header.hash),
        "parentHash": data(header.parent_hash),
        "nonce": data(header.nonce),
        "sha3Uncles": data(header.uncles_hash),
        "logsBloom": data(header.bloom.to_bytes(256, "big")),
        "transactionsRoot": data(header.transaction_root),
        "stateRoot": data(header.state_root),
        "receiptsRoot": data(header.receipt_root),
        "miner": address(header.coinbase),
        "difficulty": "0x0",
        "totalDifficulty": "0x0",
        "extraData": data(header.extra_data),
        "size": quantity(600 + sum(len(mined.pending.raw) for mined in block.transactions)),
        "gasLimit": quantity(header.gas_limit),
        "gasUsed": quantity(header.gas_used),
        "timestamp": quantity(header.timestamp),
        "baseFeePerGas": quantity(header.base_fee_per_gas or 0),
        "mixHash": data(header.mix_hash),
        "uncles": [],
        "withdrawals": [],
        "transactions": [
            transaction_form(m.pending, (block, m)) if full else data(m.pending.hash)
            for m in block.transactions
        ],
    }


def transaction_form(pending: Pending, place: tuple[Block, Mined] | None) -> Mapping[str, Json]:
    transaction = pending.transaction
    kind = pending.raw[0] if pending.raw[0] < 0x80 else 0
    form: dict[str, Json] = {
        "hash": data(pending.hash),
        "type": quantity(kind),
        "nonce": quantity(pending.nonce),
        "from": address(pending.sender),
        "to": address(transaction.to) if transaction.to else None,
        "value": quantity(transaction.value),
        "gas": quantity(transaction.gas),
        "input": data(transaction.data),
        "maxFeePerGas": quantity(transaction.max_fee_per_gas),
        "maxPriorityFeePerGas": quantity(transaction.max_priority_fee_per_gas),
        "gasPrice": quantity(place[1].gas_price if place else transaction.max_fee_per_gas),
        "chainId": quantity(transaction.chain_id or 0),
        "r": quantity(transaction.r),
        "s": quantity(transaction.s),
        "v": quantity(transaction.y_parity),
        "yParity": quantity(transaction.y_parity),
        "accessList": [],
        "blockHash": None,
        "blockNumber": None,
        "transactionIndex": None,
    }
    return form | (_place(*place) if place else {})


def receipt_form(block: Block, mined: Mined) -> Mapping[str, Json]:
    """Returns a receipt. A reverted one has the output as `revertReason`, as Besu sends it."""
    pending = mined.pending
    form = {
        "transactionHash": data(pending.hash),
        "from": address(pending.sender),
        "to": address(pending.transaction.to) if pending.transaction.to else None,
        "type": quantity(pending.raw[0] if pending.raw[0] < 0x80 else 0),
        "status": quantity(int(mined.success)),
        "gasUsed": quantity(mined.gas_used),
        "cumulativeGasUsed": quantity(mined.gas_before + mined.gas_used),
        "effectiveGasPrice": quantity(mined.gas_price),
        "contractAddress": address(mined.contract) if mined.contract else None,
        "logs": [log_form(block, mined, event) for event in mined.events],
        "logsBloom": data(block.header.bloom.to_bytes(256, "big")),
        **_place(block, mined),
    }
    return form if mined.success else form | {"revertReason": data(mined.output)}


def log_form(block: Block, mined: Mined, event: Event) -> Mapping[str, Json]:
    """Returns a log, with `blockTimestamp` as newer nodes send it."""
    return {
        "address": address(event.address),
        "topics": [data(topic) for topic in event.topics],
        "data": data(event.data),
        "logIndex": quantity(event.index),
        "transactionHash": data(mined.pending.hash),
        "blockTimestamp": quantity(block.header.timestamp),
        "removed": False,
        **_place(block, mined),
    }


def _place(block: Block, mined: Mined) -> dict[str, Json]:
    return {
        "blockHash": data(block.header.hash),
        "blockNumber": quantity(block.number),
        "transactionIndex": quantity(mined.index),
    }
