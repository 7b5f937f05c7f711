"""Leaves of small epochs for tests, and functions that post and claim them."""

from collections.abc import Sequence

from contracts.evm import Mined
from contracts.market import BOSS, COORDINATOR, POSTER, Market, key
from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.epochs import SignedVoucher
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.rules.epoch_tree import Leaf, Node, Proof, build, prove
from quorate_protocol.units import ZERO_HASH, Address, Amount

C = COORDINATOR.address


OWNERS = [key(f"owner{i}").address for i in range(9)]


CLIENT = key("client0")


def leaves(world: Market, *finals: int, held: int = 0) -> list[Leaf]:
    """Returns credits of the first providers. The coordinator's fee leaf comes first in the
    tree.
    """
    index = world.evm.ask(world.contracts.stakes.index_of(OWNERS[0]))
    credits = [
        Leaf(index + i, OWNERS[i], Amount(final), Amount(held), keccak256(b"receipts %d" % i))
        for i, final in enumerate(finals)
    ]
    return [*reversed(credits), Leaf(1, C, Amount(3), Amount(0), ZERO_HASH)]


def post(world: Market, number: int, credits: Sequence[Leaf], *vouchers: SignedVoucher) -> Mined:
    return world.evm.send(
        POSTER.address, world.contracts.epochs.post(C, number, build(credits), vouchers)
    )


def claim(world: Market, number: int, credits: Sequence[Leaf], account: Address) -> Mined:
    return world.evm.send(
        BOSS.address, world.contracts.epochs.claim(C, number, *prove(credits, account))
    )


def claim_call(world: Market, leaf: Leaf, proof: Proof):  # type: ignore[no-untyped-def]
    return world.contracts.epochs.claim(C, 1, leaf, proof)


def part_of(world: Market, part: Sequence[Leaf], position: int, siblings: Sequence[Node]) -> Call:
    listed = [
        (leaf.index, leaf.account, leaf.final << 128 | leaf.held, leaf.receipts_root)
        for leaf in part
    ]
    proof = [(node.hash, node.final << 128 | node.held) for node in siblings]
    return world.contracts.epochs._call("claim_many", 1_000_000, C, 1, listed, position, proof)
