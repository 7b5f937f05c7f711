"""Makes raw tar headers that tar programs read differently, and sparse members."""

import tarfile

BLOCK = tarfile.BLOCKSIZE


def header(name: str = "x", kind: bytes = tarfile.REGTYPE, size: int = 0, **fields: bytes) -> bytes:
    """Returns one header. `fields` overwrite its bytes; `stated` is its size."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    places = {
        "stated": 124,
        "magic": 257,
        "prefix": 345,
        "trailer": 508,
        "sparse": 386,
        "real": 483,
    }
    for field, value in fields.items():
        if field in places:
            block[places[field] : places[field] + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = fields.get("checksum", b"%06o\0 " % sum(block))
    return bytes(block)


def padded(data: bytes) -> bytes:
    """Returns the data of a member, filled up to whole blocks."""
    return data + bytes(-len(data) % BLOCK)


def pax(records: bytes, name: str = "pax", kind: bytes = tarfile.XHDTYPE) -> bytes:
    """Returns an extended header with these records."""
    return header(name, kind, len(records)) + padded(records)


def record(name: str, value: str) -> bytes:
    """Returns one record of a pax header."""
    rest = f" {name}={value}\n".encode()
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def sparse_member(real_size: int) -> bytes:
    """Returns an old GNU sparse file of `real_size` bytes that has one byte of data at its end."""
    return header(
        "zeros",
        tarfile.GNUTYPE_SPARSE,
        1,
        magic=b"ustar  \0",
        sparse=_binary(real_size - 1) + _binary(1),
        real=_binary(real_size),
    ) + padded(b"\1")


def layer(*parts: bytes) -> bytes:
    """Returns a whole layer."""
    return b"".join(parts) + bytes(2 * BLOCK)


def _binary(number: int) -> bytes:
    """Returns a number of 64 GiB or more, which octal digits have no room for."""
    return b"\x80" + number.to_bytes(11, "big")
