"""SHA-256 trees over rows of 64-bit words: the commitments of a proof.

A leaf is SHA-256 of the word 0 and the row's words. A node is SHA-256 of the word 1 and its two
children. Words are little-endian, so that the GPU hashes what it has in memory. The first word
keeps leaves and nodes apart. The count of leaves is a power of two.
"""

from hashlib import sha256

LEAF = (0).to_bytes(8, "little")
NODE = (1).to_bytes(8, "little")


def leaf(words: bytes) -> bytes:
    """Of one row of little-endian words."""
    return sha256(LEAF + words).digest()


def levels_above(leaves: list[bytes]) -> list[list[bytes]]:
    levels = [leaves]
    while len(below := levels[-1]) > 1:
        pairs = zip(below[::2], below[1::2], strict=True)
        levels.append([sha256(NODE + left + right).digest() for left, right in pairs])
    return levels


def path(levels: list[list[bytes]], index: int) -> bytes:
    """The siblings up to the root, 32 bytes each."""
    return b"".join(level[index >> height ^ 1] for height, level in enumerate(levels[:-1]))


def root_of(leaf_digest: bytes, index: int, siblings: bytes) -> bytes:
    """The root of the tree in which this leaf has this index and these siblings."""
    node = leaf_digest
    for at in range(0, len(siblings), 32):
        other = siblings[at : at + 32]
        node = sha256(NODE + other + node if index & 1 else NODE + node + other).digest()
        index >>= 1
    return node
