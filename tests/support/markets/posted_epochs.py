"""Posts an epoch on the chain of a scripted coordinator."""

import time

from quorate_contracts.bindings.epochs import SignedVoucher
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.rules import epoch_tree
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.units import Amount, UnixSeconds
from quorate_runtime.keys.crypto import KeySigner
from support.markets.scripted_coordinator import COORDINATOR, Stage

CLIENT = KeySigner(dev_account(14))


async def post_epoch(market: Stage, leaves: list[Leaf], number: int = 1, paid: int = 80) -> None:
    """A client's money, its voucher of `paid`, and the epoch that the coordinator posts."""
    contracts, deployer, client = (market.contracts, KeySigner(dev_account(0)), CLIENT)
    domain = contracts.deployment.domain()
    await market.send(deployer, "client", contracts.token.mint(client.address, Amount(1000)))
    allocate = contracts.escrow.allocate(COORDINATOR.address, Amount(1000))
    await market.send(
        client,
        "client",
        contracts.token.approve(contracts.escrow.address),
        contracts.escrow.deposit(Amount(1000)),
        allocate,
    )
    expires = UnixSeconds(int(time.time()) + 80_000)
    session = seal(
        domain,
        Session(client.address, client.address, COORDINATOR.address, Amount(1000), expires),
        client.sign,
    )
    voucher = seal(domain, Voucher(client.address, COORDINATOR.address, Amount(paid)), client.sign)
    call = contracts.epochs.post(
        COORDINATOR.address, number, epoch_tree.build(leaves), [SignedVoucher(session, voucher)]
    )
    await market.send(COORDINATOR, f"post{number}", call)
