"""Checks the token that a new deployment shall use. The contracts never change it later."""

from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address
from quorate_runtime.chain.client import ChainClient

DECIMALS = 6  # amounts in every signed message are millionths of a USD


def address_of(name: str, text: str) -> Address:
    """Returns the address that a flag names. Raises Refused, which names the flag."""
    try:
        found = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        found = b""  # its length is refused below
    if len(found) != 20:
        raise Refused(Code.MALFORMED, f"{name} {text[:60]!r}: an address is 0x and 40 hex digits")
    return Address(found)


async def check_token(client: ChainClient, token: Address) -> None:
    """Raises Refused if the address holds no token of six decimals."""
    place = f"--token 0x{token.hex()}"
    if not await client.code(token):
        raise Refused(Code.CHAIN, f"{place}: there is no contract on this chain")
    decimals = await _number(client, token, "decimals()")
    supply = await _number(client, token, "totalSupply()")
    balance = await _number(client, token, "balanceOf(address)", bytes(32))
    if decimals is None or supply is None or balance is None:
        raise Refused(Code.CHAIN, f"{place}: that contract is no ERC-20 token")
    if decimals != DECIMALS:
        raise Refused(
            Code.CHAIN,
            f"{place}: it has {decimals} decimals, and Quorate needs {DECIMALS}, as USDC has",
        )


async def _number(
    client: ChainClient, token: Address, function: str, arguments: bytes = b""
) -> int | None:
    try:
        answer = await client.call(token, keccak256(function.encode())[:4] + arguments)
    except Refused:
        return None  # a contract without this function is no token
    return int.from_bytes(answer, "big") if len(answer) == 32 else None
