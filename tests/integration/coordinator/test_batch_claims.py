"""Tests that the coordinator claims for all providers on a real chain.

Each provider is paid once, also if it claims by itself. Together the claims use less gas than one
by one.
"""

from dataclasses import dataclass
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
    """Returns leaves of five providers, and of the audit fund, which belongs to no account."""
    owed = [
        Leaf(10 + number, owner, Amount(scale * (number + 1) * 1000), Amount(0), ZERO_HASH)
        for number, owner in enumerate(PROVIDERS)
    ]
    return (Leaf(0, ZERO_ADDRESS, Amount(500), Amount(0), ZERO_HASH), *owed)


@dataclass
class ClaimStage:
    """A registered coordinator with epochs on a real chain, and keys that send transactions."""

    stage: Stage
    contracts: Contracts
    chain: ChainClient
    senders: dict[str, Sender]
    state: State
    session_key: KeySigner

    @classmethod
    def of(cls, stage: Stage) -> "ClaimStage":
        """Returns a stage with senders for a client, the coordinator's posting key and one
        provider.
        """
        chain = ChainClient(Rpc(stage.chain_url, stage.session))
        signers = {
            "client": stage.client,
            "posting": stage.keys.posting,
            "provider": KeySigner(dev_account(5)),
        }
        senders = {
            name: Sender(
                chain,
                signer,
                stage.home / f"{name}.sqlite",
                SystemClock(),
                chain_id=stage.deployment.chain_id,
            )
            for name, signer in signers.items()
        }
        contracts = Contracts.of(stage.deployment)
        return cls(stage, contracts, chain, senders, State(), KeySigner(b"\x55" * 32))

    @property
    def coordinator(self) -> Address:
        """The coordinator's account."""
        return self.stage.keys.account.address

    async def send(self, who: str, purpose: str, call: Call) -> int:
        """Sends a transaction; returns the gas that it used."""
        sender = self.senders[who]
        receipt = await sender.send(purpose, call.to, call.data, gas=call.gas, deadline_seconds=30)
        return receipt.gas_used

    async def allocate(self) -> None:
        """Allocates 80 USD of the client to the coordinator, and announces a release of 10."""
        escrow, coordinator = self.contracts.escrow, self.coordinator
        approval = self.contracts.token.approve(self.stage.deployment.escrow)
        await self.send("client", "approve", approval)
        await self.send("client", "deposit", escrow.deposit(Amount(100 * USD)))
        await self.send("client", "allocate", escrow.allocate(coordinator, Amount(80 * USD)))
        release = escrow.request_release(coordinator, Amount(10 * USD))
        await self.send("client", "release", release)

    async def post(self, number: int) -> None:
        """Posts an epoch, sets the chain's clock forward, and waits until the epoch is final."""
        client, coordinator = self.stage.client, self.coordinator
        head, domain = (await self.chain.head()).time, self.stage.deployment.domain()
        session = Session(
            client.address,
            self.session_key.address,
            coordinator,
            Amount(50 * USD),
            UnixSeconds(head + 3600),
        )
        voucher = Voucher(client.address, coordinator, Amount(number * USD))
        signed = SignedVoucher(
            seal(domain, session, client.sign), seal(domain, voucher, self.session_key.sign)
        )
        root = build(leaves(number))
        call = self.contracts.epochs.post(coordinator, number, root, [signed])
        await self.send("posting", f"epoch-{number}", call)
        self.stage.chain_clock.error += DEVNET.challenge_window
        with self.state.transaction():
            self.state.epochs[number] = EpochRecord(
                number, leaves(number), root.hash, (), UnixSeconds(head), True
            )
        await until(
            lambda: ask(self.chain, self.contracts.epochs.newest_final(coordinator)),
            lambda found: found.number == number,
            40,
        )

    async def balances(self) -> list[int]:
        """Returns each provider's token balance."""
        token = self.contracts.token
        return [await ask(self.chain, token.balance_of(owner)) for owner in PROVIDERS]

    async def claimed(self, owner: Address) -> Amount:
        """Returns the amount that was claimed for an account."""
        return await ask(self.chain, self.contracts.epochs.claimed(self.coordinator, owner))

    def batch_claims(self, state: State | None = None) -> BatchClaims:
        """Returns the coordinator's claims, as after a restart."""
        return BatchClaims(
            self.chain,
            self.contracts,
            self.coordinator,
            self.state if state is None else state,
            self.senders["posting"],
            DEVNET,
            SystemClock(),
        )

    def close(self) -> None:
        """Closes the files of sent transactions."""
        for sender in self.senders.values():
            sender.close()


