# pragma version 0.4.3
"""
@title leaves
@notice The Merkle-sum tree of an epoch (PROTOCOL §6): how leaves and nodes are hashed, and whether a leaf stands under a root.
@dev Tree: leaf = H(index, account, final, held, receiptsRoot), node = H(left, leftFinal, leftHeld, right, rightFinal, rightHeld), leaves in
     the order of their registration index, padded with zero hashes and sums to a power of two. A leaf has five words and a
     node six, so neither passes for the other.
"""

struct Leaf:
    index: uint256
    account: address
    sums: uint256  # final(128) | held(128)
    receiptsRoot: bytes32

struct Sibling:
    hash: bytes32
    sums: uint256  # final(128) | held(128)

struct Node:
    hash: bytes32
    final: uint256
    held: uint256

struct Epoch:
    root: bytes32
    number: uint256
    postedAt: uint256
    sumFinal: uint256
    sumHeld: uint256

LISTED_MAX: constant(uint256) = 64
DEPTH_MAX: constant(uint256) = 32
MASK128: constant(uint256) = 2**128 - 1


@internal
@pure
def _node(leaf: Leaf) -> Node:
    final: uint256 = leaf.sums >> 128
    held: uint256 = leaf.sums & MASK128
    return Node(hash=keccak256(abi_encode(leaf.index, leaf.account, final, held, leaf.receiptsRoot)), final=final, held=held)


@internal
@pure
def _parent(left: Node, right: Node) -> Node:
    hash: bytes32 = keccak256(abi_encode(left.hash, left.final, left.held, right.hash, right.final, right.held))
    return Node(hash=hash, final=left.final + right.final, held=left.held + right.held)


@internal
@pure
def _subtree(listed: DynArray[Leaf, LISTED_MAX]) -> Node:
    """The node above all leaves: levels are halved in place, and an odd one is filled up with the empty node of its height."""
    level: DynArray[Node, LISTED_MAX] = []
    for leaf: Leaf in listed:
        level.append(self._node(leaf))
    filler: Node = empty(Node)
    size: uint256 = len(level)
    assert size > 0, "proof"
    for _: uint256 in range(DEPTH_MAX):
        if size == 1:
            break
        half: uint256 = (size + 1) // 2
        for k: uint256 in range(half, bound=LISTED_MAX // 2):
            level[k] = self._parent(level[2 * k], level[2 * k + 1] if 2 * k + 1 < size else filler)
        filler = self._parent(filler, filler)
        size = half
    return level[0]


@internal
@pure
def _check_inclusion(root: bytes32, sumFinal: uint256, sumHeld: uint256, start: Node, position: uint256, proof: DynArray[Sibling, DEPTH_MAX]):
    """The node climbs to the root, and the sums on its way are those that were posted."""
    hash: bytes32 = start.hash
    final: uint256 = start.final
    held: uint256 = start.held
    side: uint256 = position
    for sibling: Sibling in proof:
        otherFinal: uint256 = sibling.sums >> 128
        otherHeld: uint256 = sibling.sums & MASK128
        if side & 1 == 0:
            hash = keccak256(abi_encode(hash, final, held, sibling.hash, otherFinal, otherHeld))
        else:
            hash = keccak256(abi_encode(sibling.hash, otherFinal, otherHeld, hash, final, held))
        final += otherFinal
        held += otherHeld
        side >>= 1
    assert side == 0 and hash == root, "proof"
    assert final == sumFinal and held == sumHeld, "sums"
