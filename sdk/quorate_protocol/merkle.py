"""Merkle roots over sets of hashes ("roots Merkle over sorted H(entry)", PROTOCOL)."""

from quorate_protocol.hashing import keccak256
from quorate_protocol.units import ZERO_HASH, Hash32


def merkle_root(entries: frozenset[Hash32]) -> Hash32:
    """Root over the sorted entries; a lone node at the end of a level moves up unhashed; no entries give zero."""
    level = sorted(entries)
    if not level:
        return ZERO_HASH
    while len(level) > 1:
        paired = [keccak256(left + right) for left, right in zip(level[::2], level[1::2], strict=False)]
        level = paired + ([level[-1]] if len(level) % 2 else [])
    return Hash32(level[0])
