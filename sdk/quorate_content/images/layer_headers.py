"""Reads the headers of a layer strictly, so that every engine sees the same entries and sizes.

Tar programs differ where a header is unusual: some read an unclear size as 0, some skip the data
of a link, some expand sparse files. A layer that two programs read differently could hide a file
from this check. So anything that has two readings is refused, and sparse files too. Formats:
https://www.gnu.org/software/tar/manual/html_node/Standard.html and POSIX.1-2008, `pax`.
"""

import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

from quorate_protocol.refusals import Code, Refused

_BLOCK = tarfile.BLOCKSIZE
_ZEROS = bytes(_BLOCK)
_EXTENDED_BYTES_MAX = 1 << 20
_OCTAL = re.compile(rb" *[0-7]+[ \0]*|[ \0]*")
_RECORD = re.compile(rb"([0-9]{1,7}) ([^=\n]+)=")
_DECIMAL = re.compile(r"[0-9]{1,18}")
_PLAIN_MAGIC = b"ustar\x0000"
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_WITHOUT_DATA = (
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
)
_LONG = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_SPARSE = "GNU.sparse."
_CHANGES_READING = ("path", "linkpath", "size", "hdrcharset")


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One entry of a layer. `kind` is a type flag of tar; `size` the bytes of its data."""

    name: str
    kind: bytes
    link: str
    size: int

    @property
    def is_folder(self) -> bool:
        return self.kind == tarfile.DIRTYPE


@dataclass(slots=True)
class _Pending:
    """What extended headers say about the next entry."""

    fields: dict[str, str] = field(default_factory=dict)
    kinds: set[bytes] = field(default_factory=set)


def read_layer_headers(source: IO[bytes], where: str) -> Iterator[LayerEntry]:
    """Yields each entry of a layer's plain bytes and skips its data. Raises Refused(MALFORMED |
    UNSUPPORTED | OVERSIZE), which names the layer `where`.
    """
    pending = _Pending()
    position = 0
    while block := _block(source, where, position):
        position += _BLOCK
        kind, size = block[156:157], _size(block, where)
        if kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, *_LONG):
            data = _extended(source, size, where)
            position += len(data)
            _take_extended(kind, data[:size], pending, where)
            continue
        entry = _entry(block, kind, size, pending.fields, where)
        pending = _Pending()
        yield entry
        if entry.size:
            position += entry.size + -entry.size % _BLOCK
            source.seek(position - 1)
            if not source.read(1):
                raise Refused(Code.MALFORMED, f"{where}: {entry.name[:200]!r} is truncated")
    if pending.kinds:
        raise Refused(Code.MALFORMED, f"{where}: it ends after an extended header")


def _block(source: IO[bytes], where: str, position: int) -> bytes:
    block = source.read(_BLOCK)
    if not block and position:
        return b""
    if len(block) != _BLOCK:
        raise Refused(Code.MALFORMED, f"{where}: truncated at byte {position}")
    if block == _ZEROS:
        if source.read(_BLOCK) not in (b"", _ZEROS):
            raise Refused(Code.MALFORMED, f"{where}: one empty block at byte {position}, not two")
        return b""
    stated = block[148:156]
    if _OCTAL.fullmatch(stated) is None or int(stated.strip(b" \0") or b"0", 8) != sum(
        block[:148]
    ) + sum(block[156:]) + 8 * ord(" "):
        raise Refused(Code.MALFORMED, f"{where}: no valid tar header at byte {position}")
    return block


def _size(block: bytes, where: str) -> int:
    text = block[124:136]
    if text[0] == 0x80:
        size = int.from_bytes(text[1:], "big")
    elif _OCTAL.fullmatch(text):
        size = int(text.strip(b" \0") or b"0", 8)
    else:
        raise Refused(Code.MALFORMED, f"{where}: a header states an unclear size")
    if size >= 1 << 62:
        raise Refused(Code.OVERSIZE, f"{where}: a header states {size} bytes")
    return size


def _extended(source: IO[bytes], size: int, where: str) -> bytes:
    if size > _EXTENDED_BYTES_MAX:
        raise Refused(
            Code.OVERSIZE,
            f"{where}: an extended header has {size} bytes, at most {_EXTENDED_BYTES_MAX}",
        )
    padded = size + -size % _BLOCK
    data = source.read(padded)
    if len(data) != padded:
        raise Refused(Code.MALFORMED, f"{where}: an extended header is truncated")
    if data[size:].strip(b"\0"):
        raise Refused(Code.MALFORMED, f"{where}: an extended header has data after its end")
    return data


def _take_extended(kind: bytes, data: bytes, pending: _Pending, where: str) -> None:
    is_mixed = bool(pending.kinds) and (
        kind not in _LONG or not pending.kinds.isdisjoint({kind, tarfile.XHDTYPE})
    )
    if is_mixed:
        raise Refused(Code.MALFORMED, f"{where}: two extended headers for one entry")
    if kind in _LONG:
        pending.kinds.add(kind)
        pending.fields[_LONG[kind]] = _text(data.split(b"\0", 1)[0])
        return
    records = _records(data, where)
    if kind == tarfile.XHDTYPE:
        pending.kinds.add(kind)
        pending.fields.update(records)
    elif any(name in _CHANGES_READING or name.startswith(_SPARSE) for name in records):
        raise Refused(Code.MALFORMED, f"{where}: a global header sets names or sizes")


def _records(data: bytes, where: str) -> Mapping[str, str]:
    """Returns the records of a pax header: `<length> <name>=<value>` and a newline each."""
    found: dict[str, str] = {}
    position = 0
    while position < len(data):
        match = _RECORD.match(data, position)
        end = position + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise Refused(Code.MALFORMED, f"{where}: a pax header cannot be read")
        name = _text(match[2])
        if name in found:
            raise Refused(Code.MALFORMED, f"{where}: a pax header states {name[:100]!r} twice")
        found[name] = _text(data[match.end() : end - 1])
        position = end
    return found


def _entry(
    block: bytes, kind: bytes, size: int, fields: Mapping[str, str], where: str
) -> LayerEntry:
    _refuse_sparse(block, kind, size, fields, where)
    name = fields.get("path", _name(block, where))
    link = fields.get("linkpath", _text(block[157:257].split(b"\0", 1)[0]))
    if not name or "\0" in name or "\0" in link or ("linkpath" in fields and not link):
        raise Refused(Code.MALFORMED, f"{where}: {name[:200]!r} has an unclear name")
    if kind not in _FILES + _WITHOUT_DATA:
        raise Refused(
            Code.MALFORMED,
            f"{where}: {name[:200]!r} has the unknown type {kind.decode('latin1')!r}",
        )
    if "size" in fields:
        if _DECIMAL.fullmatch(fields["size"]) is None:
            raise Refused(Code.MALFORMED, f"{where}: {name[:200]!r} states an unclear size")
        size = int(fields["size"])
    if kind == tarfile.AREGTYPE and name.endswith("/"):
        kind = tarfile.DIRTYPE  # as the oldest programs write directories
    if size and kind in _WITHOUT_DATA:
        raise Refused(
            Code.MALFORMED, f"{where}: {name[:200]!r} is no file and states {size} bytes of data"
        )
    if kind in _FILES and name.endswith("/"):
        raise Refused(Code.MALFORMED, f"{where}: the file {name[:200]!r} is named as a directory")
    return LayerEntry(name, kind, link, size)


def _name(block: bytes, where: str) -> str:
    name, prefix = block[:100].split(b"\0", 1)[0], block[345:500]
    if not prefix.strip(b"\0"):
        return _text(name)
    if block[257:265] != _PLAIN_MAGIC or block[508:512] == b"tar\0":
        raise Refused(Code.MALFORMED, f"{where}: {_text(name)[:200]!r} has an unclear prefix")
    return _text(prefix.split(b"\0", 1)[0] + b"/" + name)


def _refuse_sparse(
    block: bytes, kind: bytes, size: int, fields: Mapping[str, str], where: str
) -> None:
    """Refuses every form of a sparse file: an engine would write its holes as zeros."""
    stated = ""
    if kind == tarfile.GNUTYPE_SPARSE:
        stated = str(int.from_bytes(block[484:495], "big"))
        if _OCTAL.fullmatch(block[483:495]):
            stated = str(int(block[483:495].strip(b" \0") or b"0", 8))
    elif any(key.startswith(_SPARSE) for key in fields):
        stated = fields.get(f"{_SPARSE}realsize", fields.get(f"{_SPARSE}size", "?"))
    if stated:
        name = fields.get("path", _text(block[:100].split(b"\0", 1)[0]))
        raise Refused(
            Code.UNSUPPORTED,
            f"image: {where}: {name[:200]!r} is a sparse file that would write {stated[:20]} bytes "
            f"from {size}; write the image with `docker save`",
        )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
