"""The chain of the contract tests: what they may do with one, and py-evm as the usual one.

Each transaction is a block, and only tests move the clock. Transactions have no gas price.
`QUORATE_CONTRACTS_ON` names another kind of chain, which web3.py drives; see `web3_evm`.
"""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

import pytest
from eth.chains.base import MiningChain
from eth.constants import (
    BLANK_ROOT_HASH,
    POST_MERGE_DIFFICULTY,
    POST_MERGE_MIX_HASH,
    POST_MERGE_NONCE,
    ZERO_ADDRESS,
)
from eth.db.atomic import AtomicDB
from eth.vm.spoof import SpoofTransaction

from quorate_contracts.deploy import Contracts, Creation
from quorate_contracts.events import Event
from quorate_contracts.generated.contract_calls import Call, Query
from quorate_devnet.chain.precompiles import NativeVM
from quorate_protocol.units import Address, Hash32

T = TypeVar("T")
Log = tuple[Address, tuple[Hash32, ...], bytes]  # who, topics, data
CHOICE = "QUORATE_CONTRACTS_ON"
PY_EVM = "py-evm"
KINDS = (PY_EVM, "eth-tester", "anvil")
CHAIN_ID = 31337
NOBODY = Address(bytes(20))
GENESIS_TIME = 1_800_000_000
GAS_LIMIT = 30_000_000  # of a block
SECRETS: dict[Address, bytes] = {}  # of the tests' accounts: eth-tester takes only signatures
CODE_BYTES_MAX = 23_576  # of the 24,576 that a chain takes


class Reverted(Exception):
    """The chain refused a transaction. The message is the contract's reason."""


@dataclass(frozen=True, slots=True)
class Mined:
    """A transaction that succeeded, with its events and its gas. The gas includes base fee,
    calldata and refunds.
    """

    gas: int
    events: tuple[Event, ...]
    logs: tuple[Log, ...] = ()


def chain_kind() -> str:
    """Returns the kind of chain that the contract tests run on: "py-evm" unless one is named."""
    kind = os.environ.get(CHOICE) or PY_EVM
    assert kind in KINDS, f"{CHOICE} is {kind}, which is none of {', '.join(KINDS)}"
    return kind


def only_py_evm(reason: str) -> pytest.MarkDecorator:
    """Marks a test that no node can run, and says why."""
    return pytest.mark.skipif(chain_kind() != PY_EVM, reason=f"needs py-evm: {reason}")


@dataclass
class Evm(ABC):
    """One state of one chain. `now` is the timestamp of the next block, `number` its number."""

    now: int = GENESIS_TIME
    number: int = 1
    contracts: Contracts | None = None

    @staticmethod
    def fresh() -> "Evm":
        """Returns an empty chain of the kind that the environment names."""
        kind = chain_kind()
        if kind == PY_EVM:
            return PyEvm.made()
        from contracts.web3_evm import shared_chain

        return shared_chain(kind)

    @abstractmethod
    def fork(self) -> Self:
        """Returns an independent copy from here on."""

    @property
    @abstractmethod
    def state_root(self) -> bytes:
        """The root of the state trie: equal roots are equal states."""

    @abstractmethod
    def code(self, account: Address) -> bytes:
        """Returns a contract's code, with its immutables."""

    @abstractmethod
    def gas_of_refused(self, sender: Address, call: Call) -> int:
        """Returns the gas of a transaction that reverts, which then has not happened."""

    @abstractmethod
    def _transact(
        self, sender: Address, to: Address | None, data: bytes, gas: int
    ) -> tuple[int, tuple[Log, ...]]:
        """Makes a block of one transaction; returns its gas and logs. Raises Reverted."""

    @abstractmethod
    def _call(self, sender: Address, to: Address, data: bytes) -> bytes:
        """Runs eth_call in the next block. Raises Reverted."""

    def travel(self, seconds: int) -> None:
        self.now += seconds

    def create(self, creation: Creation, deployer: Address) -> int:
        """Deploys a contract and checks its address and size; returns the gas."""
        gas, _ = self._transact(deployer, None, creation.data, creation.gas)
        code = self.code(creation.address)
        assert 0 < len(code) <= CODE_BYTES_MAX, (creation.name, len(code))
        return gas

    def send(self, sender: Address, call: Call) -> Mined:
        """Sends a transaction with the gas that the binding gives. Raises Reverted with the
        contract's reason.
        """
        gas, logs = self._transact(sender, call.to, call.data, call.gas)
        assert self.contracts is not None
        events = (self.contracts.event(*item) for item in logs)
        return Mined(gas, tuple(event for event in events if event is not None), logs)

    def ask(self, query: Query[T], sender: Address = NOBODY) -> T:
        """Runs eth_call at the current time."""
        return query.decode(self._call(sender, query.to, query.data))


class _Chain(MiningChain):
    chain_id = CHAIN_ID
    vm_configuration = ((0, NativeVM),)


