"""The devnet's keys are those that other tools derive from the same mnemonic."""

import pytest
from eth_account import Account

from quorate_devnet.chain.accounts import FUNDED, MNEMONIC, dev_account, dev_address


@pytest.mark.parametrize("index", [0, 1, 7, FUNDED - 1, 1_000, 2**31 - 1])
def test_keys_are_those_of_eth_account(index: int) -> None:
    Account.enable_unaudited_hdwallet_features()
    known = Account.from_mnemonic(MNEMONIC, account_path=f"m/44'/60'/0'/0/{index}")
    assert dev_account(index) == bytes(known.key)
    assert dev_address(index) == bytes.fromhex(known.address[2:])
