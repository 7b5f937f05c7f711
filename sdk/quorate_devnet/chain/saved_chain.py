"""A devnet chain as a file: what its blocks were made of, so that the same blocks can be made
again.
"""

from pathlib import Path

from msgspec import MsgspecError, Struct
from msgspec.json import decode

from quorate_devnet.chain.accounts import BALANCE_WEI, FUNDED, dev_address
from quorate_devnet.chain.evm_chain import Ledger
from quorate_devnet.chain.rpc_errors import RpcError

FILE_BYTES_MAX = 256 << 20


class SavedBlock(Struct, frozen=True, forbid_unknown_fields=True):
    """What decides a block: its time, its random number, and its signed transactions in order."""

    time: int
    random: bytes
    transactions: tuple[bytes, ...]


class SavedChain(Struct, frozen=True, forbid_unknown_fields=True):
    """All blocks after the first one, whose accounts are those of every devnet."""

    genesis_time: int
    head: bytes  # hash of the newest block, to compare with
    blocks: tuple[SavedBlock, ...]


def save(ledger: Ledger) -> SavedChain:
    first, *blocks = ledger.blocks()
    return SavedChain(
        first.header.timestamp,
        ledger.head.header.hash,
        tuple(
            SavedBlock(
                block.header.timestamp,
                block.header.mix_hash,
                tuple(item.pending.raw for item in block.transactions),
            )
            for block in blocks
        ),
    )


def restore(saved: SavedChain) -> Ledger:
    """Makes the same blocks again. Raises ValueError if the newest one has another hash."""
    ledger = new_ledger(saved.genesis_time)
    for block in saved.blocks:
        for raw in block.transactions:
            ledger.submit(raw)
        ledger.mine(block.time, block.random)
    if ledger.head.header.hash != saved.head:
        raise ValueError("its transactions do not give the blocks that it names")
    return ledger


def read(path: Path) -> Ledger:
    """Returns the chain of a file. Raises ValueError with its path, the cause and the remedy."""
    try:
        with path.open("rb") as file:
            saved = decode(file.read(FILE_BYTES_MAX), type=SavedChain)
        return restore(saved)
    except (OSError, MsgspecError, RpcError, ValueError) as error:
        cause = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(f"{path}: {cause}; name the chain.json that a demo kept") from error


def new_ledger(now: int, accounts: int = FUNDED) -> Ledger:
    """Returns a chain with nothing but funded development accounts."""
    return Ledger(now, {dev_address(index): BALANCE_WEI for index in range(accounts)})
