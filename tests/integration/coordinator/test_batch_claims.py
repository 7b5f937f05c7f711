"""Claims for everybody, on a real chain: paid once, whoever claims first, and cheaper than one
by one.
"""

from types import SimpleNamespace

import pytest

from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.epochs import Epoch, Epochs, SignedVoucher
from quorate_contracts.deploy import Contracts
from quorate_coordinator.chain.batch_claims import BatchClaims
from quorate_coordinator.chain.queries import allocation_of
from quorate_coordinator.chain.registration import ask
from quorate_coordinator.core.entities import EpochRecord
from quorate_coordinator.core.state import State
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.epoch_tree import Leaf, build, prove
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Nonce,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient, Rpc, Sender
from quorate_runtime.chain.types import Receipt
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from support.markets.coordinator_stage import Stage, running, until

PROVIDERS = [KeySigner(bytes([30 + number]) * 32).address for number in range(5)]


def leaves(scale: int) -> tuple[Leaf, ...]:
    """Five providers and the audit fund, which is nobody's."""
    owed = [
        Leaf(10 + number, owner, Amount(scale * (number + 1) * 1000), Amount(0), ZERO_HASH)
        for number, owner in enumerate(PROVIDERS)
    ]
    return (Leaf(0, ZERO_ADDRESS, Amount(500), Amount(0), ZERO_HASH), *owed)


def senders_of(stage: Stage, chain: ChainClient) -> dict[str, Sender]:
    """A sender for each account that sends in this test."""
    keys = {"client": stage.client, "posting": stage.keys.posting}
    return {
        name: Sender(
            chain,
            signer,
            stage.home / f"{name}.sqlite",
            SystemClock(),
            chain_id=stage.deployment.chain_id,
        )
        for name, signer in (keys | {"provider": KeySigner(dev_account(5))}).items()
    }


@pytest.mark.rule("2.8")
async def test_everybody_is_paid_once(stage: Stage) -> None:
    async with running(stage.service()):
        pass  # registers the coordinator
    contracts, chain = (
        Contracts.of(stage.deployment),
        ChainClient(Rpc(stage.chain_url, stage.session)),
    )
    coordinator, domain = stage.keys.account.address, stage.deployment.domain()
    senders = senders_of(stage, chain)

    async def send(who: str, purpose: str, call: Call) -> int:
        return (
            await senders[who].send(purpose, call.to, call.data, gas=call.gas, deadline_seconds=30)
        ).gas_used

    await send("client", "approve", contracts.token.approve(stage.deployment.escrow))
    await send("client", "deposit", contracts.escrow.deposit(Amount(100 * USD)))
    await send("client", "allocate", contracts.escrow.allocate(coordinator, Amount(80 * USD)))
    await send("client", "release", contracts.escrow.request_release(coordinator, Amount(10 * USD)))
    told, now = (
        await allocation_of(chain, contracts, stage.client.address, coordinator),
        (await chain.head()).time,
    )
    assert (told.allocation, told.escrowed) == (
        70 * USD,
        80 * USD,
    ) and now < told.release_at <= now + DEVNET.allocation_release
    state, session_key = State(), KeySigner(b"\x55" * 32)

    async def post(number: int) -> None:
        head = (await chain.head()).time
        session = Session(
            stage.client.address,
            session_key.address,
            coordinator,
            Amount(50 * USD),
            UnixSeconds(head + 3600),
        )
        voucher = Voucher(stage.client.address, coordinator, Amount(number * USD), Nonce(0))
        signed = SignedVoucher(
            seal(domain, session, stage.client.sign), seal(domain, voucher, session_key.sign)
        )
        root = build(leaves(number))
        await send(
            "posting", f"epoch-{number}", contracts.epochs.post(coordinator, number, root, [signed])
        )
        with state.transaction():
            state.epochs[number] = EpochRecord(
                number, leaves(number), root.hash, (), UnixSeconds(head), True
            )
        await until(
            lambda: ask(chain, contracts.epochs.newest_final(coordinator)),
            lambda found: found.number == number,
            40,
        )

    async def balances() -> list[int]:
        return [await ask(chain, contracts.token.balance_of(owner)) for owner in PROVIDERS]

    async def claimed(owner: Address) -> Amount:
        return await ask(chain, contracts.epochs.claimed(coordinator, owner))

    def batch_claims() -> BatchClaims:
        return BatchClaims(
            chain, contracts, coordinator, state, senders["posting"], DEVNET, SystemClock()
        )

    first = batch_claims()
    assert await first.look() == 0, "there is no epoch yet"
    await post(1)
    together = await first.look()
    assert await balances() == [1000, 2000, 3000, 4000, 5000] and await claimed(ZERO_ADDRESS) == 0
    assert (
        await first.look() == 0
        and await batch_claims().look() == 0
        and await balances() == [1000, 2000, 3000, 4000, 5000]
    ), "once"
    await post(2)
    alone = await send(
        "provider", "own", contracts.epochs.claim(coordinator, 2, *prove(leaves(2), PROVIDERS[0]))
    )
    assert await first.look() > 0, "the one that was faster is passed over"
    assert (
        await balances() == [2000, 4000, 6000, 8000, 10000] and await claimed(PROVIDERS[0]) == 2000
    )
    late = batch_claims()
    late.state = State()
    assert await late.look() == 0, (
        "an epoch whose leaves are not kept any more is left to the providers"
    )
    rare = batch_claims()
    rare.limits = replace(DEVNET, claim_every_epochs=24)
    assert await rare.look() == 0, "not before the 24th"
    print(f"all together {together} gas, {together // len(PROVIDERS)} each; alone {alone}")
    assert together < alone * len(PROVIDERS)
    for sender in senders.values():
        sender.close()