@dataclass
class PyEvm(Evm):
    """py-evm's Prague rules with native pairing, without signatures.

    A fork costs little, because states are tries.
    """

    chain: _Chain = field(kw_only=True)
    root: bytes = field(kw_only=True)
    reader: tuple[object, object] = field(default=((), None), init=False, compare=False)

    @classmethod
    def made(cls) -> "PyEvm":
        """Returns an empty chain."""
        genesis = {
            "coinbase": ZERO_ADDRESS,
            "difficulty": POST_MERGE_DIFFICULTY,
            "extra_data": b"",
            "gas_limit": GAS_LIMIT,
            "mix_hash": POST_MERGE_MIX_HASH,
            "nonce": POST_MERGE_NONCE,
            "receipt_root": BLANK_ROOT_HASH,
            "timestamp": GENESIS_TIME - 1,
            "transaction_root": BLANK_ROOT_HASH,
            "base_fee_per_gas": 0,
        }
        chain = _Chain.from_genesis(AtomicDB(), genesis, {})
        return cls(chain=chain, root=chain.get_canonical_head().state_root)

    def fork(self) -> Self:
        return replace(self)

    @property
    def state_root(self) -> bytes:
        return self.root

    def code(self, account: Address) -> bytes:
        return bytes(self._vm().state.get_code(account))

    def place(self, account: Address, code: bytes) -> None:
        """Puts code at an address."""
        vm = self._vm()
        vm.state.set_code(account, code)
        vm.state.persist()
        self.root = vm.state.state_root

    def gas_of_refused(self, sender: Address, call: Call) -> int:
        vm, transaction, computation = self._applied(sender, call.to, call.data, call.gas)
        assert computation.is_error
        return int(vm.finalize_gas_used(transaction, computation))

    def _transact(
        self, sender: Address, to: Address | None, data: bytes, gas: int
    ) -> tuple[int, tuple[Log, ...]]:
        vm, transaction, computation = self._applied(sender, to or b"", data, gas)
        if computation.is_error:
            raise Reverted(_reason(computation))
        used = vm.finalize_gas_used(transaction, computation)
        vm.state.persist()
        self.root = vm.state.state_root
        self.number += 1
        logs = (
            (Address(place), tuple(Hash32(_word(topic)) for topic in topics), data)
            for place, topics, data in computation.get_log_entries()
        )
        return used, tuple(logs)

    def _call(self, sender: Address, to: Address, data: bytes) -> bytes:
        vm = self._reading()
        before = vm.state.snapshot()
        transaction = _transaction(vm, sender, to, data, GAS_LIMIT)
        computation = vm.state.apply_transaction(transaction)
        vm.state.revert(before)
        if computation.is_error:
            raise Reverted(_reason(computation))
        return bytes(computation.output)

    def _reading(self):  # type: ignore[no-untyped-def]
        """The machine for questions. It stays while nothing changes, with all it has read."""
        place = (self.root, self.now, self.number)
        if self.reader[0] != place:
            self.reader = (place, self._vm())
        return self.reader[1]

    def _vm(self):  # type: ignore[no-untyped-def]
        head = self.chain.get_canonical_head()
        header = head.copy(
            block_number=self.number,
            timestamp=self.now,
            state_root=self.root,
            base_fee_per_gas=0,
            gas_used=0,
            gas_limit=GAS_LIMIT,
        )
        return self.chain.get_vm(header)

    def _applied(self, sender, to, data, gas):  # type: ignore[no-untyped-def]
        vm = self._vm()
        transaction = _transaction(vm, sender, to, data, gas)
        vm.state.lock_changes()
        return vm, transaction, vm.state.apply_transaction(transaction)


def _transaction(vm, sender, to, data, gas):  # type: ignore[no-untyped-def]
    unsigned = vm.get_transaction_builder().create_unsigned_transaction(
        nonce=vm.state.get_nonce(sender), gas_price=0, gas=gas, to=to, value=0, data=data
    )
    return SpoofTransaction(unsigned, from_=sender)


def _word(topic: object) -> bytes:
    return topic.to_bytes(32, "big") if isinstance(topic, int) else bytes(topic)  # type: ignore[call-overload, no-any-return]


def _reason(computation) -> str:  # type: ignore[no-untyped-def]
    data = bytes(computation.output)
    if data[:4] == bytes.fromhex("08c379a0"):
        return data[68 : 68 + int.from_bytes(data[36:68], "big")].decode()
    return f"{type(computation.error).__name__} {computation.error}"[:120]


def refused(evm: Evm, reason: str, sender: Address, call: Call) -> None:
    """Asserts that a transaction is refused for exactly this reason, and changes nothing."""
    before = evm.state_root
    with pytest.raises(Reverted) as caught:
        evm.send(sender, call)
    assert str(caught.value) == reason, f"refused for {caught.value!s}, not for {reason}"
    assert evm.state_root == before
