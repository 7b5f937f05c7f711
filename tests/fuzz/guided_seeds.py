"""First inputs of each target: small and valid, so that fuzzing starts behind the first check."""

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuzz import guided_targets as targets
from fuzz.guided_answers import ASKED
from fuzz.guided_outer import OUTER
from quorate_content.dag.dagpb import (
    DIRECTORY_DATA,
    Link,
    encode_link,
    encode_node,
    file_data,
    hamt_data,
    leaf_block,
)
from quorate_content.store.http_answer import CAR_TYPE
from quorate_protocol.codec import canonical
from quorate_protocol.messages import frames
from quorate_protocol.messages.receipt import Receipt, document
from quorate_runtime.peers.websocket_peers import Challenge, Hello
from support.fuzz_properties import codec_inputs, dump
from support.value_strategies import values_of

ROOT = Path(__file__).parents[2]
HEX32, HEX20 = "0x" + "11" * 32, "0x" + "22" * 20
LOG = {
    "address": HEX20,
    "topics": [HEX32],
    "data": "0x00",
    "blockNumber": "0x1",
    "blockHash": HEX32,
    "transactionHash": HEX32,
    "logIndex": "0x0",
}
HEAD = {
    "number": "0x1",
    "hash": HEX32,
    "parentHash": HEX32,
    "timestamp": "0x5",
    "baseFeePerGas": "0x7",
}
ANSWERS: list[Any] = [
    {"jsonrpc": "2.0", "id": 1, "result": HEAD},
    {"jsonrpc": "2.0", "id": 1, "result": LOG},
    {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {
            "transactionHash": HEX32,
            "blockNumber": "0x1",
            "blockHash": HEX32,
            "status": "0x1",
            "gasUsed": "0x1",
            "effectiveGasPrice": "0x1",
            "contractAddress": None,
            "logs": [LOG],
        },
    },
    {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {"code": 3, "message": "execution reverted", "data": "0x08c379a0"},
    },
    {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {"code": -32000, "message": "revert", "data": {"data": "0xzz"}},
    },
]


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """The same examples in every run."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(strategy)
    def keep(value: Any) -> None:
        found.append(value)

    keep()
    return found


def seeds(target: str) -> list[bytes]:
    """The first inputs of one target."""
    return SEEDS[target]()


def _frames() -> list[bytes]:
    hello = drawn(values_of(Hello), 3) + drawn(values_of(Challenge), 2)
    return [frames.encode(frame) for frame in drawn(values_of(frames.Frame), 60)] + [
        canonical.encode(item) for item in hello
    ]


def _receipts() -> list[bytes]:
    return [document(item) for item in drawn(values_of(Receipt), 10)]


def _unixfs() -> list[bytes]:
    leaf = leaf_block(b"abc")
    cid = targets.TREE_ROOT
    file = encode_node([Link(cid, b"", 3)] * 2, file_data([3, 3]))
    folder = encode_node([Link(cid, b"a", 3), Link(cid, b"b", 3)], DIRECTORY_DATA)
    shard = encode_node([Link(cid, b"01name", 3), Link(cid, b"02", 3)], hamt_data(0b110, 256))
    ends = [encode_link(Link(cid, b"", 1))]
    lists = (
        [leaf],
        [file, leaf, leaf],
        [folder, leaf, file, leaf, leaf],
        [shard, leaf, shard, leaf, leaf],
        ends,
    )
    return [b"".join(len(block).to_bytes(2, "big") + block for block in blocks) for blocks in lists]


def _gateway() -> list[bytes]:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {CAR_TYPE}\r\n".encode()
    plain = head + b"Content-Length: %d\r\n\r\n" % len(targets.TREE_CAR) + targets.TREE_CAR
    chunked = (
        head
        + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(targets.TREE_CAR)
        + targets.TREE_CAR
        + b"\r\n0\r\n\r\n"
    )
    others = [
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\n\r\n",
    ]
    return [plain, chunked, b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + plain, *others]


def _sealed() -> list[bytes]:
    """The digest of a folder with its CAR, to be sealed (mode 1), or as if it were ciphertext."""
    digest = bytes(targets.TREE_ROOT.digest)
    return [
        b"\1" + digest + targets.TREE_CAR,
        b"\1" + digest + targets.TREE_CAR[:-50],
        b"\0" + digest + targets.TREE_CAR,
    ]


SEEDS = {
    "codec": lambda: drawn(codec_inputs(), 150),
    "frames": _frames,
    "receipt": _receipts,
    "planted": _receipts,
    "job_file": lambda: [path.read_bytes() for path in sorted(ROOT.glob("examples/**/*.yaml"))],
    "unixfs": _unixfs,
    "car": lambda: [targets.TREE_CAR, targets.TREE_CAR[:-50]],
    "image": lambda: [targets.image_seed()],
    "gateway": _gateway,
    "chain": lambda: [dump(item) for item in ANSWERS],
    "sealed": _sealed,
    **{name: made for name, (_, made) in {**OUTER, **ASKED}.items()},
}
