"""One epoch's Merkle-sum tree of cumulative credits (PROTOCOL §6); the contract `Epochs` checks
the same formulas.

leaf = keccak(abi(index, account, final, held, receiptsRoot)), sums (final, held); node =
keccak(abi(leftHash, leftFinal, leftHeld, rightHash, rightFinal, rightHeld)); positions sorted by
registration index, padded with zero leaves (hash 0, sums 0) to a power of two.
"""

from collections.abc import Sequence

from msgspec import Struct

from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32

SIBLINGS_MAX = 64  # and so every sum of amounts fits its word


class Leaf(Struct, frozen=True):
    """Cumulative credit of one account; `index` is its registration index in `Stakes`."""

    index: int
    account: Address
    final: Amount
    held: Amount
    receipts_root: Hash32

    def node(self) -> "Node":
        """The leaf as a tree node."""
        return Node(
            hash_tuple(self.index, self.account, self.final, self.held, self.receipts_root),
            self.final,
            self.held,
        )


class Node(Struct, frozen=True):
    """Hash and sums of a subtree."""

    hash: Hash32
    final: Amount
    held: Amount


class Proof(Struct, frozen=True):
    """Siblings from the leaf up; bit i of `position` is 1 when the node is the right child at
    level i.
    """

    position: int
    siblings: tuple[Node, ...]


ZERO_NODE = Node(ZERO_HASH, Amount(0), Amount(0))


def parent(left: Node, right: Node) -> Node:
    """The node above two."""
    digest = hash_tuple(left.hash, left.final, left.held, right.hash, right.final, right.held)
    return Node(digest, Amount(left.final + right.final), Amount(left.held + right.held))


def _levels(leaves: Sequence[Leaf]) -> list[list[Node]]:
    ordered = sorted(leaves, key=lambda leaf: leaf.index)
    assert len({leaf.index for leaf in ordered}) == len(ordered), "an index has one leaf"
    level = [leaf.node() for leaf in ordered] or [ZERO_NODE]
    level += [ZERO_NODE] * ((1 << (len(level) - 1).bit_length()) - len(level))
    levels = [level]
    while len(level) > 1:
        level = [parent(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
        levels.append(level)
    return levels


def build(leaves: Sequence[Leaf]) -> Node:
    """Root of the tree: its hash and the sums that the contract checks."""
    return _levels(leaves)[-1][0]


def prove(leaves: Sequence[Leaf], account: Address) -> tuple[Leaf, Proof]:
    """An account's leaf and its proof. KeyError when it has none."""
    ordered = sorted(leaves, key=lambda leaf: leaf.index)
    found = [position for position, leaf in enumerate(ordered) if leaf.account == account]
    if not found:
        raise KeyError(account.hex())
    position = found[0]
    siblings: list[Node] = []
    for level in _levels(leaves)[:-1]:
        siblings.append(level[(position >> len(siblings)) ^ 1])
    return ordered[position], Proof(position, tuple(siblings))


def root_of(leaf: Leaf, proof: Proof) -> Node:
    """The root that a proof leads to. `Refused(MALFORMED)` for numbers that the contract has no
    words for.
    """
    if not (
        0 <= leaf.index < 2**256
        and 0 <= proof.position < 2**SIBLINGS_MAX
        and len(proof.siblings) <= SIBLINGS_MAX
    ):
        raise Refused(Code.MALFORMED, "proof: an index, position or depth that no epoch has")
    node = leaf.node()
    for level, sibling in enumerate(proof.siblings):
        node = parent(sibling, node) if proof.position >> level & 1 else parent(node, sibling)
    return node
