"""Shared by the fuzz tests: strategies for hostile bytes, and properties that must hold for
every reader of bytes.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from quorate_attestation import attestation_document, proof_document, session_messages
from quorate_protocol.codec import canonical
from quorate_protocol.codec.text_writer import writer_of
from quorate_protocol.messages import envelope, frames, job_spec
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.signed import MESSAGE_TYPES
from quorate_protocol.messages.views import PlanRequest
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.orders import Submission
from support.value_strategies import values_of

BYTES_MAX = 1 << 20
COUNTS: Counter[str] = Counter()
"""What was tried in this process, by name."""
READERS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        frames._Carrier,
        job_spec.JobSpec,
        OfferEnvelope,
        Submission,
        PlanRequest,
        session_messages.SessionMessage,
        attestation_document.AttestationDocument,
    )
}
"""Everything that strangers' bytes are decoded to, beside the envelopes."""

EDGES = (
    0,
    1,
    2**8 - 1,
    2**16,
    2**32,
    2**53 - 1,
    2**53,
    2**53 + 1,
    2**64 - 1,
    2**64,
    2**128 - 1,
    2**255,
    2**256 - 1,
    2**256,
    10**80,
)
_HEX = [f"0x{'00' * n}" for n in (0, 1, 19, 20, 21, 31, 32, 33, 64, 65)] + [
    "0x" + "ff" * 32,
    "0xFF",
    "0x0",
    "0xzz",
]
_WORDS = [
    "",
    "x",
    "--5",
    "-0",
    "1e5",
    "\ud800",
    "\u0000",
    "\N{GRINNING FACE}",
    "OfferSent",
    "Commit",
    "Order",
    "task",
    *_HEX,
]


def integers() -> st.SearchStrategy[int]:
    """Returns a strategy for integers around the limits of every width."""
    return st.sampled_from(EDGES) | st.integers() | st.sampled_from(EDGES).map(lambda value: -value)


def words() -> st.SearchStrategy[str]:
    """Returns a strategy for texts, some of which have a meaning in a message."""
    return st.sampled_from(_WORDS) | st.text(max_size=12) | integers().map(str)


def trees() -> st.SearchStrategy[Any]:
    """JSON trees of any shape."""
    leaves = st.none() | st.booleans() | integers() | words() | st.floats()
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words(), inner, max_size=4),
        max_leaves=12,
    )


def json_texts() -> st.SearchStrategy[bytes]:
    """JSON, nearly JSON, and bytes."""
    pieces = st.sampled_from(
        [
            b"[",
            b"]",
            b"{",
            b"}",
            b'"',
            b"\\",
            b":",
            b",",
            b"1",
            b"-",
            b"\\ud800",
            b"\xff",
            b"\\u0000",
            b"\n",
            b"null",
        ]
    )
    noise = st.lists(pieces, max_size=60).map(b"".join)
    return st.binary(max_size=64) | noise | st.builds(dump, trees())


def codec_inputs() -> st.SearchStrategy[bytes]:
    """Documents of the right shape with wrong values, of a wrong shape, and broken ones."""
    return st.one_of(
        json_texts(),
        shaped().map(dump),
        st.builds(_broken, shaped().map(dump), st.integers(0, 4000), st.binary(max_size=3)),
    )


def shaped() -> st.SearchStrategy[Any]:
    """Returns a strategy for trees with the fields of some message, offer, order or frame, and
    mostly fitting values.
    """
    return st.sampled_from([*READERS.values(), *MESSAGE_TYPES.values()]).flatmap(tree_of)


def tree_of(kind: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy for JSON trees of one declared type. In some of them one leaf is
    replaced.
    """
    return values_of(kind).map(lambda value: json.loads(writer_of(kind)(value))).flatmap(_tampered)


def _tampered(tree: Any) -> st.SearchStrategy[Any]:
    places = list(_places(tree))
    if not places:
        return st.just(tree)
    odd = words() | integers() | st.sampled_from([[], {}, [[]], {"kind": []}]) | trees()
    return st.just(tree) | st.builds(_with, st.just(tree), st.sampled_from(places), odd)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Any:
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _with(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = dict(tree) if isinstance(tree, dict) else list(tree)
    copied[path[0]] = _with(tree[path[0]], path[1:], value)
    return copied


def dump(tree: Any) -> bytes:
    """Writes JSON text that may hold what the codec refuses: floats, half surrogates, keys in
    any order.
    """
    return json.dumps(tree, separators=(",", ":")).encode()


def _broken(data: bytes, at: int, extra: bytes) -> bytes:
    at %= len(data) + 1
    return data[:at] + extra + data[at + len(extra) :]


def parse_or_refuse(data: bytes) -> None:
    """Asserts that the parser gives a tree or raises `Refused`, and nothing else."""
    COUNTS["codec_inputs"] += 1
    try:
        tree = canonical.parse(data, BYTES_MAX)
    except Refused:
        return
    canonical.canonical(tree)


DECODERS = (
    frames.decode,
    job_spec.decode,
    session_messages.decode,
    attestation_document.decode,
    proof_document.decode,
)


def decode_or_refuse(data: bytes) -> None:
    """Asserts that each reader gives a value whose bytes equal the input, or raises `Refused`,
    and nothing else.
    """
    COUNTS["codec_inputs"] += 1
    for kind in READERS.values():
        try:
            value = canonical.decode(kind, data)
        except Refused:
            continue
        assert canonical.encode(value) == data
        assert canonical.canonical(canonical.parse(data, BYTES_MAX)) == data
    found: envelope.AnyEnvelope | None = None
    try:
        found = envelope.decode(data)
    except Refused:
        pass  # most inputs are no envelope
    assert found is None or envelope.encode(found) == data
    for read in DECODERS:
        try:
            read(data)
        except Refused:
            continue


def pieces(data: bytes) -> Iterator[bytes]:
    """Cuts `data` into pieces. The first two bytes of each piece state its length."""
    at = 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        yield data[at + 2 : at + 2 + size]
        at += 2 + size
