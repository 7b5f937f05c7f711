"""One virtual machine for the contract tests.

It follows py-evm's Prague rules with native pairing and makes one block per transaction. Only tests
move its clock. Transactions have no signature and no gas price, because the tests are about
contracts. A fork costs little, because states are tries.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

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

from quorate_contracts.bindings.calls import Call, Query
from quorate_contracts.bindings.events import Event
from quorate_contracts.deploy import Contracts, Creation
from quorate_devnet.chain.precompiles import NativeVM
from quorate_protocol.units import Address, Hash32

T = TypeVar("T")
CHAIN_ID = 31337
NOBODY = Address(bytes(20))
GENESIS_TIME = 1_800_000_000
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
    logs: tuple[tuple[Address, tuple[Hash32, ...], bytes], ...] = ()


class _Chain(MiningChain):
    chain_id = CHAIN_ID
    vm_configuration = ((0, NativeVM),)


@dataclass
class Evm:
    """State of one chain. `now` is the timestamp of the next block."""

    chain: _Chain
    state_root: bytes
    now: int = GENESIS_TIME
    number: int = 1
    contracts: Contracts | None = None

    @classmethod
    def fresh(cls) -> "Evm":
        genesis = {
            "coinbase": ZERO_ADDRESS,
            "difficulty": POST_MERGE_DIFFICULTY,
            "extra_data": b"",
            "gas_limit": 30_000_000,
            "mix_hash": POST_MERGE_MIX_HASH,
            "nonce": POST_MERGE_NONCE,
            "receipt_root": BLANK_ROOT_HASH,
            "timestamp": GENESIS_TIME - 1,
            "transaction_root": BLANK_ROOT_HASH,
            "base_fee_per_gas": 0,
        }
        chain = _Chain.from_genesis(AtomicDB(), genesis, {})
        return cls(chain, chain.get_canonical_head().state_root)

    def fork(self) -> "Evm":
        """An independent copy from here on."""
        return replace(self)

    def travel(self, seconds: int) -> None:
        self.now += seconds

    def create(self, creation: Creation, deployer: Address) -> int:
        """Deploys a contract and checks its address and size; returns the gas."""
        gas, _ = self._run(deployer, b"", creation.data, creation.gas, True)
        code = self._vm().state.get_code(creation.address)
        assert 0 < len(code) <= CODE_BYTES_MAX, (creation.name, len(code))
        return gas

    def send(self, sender: Address, call: Call) -> Mined:
        """Sends a transaction with the gas that the binding gives. Raises Reverted with the
        contract's reason.
        """
        gas, logs = self._run(sender, call.to, call.data, call.gas, True)
        assert self.contracts is not None
        raw = tuple(
            (Address(place), tuple(Hash32(_word(topic)) for topic in topics), data)
            for place, topics, data in logs
        )
        events = (self.contracts.event(*item) for item in raw)
        return Mined(gas, tuple(event for event in events if event is not None), raw)

    def code(self, account: Address) -> bytes:
        """Returns a contract's code, with its immutables."""
        return bytes(self._vm().state.get_code(account))

    def ask(self, query: Query[T], sender: Address = NOBODY) -> T:
        """Runs eth_call at the current time."""
        output: list[bytes] = []
        self._run(sender, query.to, query.data, 30_000_000, False, output)
        return query.decode(output[0])

    def _vm(self):  # type: ignore[no-untyped-def]
        head = self.chain.get_canonical_head()
        header = head.copy(
            block_number=self.number,
            timestamp=self.now,
            state_root=self.state_root,
            base_fee_per_gas=0,
            gas_used=0,
            gas_limit=30_000_000,
        )
        return self.chain.get_vm(header)

    def _run(self, sender, to, data, gas, keep, output=None):  # type: ignore[no-untyped-def]
        vm = self._vm()
        builder = vm.get_transaction_builder()
        unsigned = builder.create_unsigned_transaction(
            nonce=vm.state.get_nonce(sender), gas_price=0, gas=gas, to=to, value=0, data=data
        )
        transaction = SpoofTransaction(unsigned, from_=sender)
        vm.state.lock_changes()
        computation = vm.state.apply_transaction(transaction)
        if output is not None:
            output.append(computation.output)
        if computation.is_error:
            raise Reverted(_reason(computation))
        used = vm.finalize_gas_used(transaction, computation)
        if keep:
            vm.state.persist()
            self.state_root = vm.state.state_root
            self.number += 1
        return used, computation.get_log_entries()


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
