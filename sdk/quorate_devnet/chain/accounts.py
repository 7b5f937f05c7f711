"""Funded development accounts, from the well-known test mnemonic that all tools share. Never hold
value with them.
"""

from functools import lru_cache

from eth_account import Account
from eth_account.hdaccount import seed_from_mnemonic
from eth_account.hdaccount.deterministic import HDPath

MNEMONIC = "test test test test test test test test test test test junk"
HD_PATH = "m/44'/60'/0'/0"
FUNDED = 64
BALANCE_WEI = 1_000_000 * 10**18


@lru_cache(maxsize=256)
def dev_account(index: int) -> bytes:
    """Private key (32 bytes) of the development account at m/44'/60'/0'/0/index. Indices below
    `FUNDED` hold coins at genesis.
    """
    assert 0 <= index < 2**31, f"no account {index}"
    key: bytes = HDPath(f"{HD_PATH}/{index}").derive(_seed())
    return bytes(key)


def dev_address(index: int) -> bytes:
    """Returns the 20-byte address of `dev_account(index)`."""
    return bytes.fromhex(Account.from_key(dev_account(index)).address[2:])


@lru_cache(maxsize=1)
def _seed() -> bytes:
    return bytes(seed_from_mnemonic(MNEMONIC, ""))
