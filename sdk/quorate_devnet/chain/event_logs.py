"""eth_getLogs over bounded ranges."""

from quorate_devnet.chain import json_forms
from quorate_devnet.chain.block_records import Block, Event, events
from quorate_devnet.chain.evm_chain import Ledger
from quorate_devnet.chain.json_forms import Json
from quorate_devnet.chain.rpc_errors import INVALID_PARAMS, LIMIT_EXCEEDED, SERVER_ERROR, RpcError
from quorate_devnet.chain.rpc_params import block_at, bytes_of

RANGE_MAX = 10_000
RESULTS_MAX = 10_000
ADDRESSES_MAX = 64
TOPICS_MAX = 4


def find(ledger: Ledger, query: Json) -> Json:
    """Matching logs, in order.

    Raises RpcError if the range or the result is too large, or the block hash is not canonical.
    """
    if not isinstance(query, dict) or not query.keys() <= {
        "fromBlock",
        "toBlock",
        "address",
        "topics",
        "blockHash",
    }:
        raise RpcError(INVALID_PARAMS, "not a log filter")
    addresses = _options(query.get("address"), 20, ADDRESSES_MAX)
    places = query.get("topics") or []
    if not isinstance(places, list) or len(places) > TOPICS_MAX:
        raise RpcError(INVALID_PARAMS, f"at most {TOPICS_MAX} topics")
    topics = [_options(place, 32, ADDRESSES_MAX) for place in places]
    found: list[Json] = []
    for block, mined, event in events(_blocks(ledger, query)):
        if not _matches(event, addresses, topics):
            continue
        if len(found) >= RESULTS_MAX:
            raise RpcError(LIMIT_EXCEEDED, f"query returned more than {RESULTS_MAX} results")
        found.append(json_forms.log_form(block, mined, event))
    return found


def _blocks(ledger: Ledger, query: dict[str, Json]) -> list[Block]:
    if query.get("blockHash"):
        block = ledger.block_of_hash(bytes_of(query["blockHash"], 32))
        if block is None:
            raise RpcError(SERVER_ERROR, "unknown block")
        return [block]
    first = block_at(ledger, query.get("fromBlock") or "latest", missing_ok=True)
    last = block_at(ledger, query.get("toBlock") or "latest", missing_ok=True) or ledger.head
    if first is None or first.number > last.number:
        return []
    if last.number - first.number >= RANGE_MAX:
        raise RpcError(LIMIT_EXCEEDED, f"query exceeds max block range {RANGE_MAX}")
    return [
        block
        for number in range(first.number, last.number + 1)
        if (block := ledger.block(number)) is not None
    ]


def _options(value: Json, size: int, most: int) -> frozenset[bytes] | None:
    """Returns the allowed values of one topic, or None for any value."""
    if value is None or value == []:
        return None
    items = value if isinstance(value, list) else [value]
    if len(items) > most:
        raise RpcError(INVALID_PARAMS, f"at most {most} alternatives")
    return frozenset(bytes_of(item, size) for item in items)


def _matches(
    event: Event, addresses: frozenset[bytes] | None, topics: list[frozenset[bytes] | None]
) -> bool:
    if addresses is not None and event.address not in addresses:
        return False
    if len(topics) > len(event.topics):
        return False
    return all(
        options is None or topic in options
        for options, topic in zip(topics, event.topics, strict=False)
    )
