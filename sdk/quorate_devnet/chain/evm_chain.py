"""The chain itself: makes blocks from the pool, and keeps state and receipts.

Synchronous, with one owner.

eth-tester makes a block of each transaction, so its clock runs ahead, or it refuses a second
pending transaction of one sender. So this module makes the blocks, over py-evm: it sets the time,
applies the transactions that can be applied, and writes the state once (40 transactions in 0.06 s).
Plain dictionaries index blocks and receipts, so a receipt needs no search.
"""

import logging
import secrets

from eth.abc import BlockHeaderAPI, ReceiptAPI, SignedTransactionAPI, StateAPI, VirtualMachineAPI
from eth.chains.base import MiningChain
from eth.constants import (
    BLANK_ROOT_HASH,
    POST_MERGE_DIFFICULTY,
    POST_MERGE_MIX_HASH,
    POST_MERGE_NONCE,
    ZERO_ADDRESS,
)
from eth.db.atomic import AtomicDB
from eth.exceptions import PyEVMError
from eth.vm.chain_context import ChainContext
from eth.vm.spoof import SpoofTransaction
from eth_keys.exceptions import BadSignature
from eth_typing import Address, BlockNumber
from eth_utils.exceptions import ValidationError
from rlp.exceptions import DecodingError, DeserializationError  # type: ignore[import-untyped]

from quorate_devnet.chain import CHAIN_ID
from quorate_devnet.chain.block_records import Block, Call, Mined, Outcome, mined_record, outcome
from quorate_devnet.chain.precompiles import NativeVM
from quorate_devnet.chain.rpc_errors import INVALID_PARAMS, SERVER_ERROR, RpcError
from quorate_devnet.chain.transaction_pool import Pending, Pool

BLOCK_GAS = 30_000_000
TRANSACTION_GAS_MAX = 16_777_216  # EIP-7825
RAW_BYTES_MAX = 128 * 1024
KINDS = (1, 2)  # legacy ones work too; blob and set-code transactions do not
REORG_MAX = 256

log = logging.getLogger(__name__)


class _DevnetChain(MiningChain):
    """py-evm's chain, of which only the state machine and the header database are used."""

    chain_id = CHAIN_ID
    vm_configuration = ((BlockNumber(0), NativeVM),)