class Book:
    """A node and a sender of which a token's list refuses one account; what is sent counts as
    mined.
    """

    def __init__(self, listed: set[Address], reason: str) -> None:
        self.listed, self.reason, self.asked = listed, reason, 0
        self.sent: list[bytes] = []

    async def call(self, to: Address, data: bytes) -> bytes:
        """Refused when the call would pay somebody on the list."""
        self.asked += 1
        if any(account in data for account in self.listed):
            raise Refused(Code.CHAIN, self.reason)
        return b""

    async def send(
        self, purpose: str, to: Address, data: bytes, gas: int, deadline_seconds: float
    ) -> Receipt:
        """Remembers it."""
        self.sent.append(data)
        return Receipt(ZERO_HASH, BlockNumber(1), ZERO_HASH, True, gas, 1, None, (), None)


@pytest.mark.parametrize("reason", ["Blacklistable: account is blacklisted", "token", "", "stale"])
async def test_one_that_the_token_does_not_pay_keeps_nobody_elses_pay_up(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = [Address(bytes([number + 1]) * 20) for number in range(100)]
    credits = [
        Leaf(number, owner, Amount(1000), Amount(0), ZERO_HASH)
        for number, owner in enumerate(owners)
    ]
    state, root = State(), build(credits)
    with state.transaction():
        state.epochs[1] = EpochRecord(1, tuple(credits), root.hash, (), UnixSeconds(0), True)
    book = Book({owners[70], owners[99]}, reason)

    async def newest_final(*_: object) -> Epoch:
        return Epoch(root.hash, 1, UnixSeconds(0), Amount(root.final), Amount(0))

    monkeypatch.setattr("quorate_coordinator.chain.batch_claims.ask", newest_final)
    contracts = SimpleNamespace(epochs=Epochs(Address(b"\xee" * 20)))
    batch_claims = BatchClaims(
        book, contracts, Address(b"\xcc" * 20), state, book, DEVNET, SystemClock()
    )  # type: ignore[arg-type]
    assert await batch_claims.look() > 0
    paid = [[owner in data for data in book.sent].count(True) for owner in owners]
    expected = (
        [1] * 64 + [0] * 36
        if reason == "stale"
        else [0 if number in (70, 99) else 1 for number in range(100)]
    )
    assert paid == expected and book.asked <= 1 + 2 * 2 * 7, (
        "whole parts, halves of one, and not one by one"
    )
