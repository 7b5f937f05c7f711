"""Who signed a transaction that a node shows (`quorate_runtime.chain.sent_before`)."""

import pytest
from eth_account import Account

from quorate_runtime.chain.sent_before import signer

FIELDS = {
    "type": 2,
    "chainId": 31337,
    "nonce": 2,
    "maxPriorityFeePerGas": 1,
    "maxFeePerGas": 100,
    "gas": 250_000,
    "value": 0,
    "data": "0x6e55",
}


@pytest.mark.parametrize("to", ["0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0", None])
def test_a_transaction_as_nodes_show_it_names_its_signer(to: str | None) -> None:
    account = Account.from_key(b"\x11" * 32)
    receiver = {"to": bytes.fromhex(to[2:])} if to else {}
    signed = account.sign_transaction({**FIELDS, **receiver})
    numbers = {name: hex(value) for name, value in FIELDS.items() if isinstance(value, int)}
    shown = {
        **numbers,
        "to": to,
        "input": FIELDS["data"],
        "accessList": [],
        "r": hex(signed.r),
        "s": hex(signed.s),
        "yParity": hex(signed.v),
    }
    assert signer(shown) == bytes.fromhex(account.address[2:])