class Ledger:
    """Blocks and state since genesis.

    `mine` makes one block, `submit` queues a transaction, and all other methods read.
    """

    def __init__(self, now: int, balances: dict[bytes, int]) -> None:
        state = {
            Address(address): {"balance": wei, "nonce": 0, "code": b"", "storage": {}}
            for address, wei in balances.items()
        }
        genesis = {
            "coinbase": ZERO_ADDRESS,
            "difficulty": POST_MERGE_DIFFICULTY,
            "extra_data": b"",
            "gas_limit": BLOCK_GAS,
            "mix_hash": POST_MERGE_MIX_HASH,
            "nonce": POST_MERGE_NONCE,
            "receipt_root": BLANK_ROOT_HASH,
            "timestamp": now,
            "transaction_root": BLANK_ROOT_HASH,
        }
        chain = _DevnetChain.from_genesis(AtomicDB(), genesis, state)  # type: ignore[arg-type]
        assert isinstance(chain, _DevnetChain)
        self._chain = chain
        self._blocks = [Block(chain.get_canonical_head(), ())]
        self._numbers = {self.head.header.hash: 0}
        self._mined: dict[bytes, tuple[int, Mined]] = {}
        self.pool = Pool()

    # -------------------------------------------------------------------------------------- reading

    @property
    def head(self) -> Block:
        """The newest block."""
        return self._blocks[-1]

    def blocks(self) -> tuple[Block, ...]:
        """All blocks from the first one on."""
        return tuple(self._blocks)

    def block(self, number: int) -> Block | None:
        """Returns a block by height."""
        return self._blocks[number] if 0 <= number < len(self._blocks) else None

    def block_of_hash(self, block_hash: bytes) -> Block | None:
        """Returns a canonical block by hash."""
        number = self._numbers.get(block_hash)  # type: ignore[call-overload]
        return None if number is None else self._blocks[number]

    def mined(self, transaction_hash: bytes) -> tuple[Block, Mined] | None:
        """Returns a transaction with its block."""
        found = self._mined.get(transaction_hash)
        return None if found is None else (self._blocks[found[0]], found[1])

    def state(self, block: Block) -> StateAPI:
        """Returns the state after a block, for reading. Gas costs nothing in it."""
        header = block.header.copy(base_fee_per_gas=0)
        hashes = (
            self._blocks[n].header.hash
            for n in range(block.number - 1, max(-1, block.number - 257), -1)
        )
        return NativeVM.build_state(self._chain.chaindb.db, header, ChainContext(CHAIN_ID), hashes)

    def try_call(self, call: Call, block: Block) -> Outcome:
        """Runs a call on the state after `block`, with that block's number and time, and discards
        its effects.
        """
        state = self.state(block)
        builder = NativeVM.get_transaction_builder()
        unsigned = builder.create_unsigned_transaction(
            nonce=state.get_nonce(Address(call.sender)),
            gas_price=0,
            gas=call.gas,
            to=Address(call.to),
            value=call.value,
            data=call.data,
        )
        spoofed = SpoofTransaction(unsigned, from_=Address(call.sender))
        try:
            computation = state.apply_transaction(spoofed)  # type: ignore[arg-type]
        except ValidationError as error:
            raise RpcError(SERVER_ERROR, str(error)) from error
        return outcome(call, computation)

    # -------------------------------------------------------------------------------------- writing

    def submit(self, raw: bytes) -> bytes:
        """Checks a signed transaction as a node does, queues it, and returns its hash. RpcError in
        geth's words.
        """
        pending = _decoded(raw)
        if pending.hash in self._mined:
            raise RpcError(SERVER_ERROR, "already known")
        transaction, state = pending.transaction, self.state(self.head)
        if pending.nonce < state.get_nonce(Address(pending.sender)):
            raise RpcError(
                SERVER_ERROR,
                (
                    f"nonce too low: next nonce {state.get_nonce(Address(pending.sender))}, tx "
                    f"nonce "
                    f"{pending.nonce}"
                ),
            )
        if transaction.gas > TRANSACTION_GAS_MAX:
            raise RpcError(
                SERVER_ERROR,
                (
                    f"transaction gas limit too high (cap: {TRANSACTION_GAS_MAX}, tx: "
                    f"{transaction.gas})"
                ),
            )
        if transaction.gas < transaction.intrinsic_gas:
            raise RpcError(
                SERVER_ERROR,
                (
                    f"intrinsic gas too low: gas {transaction.gas}, minimum needed "
                    f"{transaction.intrinsic_gas}"
                ),
            )
        if (
            state.get_balance(Address(pending.sender))
            < transaction.value + transaction.gas * transaction.max_fee_per_gas
        ):
            raise RpcError(SERVER_ERROR, "insufficient funds for gas * price + value")
        self.pool.add(pending)
        return pending.hash

    def mine(self, now: int, random: bytes = b"") -> Block:
        """Makes one block of all transactions that can be mined. Its time is max(parent + 1, now),
        set before the first transaction runs. Its random number is fresh unless it is given.
        """
        parent = self.head.header
        fresh = NativeVM.create_header_from_parent(parent, gas_limit=parent.gas_limit)
        stamp = max(parent.timestamp + 1, now)
        header = fresh.copy(
            timestamp=stamp, coinbase=ZERO_ADDRESS, mix_hash=random or secrets.token_bytes(32)
        )
        vm = self._chain.get_vm(header)
        mined: list[Mined] = []
        receipts: list[ReceiptAPI] = []
        events_before = 0
        for pending in self.pool.ready(lambda sender: vm.state.get_nonce(Address(sender))):
            if not _fits(pending.transaction, header, vm.state):
                continue  # it stays in the pool for a later block
            try:
                receipt, computation = vm.apply_transaction(header, pending.transaction)
            except ValidationError as error:
                # Not re-raised: it cannot be mined any more, because its sender has spent the money
                # elsewhere. A real node drops it as well.
                log.warning("transaction %s dropped: %s", pending.hash.hex(), error)
                self.pool.remove(pending)
                continue
            before, header = header, vm.add_receipt_to_header(header, receipt)
            mined.append(
                mined_record(pending, len(mined), before, header, computation, events_before)
            )
            events_before += len(receipt.logs)
            receipts.append(receipt)
        return self._seal(vm, header, mined, receipts)

    def reorganise(self, depth: int, now: int) -> None:
        """For tests: removes the newest `depth` blocks with their transactions, and makes as many
        empty ones.
        """
        if not 1 <= depth <= min(REORG_MAX, self.head.number):
            raise RpcError(INVALID_PARAMS, f"cannot drop {depth} of {self.head.number} blocks")
        for block in self._blocks[-depth:]:
            del self._numbers[block.header.hash]
            for item in block.transactions:
                del self._mined[item.pending.hash]
        stamps = [block.header.timestamp for block in self._blocks[-depth:]]
        del self._blocks[-depth:]
        waiting, self.pool = self.pool, Pool()
        for stamp in stamps:
            self.mine(min(stamp, now))
        self.pool = waiting

    def _seal(
        self,
        vm: VirtualMachineAPI,
        header: BlockHeaderAPI,
        mined: list[Mined],
        receipts: list[ReceiptAPI],
    ) -> Block:
        vm.state.persist()
        header = header.copy(state_root=vm.state.state_root)
        transactions = [item.pending.transaction for item in mined]
        filled = vm.set_block_transactions_and_withdrawals(
            vm.get_block(), header, transactions, receipts
        )
        sealed = vm.mine_block(
            filled, coinbase=header.coinbase, mix_hash=header.mix_hash, blob_gas_used=0
        ).block.header
        self._chain.chaindb.persist_header(sealed)
        block = Block(sealed, tuple(mined))
        self._numbers[sealed.hash] = block.number
        self._blocks.append(block)
        for item in mined:
            self._mined[item.pending.hash] = (block.number, item)
            self.pool.remove(item.pending)
        for pending in self.pool.stale(lambda sender: vm.state.get_nonce(Address(sender))):
            self.pool.remove(pending)
        return block


