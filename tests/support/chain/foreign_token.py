"""A real stablecoin that is not ours: the compiled USD Coin (FiatToken 2.1), six decimals.

Its licence is in the file of its code. It has a permit (EIP-2612), and its minters are listed.
"""

import json
from pathlib import Path

from quorate_contracts.abi_codec import encode
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.units import Address

CREATION = bytes.fromhex(
    json.loads(Path(__file__).with_suffix(".json").read_text())["creation"].removeprefix("0x")
)
CREATION_GAS = 6_000_000
NAME, VERSION = "USD Coin", "2"
_CALL_GAS = 400_000


def call(token: Address, function: str, *arguments: object) -> Call:
    """Returns a call of one of its functions, such as `mint(address,uint256)`."""
    kinds = function[function.index("(") + 1 : -1].split(",")
    data = keccak256(function.encode())[:4] + encode(kinds, arguments)
    return Call(token, data, _CALL_GAS)


def set_up(token: Address, master: Address) -> tuple[Call, ...]:
    """Returns the calls that begin it; `master` holds all its roles."""
    begin = "initialize(string,string,string,uint8,address,address,address,address)"
    return (
        call(token, begin, NAME, "USDC", "USD", 6, master, master, master, master),
        call(token, "initializeV2(string)", NAME),
        call(token, "initializeV2_1(address)", Address(b"\x77" * 20)),
    )


def allow_minting(token: Address, minter: Address) -> Call:
    """The master lets an account mint."""
    return call(token, "configureMinter(address,uint256)", minter, 2**200)
