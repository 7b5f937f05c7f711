# pragma version 0.4.3
"""
@title LeavesProofs
@notice Properties of the tree of an epoch, with the code that Epochs and Challenges are compiled with; see EscrowProofs.
@dev halmos takes keccak256 for a function without collisions.
"""

import leaves


@external
@pure
def includes(root: bytes32, final: uint256, held: uint256, leaf: leaves.Leaf, position: uint256, proof: DynArray[leaves.Sibling, 32]) -> bool:
    leaves._check_inclusion(root, final, held, leaves._node(leaf), position, proof)
    return True


interface This:
    def includes(root: bytes32, final: uint256, held: uint256, leaf: leaves.Leaf, position: uint256, proof: DynArray[leaves.Sibling, 32]) -> bool: view


@internal
@pure
def _must(holds: bool):
    if not holds:
        raw_revert(concat(0x4e487b71, convert(1, bytes32)))


@internal
@pure
def _is_same(one: leaves.Leaf, other: leaves.Leaf) -> bool:
    return one.index == other.index and one.account == other.account and one.sums == other.sums and one.receiptsRoot == other.receiptsRoot


@external
@view
def check_a_tree_of_two_includes_its_leaves_and_no_other(left: leaves.Leaf, right: leaves.Leaf, shown: leaves.Leaf, position: uint256, sibling: leaves.Sibling):
    top: leaves.Node = leaves._subtree([left, right])
    found: bool = staticcall This(self).includes(top.hash, top.final, top.held, shown, position, [sibling])
    self._must((position == 0 and self._is_same(shown, left)) or (position == 1 and self._is_same(shown, right)))


@external
@view
def check_both_leaves_of_a_tree_prove_themselves(left: leaves.Leaf, right: leaves.Leaf):
    top: leaves.Node = leaves._subtree([left, right])
    one: leaves.Node = leaves._node(left)
    other: leaves.Node = leaves._node(right)
    for side: uint256 in range(2):
        sibling: leaves.Node = other if side == 0 else one
        shown: leaves.Leaf = left if side == 0 else right
        beside: DynArray[leaves.Sibling, 32] = [leaves.Sibling(hash=sibling.hash, sums=(sibling.final << 128) | sibling.held)]
        data: Bytes[2500] = abi_encode(top.hash, top.final, top.held, shown, side, beside, method_id=method_id("includes(bytes32,uint256,uint256,(uint256,address,uint256,bytes32),uint256,(bytes32,uint256)[])"))
        self._must(raw_call(self, data, is_static_call=True, revert_on_failure=False))