def _decoded(raw: bytes) -> Pending:
    if len(raw) > RAW_BYTES_MAX:
        raise RpcError(
            SERVER_ERROR, f"oversized data: transaction size {len(raw)}, limit {RAW_BYTES_MAX}"
        )
    if not raw or (raw[0] < 0xC0 and raw[0] not in KINDS):
        raise RpcError(SERVER_ERROR, "invalid transaction: transaction type not supported")
    try:
        transaction = NativeVM.get_transaction_builder().decode(raw)
        transaction.validate()
        sender = bytes(transaction.sender)
    except (
        DecodingError,
        DeserializationError,
        ValidationError,
        BadSignature,
        PyEVMError,
        ValueError,
        TypeError,
        IndexError,
    ) as error:
        # py-evm and rlp raise any of these on malformed bytes; the sender gets the reason.
        raise RpcError(SERVER_ERROR, f"invalid transaction: {error}") from error
    if transaction.chain_id not in (None, CHAIN_ID):
        raise RpcError(
            SERVER_ERROR,
            f"invalid chain id for signer: have {transaction.chain_id} want {CHAIN_ID}",
        )
    return Pending(transaction, bytes(transaction.hash), sender, raw)


def _fits(transaction: SignedTransactionAPI, header: BlockHeaderAPI, state: StateAPI) -> bool:
    return (
        header.gas_used + transaction.gas <= header.gas_limit
        and transaction.max_fee_per_gas >= (header.base_fee_per_gas or 0)
        and transaction.nonce == state.get_nonce(transaction.sender)
    )
