"""A client's withdrawal on the contract tests' machine, with coordinators that are halted.

Times are MAINNET's: 5 days until allocations are free, 7 until the rest is, 9 for a release.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from contracts.epoch_leaves import CLIENT, OWNERS
from contracts.evm_node import EvmNode
from contracts.market import (
    ACCUSER,
    CHAIN_ID,
    COORDINATOR,
    POSTER,
    STATEMENT,
    Key,
    Market,
    key,
    peopled,
)
from quorate.client.client_ledger import Ledger, OrderRecord, WithdrawalRecord
from quorate.client.money.chain_access import ChainAccess
from quorate.client.money.withdrawal import WithdrawalFlow, WithdrawalState
from quorate.client.signed_requests import draft_order
from quorate.job.job import Job
from quorate.job.packing import pack
from quorate_contracts.bindings.calls import Call
from quorate_protocol.limits import MAINNET, USD
from quorate_protocol.rules.epoch_tree import Leaf, build
from quorate_protocol.units import Address, Amount, Bps, Hash32, Nonce
from quorate_runtime.chain.sender import Outgoing
from quorate_runtime.chain.types import Fees, Receipt

JOB = Job(image="python@sha256:" + "0" * 64, command=("true",), max_price="1", max_duration="1h")
DEPOSIT = 50 * USD


class KilledError(BaseException):
    """The program ended here, as by kill -9."""


@dataclass
class ClientNode(EvmNode):
    """A node and a sender of the client's account. It can end the program at a transaction, and
    let somebody else be first.
    """

    address: Address = CLIENT.address
    fee_cap_wei: int = 10**12
    sent: list[str] = field(default_factory=list)  # every purpose, in order
    killed_before: int = -1  # the number of the transaction, from 0 on
    killed_after: int = -1
    meanwhile: Callable[[str], None] = lambda purpose: None

    async def balance(self, account: Address) -> int:
        return 10**18

    async def fees(self) -> Fees:
        return Fees(1, 1)

    async def send(
        self, purpose: str, to: Address, data: bytes, *, gas: int, deadline_seconds: float
    ) -> Receipt:
        number = len(self.ended)
        if purpose not in self.ended:
            if number == self.killed_before:
                raise KilledError
            self.meanwhile(purpose)
            self.sent.append(purpose.split("/", 1)[1])
        receipt = await super().send(purpose, to, data, gas=gas, deadline_seconds=deadline_seconds)
        if number == self.killed_after:
            raise KilledError
        return receipt

    async def send_in_order(
        self, outgoing: Sequence[Outgoing], *, deadline_seconds: float
    ) -> tuple[Receipt, ...]:
        receipts = []
        for item in outgoing:
            assert item.to is not None and item.gas is not None
            one = self.send(
                item.purpose, item.to, item.data, gas=item.gas, deadline_seconds=deadline_seconds
            )
            receipts.append(await one)
        return tuple(receipts)


class _Access(ChainAccess):
    def sender(self, account: Any, home: Path, clock: Any) -> Any:
        return self.client


@dataclass
class Client:
    """A client's profile: its market, its ledger and its node. Its identity names COORDINATOR."""

    world: Market
    ledger: Ledger
    node: ClientNode
    said: list[str] = field(default_factory=list)
    clock_ahead: int = 0

    @classmethod
    def of(cls, world: Market, folder: Path) -> "Client":
        """Returns client 0 of a market."""
        folder.mkdir(exist_ok=True)
        return cls(world, Ledger(folder / "ledger.sqlite"), ClientNode(world.evm))

    def now(self) -> float:
        return self.world.evm.now + self.clock_ahead

    def flow(self) -> WithdrawalFlow:
        """Returns what a new process of `quorate withdraw` works with."""
        c = self.world.contracts
        identity = SimpleNamespace(
            coordinator=COORDINATOR.address, constants=self.world.limits, chain_id=CHAIN_ID
        )
        identity.escrow, identity.token = c.escrow.address, c.token.address
        currency = SimpleNamespace(coins=str, send=lambda *_, **__: "send coins")
        access = _Access(
            cast(Any, self.node), cast(Any, identity), cast(Any, currency), "", c.epochs
        )
        profile = SimpleNamespace(account=CLIENT, home=Path())
        return WithdrawalFlow(
            access, cast(Any, profile), self.ledger, cast(Any, self), self.said.append
        )

    async def withdraw(
        self, amount: int | None = None, to: Address | None = None
    ) -> WithdrawalState:
        """Types `quorate withdraw` once."""
        flow = self.flow()
        wanted = None if amount is None else Amount(amount)
        return await flow.advance(await flow.begin(wanted, to))

    def under_way(self) -> WithdrawalRecord | None:
        return self.ledger.open_withdrawal()

    def promise(self, number: int, charged: int = 0, coordinator: Key = COORDINATOR) -> None:
        """Records an open order; with `charged` it has ended, and a voucher is signed for it."""
        spec = pack(JOB, {}).spec
        draft = draft_order(JOB, spec, CLIENT.address, coordinator.address, Bps(200))
        signed = draft.stamped(Nonce(number << 70), self.now())
        job_id = Hash32(bytes([number]) * 32)
        self.ledger.record(
            OrderRecord(job_id, "job", signed, spec.encode(), b"session", 1, None, None)
        )
        if charged:
            self.ledger.settle(job_id, Amount(charged))
            address = coordinator.address
            assert self.ledger.draft_voucher(CLIENT.address, address, Amount(DEPOSIT))


def send(world: Market, call: Call, sender: Key = ACCUSER) -> None:
    world.evm.send(sender.address, call)


def posted(final: int, held: int, *vouched: int) -> Market:
    """Returns a market with one epoch: one provider's leaf, and a voucher of each client."""
    world = peopled(MAINNET)
    index = world.evm.ask(world.contracts.stakes.index_of(OWNERS[0]))
    credits = [Leaf(index, OWNERS[0], Amount(final), Amount(held), Hash32(bytes(32)))]
    vouchers = [world.voucher(key(f"client{i}"), each) for i, each in enumerate(vouched)]
    number, root = 1, build(credits)
    send(world, world.contracts.epochs.post(COORDINATOR.address, number, root, vouchers), POSTER)
    return world


def demand(world: Market, coordinator: Key = COORDINATOR, statements: Key = STATEMENT) -> None:
    """Demands an epoch that will never come."""
    stated = world.statement(OWNERS[0], 10**9, epoch=2, signer=statements)
    send(world, world.contracts.challenges.demand_epoch(coordinator.address, stated))


def halt(world: Market, coordinator: Key = COORDINATOR, statements: Key = STATEMENT) -> int:
    """Demands an epoch, and halts the coordinator after the time for it. Returns when that was."""
    demand(world, coordinator, statements)
    world.evm.travel(MAINNET.halt_after + 1)
    send(world, world.contracts.challenges.halt(coordinator.address))
    return world.evm.now
