"""Permits of tokens (EIP-2612): an approval that the owner signs instead of sending.

A token has it if it answers as the standard says, and if the domain that it names is the one that
its own name, version, chain and address give. So a chain node cannot make an owner sign a permit
for another token. All other tokens are approved by a transaction.
"""

from dataclasses import dataclass

from quorate_contracts.abi_codec import decode, encode
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Amount, Hash32, Signature, UnixSeconds
from quorate_runtime.chain.client import ChainClient

PERMIT = b"Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)"
PERMIT_FUNCTION = b"permit(address,address,uint256,uint256,uint8,bytes32,bytes32)"
PERMIT_GAS = 150_000
DOMAIN = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
VERSION_WITHOUT_NAME = "1"  # what most tokens without version() use
TEXT_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class PermitTerms:
    """What a token's owner needs to sign its next permit."""

    domain_separator: Hash32
    owner: Address
    nonce: int

    def sign(
        self, spender: Address, amount: Amount, deadline: UnixSeconds, signer: Signer
    ) -> Signature:
        """Returns the owner's signature: `spender` may pull `amount`, if told until `deadline`."""
        kinds = ("bytes32", "address", "address", "uint256", "uint256", "uint256")
        values = (keccak256(PERMIT), self.owner, spender, amount, self.nonce, deadline)
        message = keccak256(encode(kinds, values))
        return signer.sign(keccak256(b"\x19\x01" + self.domain_separator + message))


def permit_words(signature: Signature) -> tuple[int, Hash32, Hash32]:
    """Returns v, r and s, in the order of a token's `permit` and of `deposit_with_permit`."""
    return signature[64], Hash32(signature[:32]), Hash32(signature[32:64])


def permit_call(
    token: Address,
    owner: Address,
    spender: Address,
    amount: Amount,
    deadline: UnixSeconds,
    signature: Signature,
) -> Call:
    kinds = ("address", "address", "uint256", "uint256", "uint8", "bytes32", "bytes32")
    data = encode(kinds, (owner, spender, amount, deadline, *permit_words(signature)))
    return Call(token, keccak256(PERMIT_FUNCTION)[:4] + data, PERMIT_GAS)


async def permit_terms(
    client: ChainClient, token: Address, chain_id: int, owner: Address
) -> PermitTerms | None:
    """Returns what the owner signs; None if the token has no permit of the standard. Raises
    Unavailable if the chain node does not answer.
    """
    found = await _ask(client, token, "DOMAIN_SEPARATOR()")
    nonce = await _ask(client, token, "nonces(address)", encode(("address",), (owner,)))
    kind = await _ask(client, token, "PERMIT_TYPEHASH()")
    name = _text(await _ask(client, token, "name()"))
    version = _text(await _ask(client, token, "version()")) or VERSION_WITHOUT_NAME
    if len(found) != 32 or len(nonce) != 32 or (len(kind) == 32 and kind != keccak256(PERMIT)):
        return None
    kinds = ("bytes32", "bytes32", "bytes32", "uint256", "address")
    named = (keccak256(DOMAIN), keccak256(name.encode()), keccak256(version.encode()))
    if keccak256(encode(kinds, (*named, chain_id, token))) != found:
        return None
    return PermitTerms(Hash32(found), owner, int.from_bytes(nonce, "big"))


async def _ask(client: ChainClient, token: Address, function: str, arguments: bytes = b"") -> bytes:
    try:
        return await client.call(token, keccak256(function.encode())[:4] + arguments)
    except Refused:
        return b""  # a token without this function has no permit


def _text(data: bytes) -> str:
    try:
        (found,) = decode(("string",), data)
    except (ValueError, OverflowError):
        return ""  # some old tokens answer bytes32, and have no permit
    return str(found)[:TEXT_BYTES_MAX]