@pytest.mark.rule("2.8", "6.55")
async def test_every_provider_is_paid_once(stage: Stage) -> None:
    async with running(stage.service()):
        pass  # registers the coordinator
    made = ClaimStage.of(stage)
    await made.allocate()
    client = stage.client.address
    told = await allocation_of(made.chain, made.contracts, client, made.coordinator)
    now = (await made.chain.head()).time
    assert (told.allocation, told.escrowed) == (70 * USD, 80 * USD)
    assert now < told.release_at <= now + DEVNET.allocation_release
    first = made.batch_claims()
    assert await first.look() == 0, "there is no epoch yet"
    await made.post(1)
    together = await first.look()
    assert await made.balances() == [1000, 2000, 3000, 4000, 5000]
    assert await made.claimed(ZERO_ADDRESS) == 0
    assert await first.look() == 0 and await made.batch_claims().look() == 0, "paid already"
    assert await made.balances() == [1000, 2000, 3000, 4000, 5000]
    await made.post(2)
    own = made.contracts.epochs.claim(made.coordinator, 2, *prove(leaves(2), PROVIDERS[0]))
    alone = await made.send("provider", "own", own)
    assert await first.look() > 0, "the provider that claimed by itself is left out"
    assert await made.balances() == [2000, 4000, 6000, 8000, 10000]
    assert await made.claimed(PROVIDERS[0]) == 2000
    late = made.batch_claims(State())
    assert await late.look() == 0, "providers claim epochs whose leaves are no longer kept"
    rare = made.batch_claims()
    rare.limits = replace(DEVNET, claim_every_epochs=24)
    assert await rare.look() == 0, "not before the 24th epoch"
    await made.post(3)
    rare.at_once = Amount(2501)  # on average; 15,000 for six accounts are new
    assert await rare.look() == 0, "the gas costs too much of it"
    rare.at_once = Amount(2500)
    assert await rare.look() > 0 and await rare.look() == 0
    assert await made.balances() == [3000, 6000, 9000, 12000, 15000]
    print(f"all together {together} gas, {together // len(PROVIDERS)} each; alone {alone}")
    assert together < alone * len(PROVIDERS)
    made.close()


class BlockingToken:
    """A chain node and a sender, whose token refuses to pay the accounts of a list.

    Each transaction that is sent counts as mined.
    """

    def __init__(self, listed: set[Address], reason: str) -> None:
        self.listed, self.reason, self.asked = listed, reason, 0
        self.sent: list[bytes] = []

    async def call(self, to: Address, data: bytes) -> bytes:
        """Raises Refused if the call would pay an account of the list."""
        self.asked += 1
        if any(account in data for account in self.listed):
            raise Refused(Code.CHAIN, self.reason)
        return b""

    async def send(
        self, purpose: str, to: Address, data: bytes, gas: int, deadline_seconds: float
    ) -> Receipt:
        """Records the transaction."""
        self.sent.append(data)
        return Receipt(ZERO_HASH, BlockNumber(1), ZERO_HASH, True, gas, 1, None, (), None)


@pytest.mark.parametrize("reason", ["Blacklistable: account is blacklisted", "token", "", "stale"])
async def test_an_account_that_the_token_refuses_delays_no_other_pay(
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
    token = BlockingToken({owners[70], owners[99]}, reason)

    async def newest_final(*_: object) -> Epoch:
        return Epoch(root.hash, 1, UnixSeconds(0), Amount(root.final), Amount(0))

    monkeypatch.setattr("quorate_coordinator.chain.batch_claims.ask", newest_final)
    contracts = SimpleNamespace(epochs=Epochs(Address(b"\xee" * 20)))
    batch_claims = BatchClaims(
        token, contracts, Address(b"\xcc" * 20), state, token, DEVNET, SystemClock()
    )  # type: ignore[arg-type]
    assert await batch_claims.look() > 0
    paid = [[owner in data for data in token.sent].count(True) for owner in owners]
    expected = (
        [1] * 64 + [0] * 36
        if reason == "stale"
        else [0 if number in (70, 99) else 1 for number in range(100)]
    )
    assert paid == expected and token.asked <= 1 + 2 * 2 * 7, (
        "whole parts, halves of one, and not one by one"
    )
