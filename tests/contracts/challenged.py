"""What the tests of challenges and halts share: credits with demands, and sums of money."""

from contracts.epoch_leaves import CLIENT, OWNERS, C, leaves, post
from contracts.market import ACCUSER, POSTER, Market, key, peopled
from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.epochs import Epoch
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.rules.epoch_tree import Leaf, build
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount

WATCHER = ACCUSER.address
WINDOW, RESPONSE = DEVNET.challenge_window, DEVNET.challenge_response
PENALTY, FEE = DEVNET.void_penalty, DEVNET.jury_gas_fee
ROBBED = OWNERS[0]


def posted(*finals: int, vouched: int = USD) -> tuple[Market, list[Leaf]]:
    """Returns a market with a first epoch of these credits that is not final yet."""
    world = peopled()
    credits = leaves(world, *finals)
    post(world, 1, credits, world.voucher(CLIENT, vouched))
    return world, credits


def only_the_coordinator(final: int) -> list[Leaf]:
    """Returns an epoch with one leaf, which takes everything."""
    return [Leaf(1, C, Amount(final), Amount(0), bytes(32))]  # type: ignore[arg-type]


def send(world: Market, call: Call, sender: Address = WATCHER):  # type: ignore[no-untyped-def]
    return world.evm.send(sender, call)


def credit_of(world: Market, account: Address) -> int:
    return world.evm.ask(world.contracts.challenges.credits(account))


def newest_valid(world: Market) -> Epoch:
    return world.evm.ask(world.contracts.epochs.newest_valid(C))


def bond_of(world: Market) -> int:
    return world.evm.ask(world.contracts.stakes.bond_of(C))


def payout(number: int) -> Address:
    return key(f"payout{number}").address


def poster_call(world: Market, number: int, credits: list[Leaf]) -> Call:
    return world.contracts.epochs.post(C, number, build(credits), [])


__all__ = ["CLIENT", "OWNERS", "POSTER", "ZERO_ADDRESS", "C", "leaves", "post"]
