"""The Merkle-sum tree of all cumulative credits of one epoch (PROTOCOL §6).

The contract `Epochs` checks the same formulas:

- leaf = keccak(abi(index, account, final, held, receiptsRoot)), with the sums (final, held)
- node = keccak(abi(leftHash, leftFinal, leftHeld, rightHash, rightFinal, rightHeld)), with the
  sums of both children

The leaves are sorted by registration index. Zero leaves (hash 0, sums 0) fill the tree up to a
power of two.
"""

from collections.abc import Sequence

from msgspec import Struct

from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32

SIBLINGS_MAX = 64  # the greatest depth; every sum of amounts then fits its 32-byte word


class Leaf(Struct, frozen=True):
    """The cumulative credit of one account."""

    index: int  # registration index of the account in `Stakes`
    account: Address
    final: Amount  # pay that can no longer be taken back
    held: Amount  # pay that may still be taken back
    receipts_root: Hash32  # as in the account's Statement

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
    """The path from a leaf to the root."""

    position: int  # of the leaf; bit i is 1 when the node at level i is a right child
    siblings: tuple[Node, ...]  # from the leaf's level up


ZERO_NODE = Node(ZERO_HASH, Amount(0), Amount(0))


def parent(left: Node, right: Node) -> Node:
    """The node above two nodes."""
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
    """Root of the tree, with its hash and the sums that the contract checks."""
    return _levels(leaves)[-1][0]


def prove(leaves: Sequence[Leaf], account: Address) -> tuple[Leaf, Proof]:
    """The leaf of an account and its proof. Raises KeyError when the account has no leaf."""
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
    """The root that a proof leads to.

    Raises `Refused(MALFORMED)` for numbers that the contract's types cannot hold.
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
