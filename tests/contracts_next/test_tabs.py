"""Tests what tabs pay, when, and to whom."""

from contracts_next.world import CLIENT_CLOSE, account, market
from quorate_protocol.limits import USD
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH

C, K = "client0", "coordinator"


def test_a_voucher_pays_a_coordinator_at_once() -> None:
    world = market()
    world.fund(C, 100 * USD)
    world.send(C, world.escrow, "deposit", 100 * USD, account(K))
    sent = world.send(
        "stranger",
        world.escrow,
        "redeem",
        account(K),
        ZERO_HASH,
        [world.session(C)],
        [world.voucher(C, K, 10 * USD)],
    )
    assert sent.one("Redeemed").paid == 10 * USD and world.balance(K) == 10 * USD
    assert world.tab(C, K) == (100 * USD, 10 * USD, 10 * USD, 0)
    world.send(C, world.escrow, "close", account(K))
    world.evm.travel(CLIENT_CLOSE + 1)
    world.send("stranger", world.escrow, "finish", account(C), account(K))
    world.send(C, world.escrow, "withdraw", 90 * USD)
    assert world.tokens(C) == 90 * USD
    assert ZERO_ADDRESS
