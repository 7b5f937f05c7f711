"""The envelope `{type, body, sig}` of a signed message.

It has the same bytes on the wire, in receipts and in the HTTP API.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from quorate_protocol.codec import canonical, eip712, text_writer, value_reader
from quorate_protocol.codec.identity_cache import Kept
from quorate_protocol.codec.value_reader import Wrong, reader_of
from quorate_protocol.messages.signed import MESSAGE_TYPES, Message
from quorate_protocol.readable import Readable
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Signature

M = TypeVar("M", covariant=True)
S = TypeVar("S")
ENVELOPE_BYTES_MAX = 1 << 20
HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0

Recover = Callable[[Hash32, Signature], Address]
"""Gives the address that signed a 32-byte digest. Raises `Refused(BAD_SIGNATURE)` if no key did.

`quorate_runtime.keys.crypto` implements it.
"""

Sign = Callable[[Hash32], Signature]
"""Signs a 32-byte digest with one key, deterministically (RFC 6979)."""


class Envelope(Readable, Generic[M], frozen=True):
    """A message and its signature. The rules check whether the signer may sign this message."""

    message: M
    sig: Signature

    def digest(self, domain: eip712.Domain) -> Hash32:
        return eip712.digest(domain, self.message)


AnyEnvelope = Envelope[Message]


def seal(domain: eip712.Domain, message: S, sign: Sign) -> Envelope[S]:
    return Envelope(message, sign(eip712.digest(domain, message)))


def signer(domain: eip712.Domain, envelope: AnyEnvelope, recover: Recover) -> Address:
    """Raises `Refused(BAD_SIGNATURE)` for malleable and malformed signatures."""
    check_signature_form(envelope.sig)
    return recover(envelope.digest(domain), envelope.sig)


def check_signature_form(sig: Signature) -> None:
    """Raises `Refused` for a signature that is not 65 bytes with low s and v of 27 or 28 (PROTOCOL
    §3).
    """
    if len(sig) != 65 or sig[64] not in (27, 28) or int.from_bytes(sig[32:64], "big") > HALF_ORDER:
        raise Refused(
            Code.BAD_SIGNATURE, "a signature is 65 bytes r, s, v with low s and v of 27 or 28"
        )


def to_json(envelope: AnyEnvelope) -> canonical.Json:
    return canonical.to_json(envelope)


def from_json(tree: canonical.Json, expected: type[M] | None = None) -> Envelope[M]:
    """Raises `Refused` for any type but `expected`, if that is given."""
    try:
        return _read(tree, expected)
    except Wrong as wrong:
        raise wrong.refused("") from None


def encode(envelope: AnyEnvelope) -> bytes:
    return _TEXTS(envelope).encode()


def decode(data: bytes, expected: type[M] | None = None) -> Envelope[M]:
    """Raises `Refused` for any other form of the same JSON."""
    tree = canonical.parse(data, ENVELOPE_BYTES_MAX)
    envelope: Envelope[M] = from_json(tree, expected)
    if canonical.canonical(tree) != data:
        raise Refused(Code.NOT_CANONICAL)
    return envelope


def _read(tree: canonical.Json, expected: type | None) -> "Envelope[M]":
    if type(tree) is not dict or tree.keys() != _KEYS:
        raise Wrong(Code.MALFORMED, "an envelope has exactly type, body and sig")
    kind = MESSAGE_TYPES.get(str(tree["type"]))
    if kind is None or (expected is not None and kind is not expected):
        raise Wrong(Code.MALFORMED, f"type: {tree['type']!r} is not the message expected here")
    part = "body"
    try:
        message = reader_of(kind)(tree["body"])
        part = "sig"
        return Envelope(message, reader_of(bytes)(tree["sig"]))
    except Wrong as wrong:
        raise wrong.inside(part) from None


def _reader_of(expected: type) -> value_reader.Reader:
    # A type variable or a union allows any message.
    one = expected if expected in MESSAGE_TYPES.values() else None
    return lambda tree: _read(tree, one)


def _text(envelope: AnyEnvelope) -> str:
    message = envelope.message
    body = text_writer.writer_of(type(message))(message)
    return f'{{"body":{body},"sig":"0x{envelope.sig.hex()}","type":"{type(message).__name__}"}}'


_KEYS = {"type", "body", "sig"}
# Texts are kept, because the same envelope goes over the wire and into the receipt.
_TEXTS = Kept(_text, 2048)
text_writer.CUSTOM[Envelope] = _TEXTS
value_reader.CUSTOM[Envelope] = _reader_of
