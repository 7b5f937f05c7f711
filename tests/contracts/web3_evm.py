"""The contract tests' chain on a node: eth-tester or anvil, driven by AsyncWeb3.

A node has one state at a time, while tests hold many. So each state remembers the transactions that
led to it. A node comes to a state from the nearest snapshot, and executes the rest again.
"""

import abc
import asyncio
import atexit
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeVar

import pytest
from eth_account import Account
from eth_tester.exceptions import TransactionFailed
from web3 import AsyncWeb3
from web3.exceptions import Web3RPCError
from web3.types import RPCEndpoint

from contracts.evm import CHAIN_ID, GAS_LIMIT, GENESIS_TIME, SECRETS, Evm, Log, Reverted
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.units import Address, Hash32
from support.chain.tester_backend import SteeredBackend, steered_provider
from support.chain.web3_nodes import anvil_web3
from support.requirements import require

R = TypeVar("R")
ANSWER_SECONDS = 120.0
GAS_CAP = 16_777_216  # of a transaction since EIP-7825
PREFIX = "execution reverted: "
WITHOUT_FEES = (
    "--auto-impersonate",
    "--base-fee",
    "0",
    "--gas-price",
    "0",
    "--disable-min-priority-fee",
)


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """A state of a chain: the transaction that led to it, and the state before that."""

    depth: int = 0
    before: "Step | None" = None
    sender: Address = Address(bytes(20))
    to: Address | None = None
    data: bytes = b""
    gas: int = 0
    time: int = 0
    root: bytes = b""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a block of one transaction gave."""

    succeeded: bool
    gas: int
    logs: tuple[Log, ...]
    root: bytes


class Loop:
    """An event loop in a thread of its own, so that tests with a loop can call it too."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs a coroutine to its end."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_SECONDS)

    def close(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass
class Node(abc.ABC):
    """A node with one state: transactions, calls and snapshots, each in one request or two."""

    w3: AsyncWeb3[Any]
    forgets: ClassVar[bool] = True  # reverting ends this snapshot and all later ones

    def cannot(self, step: Step) -> str:
        """Returns why this kind of node can never execute a step, or nothing."""
        return ""

    async def request(self, method: str, *params: object) -> Any:
        return await self.w3.manager.coro_request(RPCEndpoint(method), params)

    @abc.abstractmethod
    async def hand_over(self, step: Step) -> bytes:
        """Sends a step's transaction and makes its block; returns the transaction's hash."""

    @abc.abstractmethod
    async def call(self, step: Step) -> bytes:
        """Runs eth_call in the block that would follow."""

    async def mine(self, step: Step) -> Receipt:
        """Makes the block of a step."""
        found = await self.w3.eth.get_transaction_receipt(await self.hand_over(step))  # type: ignore[arg-type]
        block = await self.w3.eth.get_block(found["blockNumber"])
        assert (block["number"], block["timestamp"]) == (step.depth, step.time)
        logs = tuple(
            (
                Address(bytes.fromhex(line["address"][2:])),
                tuple(Hash32(bytes(topic)) for topic in line["topics"]),
                bytes(line["data"]),
            )
            for line in found["logs"]
        )
        return Receipt(found["status"] == 1, found["gasUsed"], logs, bytes(block["stateRoot"]))

    async def code(self, account: Address) -> bytes:
        return bytes(await self.w3.eth.get_code(account))  # type: ignore[arg-type]

    async def snapshot(self) -> object:
        return await self.request("evm_snapshot")

    async def revert(self, place: object) -> None:
        assert await self.request("evm_revert", place)


class AnvilNode(Node):
    """anvil. It sends for any account without a signature."""

    async def hand_over(self, step: Step) -> bytes:
        await self.request("evm_setTime", step.time)  # the clock may stand, or go back
        sent: bytes = await self.request("eth_sendTransaction", _fields(step))
        await self.request("evm_mine", {"timestamp": step.time})
        return sent

    async def call(self, step: Step) -> bytes:
        place = {"time": hex(step.time), "number": hex(step.depth)}
        answer = await self.request("eth_call", _fields(step), "latest", {}, place)
        return bytes.fromhex(answer[2:])


class TesterNode(Node):
    """eth-tester. The tests sign with their accounts' keys."""

    forgets = False

    @property
    def _backend(self) -> SteeredBackend:
        backend: SteeredBackend = self.w3.provider.ethereum_tester.backend
        return backend

    def cannot(self, step: Step) -> str:
        return "" if step.sender in SECRETS else "eth-tester asks for a signature of a contract"

    async def hand_over(self, step: Step) -> bytes:
        sender = _hex(step.sender)
        nonce = await self.w3.eth.get_transaction_count(sender)  # type: ignore[arg-type]
        fields = _fields(step) | {"nonce": nonce, "chainId": CHAIN_ID, "value": 0}
        del fields["from"]
        signed = Account.sign_transaction(fields, SECRETS[step.sender])
        self._backend.set_next_timestamp(step.time)
        return await self.w3.eth.send_raw_transaction(signed.raw_transaction)

    async def call(self, step: Step) -> bytes:
        self._backend.set_next_timestamp(step.time)
        return bytes(await self.w3.eth.call(_fields(step), "pending"))  # type: ignore[arg-type]

    async def revert(self, place: object) -> None:
        await self.request("evm_revert", place)


def _fields(step: Step) -> dict[str, Any]:
    to = {} if step.to is None else {"to": _hex(step.to)}
    data = "0x" + step.data.hex()
    return {"from": _hex(step.sender), "gas": hex(step.gas), "gasPrice": "0x0", "data": data} | to


def _hex(account: Address) -> str:
    return AsyncWeb3.to_checksum_address(account)


@dataclass
class History:
    """Brings one node to the states that tests ask for."""

    sent: ClassVar[int] = 0  # transactions by all tests of this process

    node: Node
    loop: Loop
    at: Step | None = None  # None: at a state that nobody holds
    wanted: set[Step] = field(default_factory=set)
    snapshots: dict[Step, object] = field(default_factory=dict)  # in their order

    @classmethod
    def begun(cls, node: Node, loop: Loop) -> tuple["History", Step]:
        """Returns the history of a fresh node, and its first state."""
        made, first = cls(node, loop), Step()
        made.at = first
        made.keep(first)
        return made, first

    def keep(self, step: Step) -> None:
        """Says that tests will come back to a state."""
        self.wanted.add(step)
        if self.at is step:
            self._snap(step)

    def go(self, step: Step) -> None:
        """Brings the node to a state."""
        if self.at is step:
            return
        again: list[Step] = []
        start = step
        while start not in self.snapshots and start is not self.at:
            assert start.before is not None, "the first state has a snapshot"
            again.append(start)
            start = start.before
        if start is not self.at:
            self._revert(start)
        for each in reversed(again):
            done = self.loop.run(self.node.mine(each))
            assert done.root == each.root, "the same transactions lead to the same state"
            self.at = each
            if each in self.wanted:
                self._snap(each)

    def add(self, step: Step) -> tuple[Step, Receipt]:
        """Executes the next transaction. Raises Reverted, and then nothing has happened."""
        done = self._mined(step)
        if not done.succeeded:
            self._take_back(step)
            raise Reverted(self._reason(step))
        self.at = replace(step, root=done.root)
        return self.at, done

    def failed(self, step: Step) -> Receipt:
        """Executes a transaction that reverts, and takes its block back."""
        done = self._mined(step)
        assert not done.succeeded and not done.logs, "the transaction reverts"
        self._take_back(step)
        return done

    def call(self, step: Step) -> bytes:
        """Runs eth_call. Raises Reverted."""
        assert step.before is not None
        self.go(step.before)
        try:
            return self.loop.run(self.node.call(step))
        except (TransactionFailed, Web3RPCError) as error:
            raise Reverted(_reason_of(error)) from error

    def code(self, step: Step, account: Address) -> bytes:
        """Returns an account's code in a state."""
        self.go(step)
        return self.loop.run(self.node.code(account))

    def _reason(self, step: Step) -> str:
        try:
            self.call(step)
        except Reverted as reverted:
            return str(reverted)
        raise AssertionError("eth_call says what the transaction's block said")

    def _mined(self, step: Step) -> Receipt:
        assert step.before is not None
        if reason := self.node.cannot(step):
            assert self.code(step.before, step.sender), "an account whose key is unknown"
            pytest.skip(reason)
        self.go(step.before)
        self.at = None
        History.sent += 1
        return self.loop.run(self.node.mine(step))

    def _take_back(self, step: Step) -> None:
        """Goes back, and remembers the way: tests often send several refused transactions."""
        assert step.before is not None
        self.go(step.before)
        self._snap(step.before)

    def _snap(self, step: Step) -> None:
        if step not in self.snapshots:
            self.snapshots[step] = self.loop.run(self.node.snapshot())

    def _revert(self, step: Step) -> None:
        self.loop.run(self.node.revert(self.snapshots[step]))
        self.at = step
        if self.node.forgets:
            order = list(self.snapshots)
            for later in order[order.index(step) :]:
                del self.snapshots[later]
            self._snap(step)


@dataclass
class Web3Evm(Evm):
    """A state on a node."""

    history: History = field(kw_only=True)
    step: Step = field(kw_only=True)

    def fork(self) -> Self:
        self.history.keep(self.step)
        return replace(self)

    @property
    def state_root(self) -> bytes:
        return self.step.root

    def code(self, account: Address) -> bytes:
        return self.history.code(self.step, account)

    def gas_of_refused(self, sender: Address, call: Call) -> int:
        return self.history.failed(self._next(sender, call.to, call.data, call.gas)).gas

    def _transact(
        self, sender: Address, to: Address | None, data: bytes, gas: int
    ) -> tuple[int, tuple[Log, ...]]:
        assert gas <= GAS_CAP, "no chain takes a transaction with so much gas"
        self.step, done = self.history.add(self._next(sender, to, data, gas))
        self.number += 1
        return done.gas, done.logs

    def _call(self, sender: Address, to: Address, data: bytes) -> bytes:
        return self.history.call(self._next(sender, to, data, GAS_LIMIT))

    def _next(self, sender: Address, to: Address | None, data: bytes, gas: int) -> Step:
        depth = self.step.depth + 1
        assert self.number == depth, "a node numbers its blocks itself"
        return Step(depth, self.step, sender, to, data, gas, self.now)


def _reason_of(error: Exception) -> str:
    """Returns the reason in the words of the usual chain."""
    if isinstance(error, Web3RPCError) and error.rpc_response is not None:
        data = bytes.fromhex(str(error.rpc_response["error"].get("data") or "")[2:])
        if data[:4] == bytes.fromhex("08c379a0"):
            return data[68 : 68 + int.from_bytes(data[36:68], "big")].decode()
        return f"Revert {data!r}"[:120]
    return str(error).removeprefix(PREFIX)[:120]


@contextlib.contextmanager
def running_chain(kind: str) -> Iterator[Web3Evm]:
    """Runs a fresh chain of a kind; yields its first state."""
    with contextlib.ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)
        if kind == "anvil":
            require("anvil")
            context = anvil_web3(("--timestamp", str(GENESIS_TIME), *WITHOUT_FEES))
            stack.callback(lambda: loop.run(context.__aexit__(None, None, None)))
            node: Node = AnvilNode(loop.run(context.__aenter__()))
        else:
            node = TesterNode(AsyncWeb3(steered_provider(CHAIN_ID, GENESIS_TIME)))
        history, step = History.begun(node, loop)
        yield Web3Evm(history=history, step=step)


def shared_chain(kind: str) -> Web3Evm:
    """Returns an empty chain. All tests of a process share its node."""
    return _running_to_the_end(kind).fork()


@lru_cache(maxsize=2)
def _running_to_the_end(kind: str) -> Web3Evm:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(running_chain(kind))
