"""Encodes values by their ABI types and decodes them, with addresses as 20 bytes.

eth-abi does the work. Its import takes half a second, so it happens at the first value: commands
that do not call the chain do not wait for it.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from quorate_protocol.codec.canonical import Json
from quorate_protocol.units import Address

if TYPE_CHECKING:
    from eth_abi.codec import ABICodec


def encode(types: Sequence[str], values: Sequence[object]) -> bytes:
    return _codec().encode(types, values)


def decode(types: Sequence[str], data: bytes) -> tuple[Json, ...]:
    """Raises ValueError or OverflowError if the bytes are no such encoding."""
    codec = _codec()
    from eth_abi.exceptions import DecodingError

    try:
        return codec.decode(types, data)
    except DecodingError as error:
        raise ValueError(str(error)) from error


@cache
def _codec() -> "ABICodec":
    from eth_abi.codec import ABICodec
    from eth_abi.decoding import AddressDecoder
    from eth_abi.registry import BaseEquals, registry

    class AddressBytesDecoder(AddressDecoder):
        """Decodes an address as 20 bytes; eth-abi would give hex text."""

        decoder_fn = staticmethod(Address)  # type: ignore[assignment]

    own = registry.copy()  # type: ignore[no-untyped-call]
    own.unregister_decoder("address")
    kind = BaseEquals("address")  # type: ignore[no-untyped-call]
    own.register_decoder(kind, AddressBytesDecoder, label="address")
    return ABICodec(own)
