"""Unsigned varints of multiformats and protobuf: little-endian groups of seven bits, minimal form
only.
"""

VARINT_BYTES_MAX = 9


def encode_varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Returns (value, index after it). Raises ValueError if cut, not minimal, or longer than 63
    bits.
    """
    value = shift = 0
    for position in range(at, at + VARINT_BYTES_MAX):
        if position >= len(data):
            raise ValueError("the varint is cut short")
        byte = data[position]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if byte == 0 and position > at:
                raise ValueError("the varint is not minimal")
            return value, position + 1
    raise ValueError("the varint is longer than 63 bits")
