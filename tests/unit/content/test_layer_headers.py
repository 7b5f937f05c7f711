"""Headers of layers: what two tar programs could read differently is refused."""

import io
import tarfile

import pytest

from quorate_content.images.layer_headers import LayerEntry, read_layer_headers
from quorate_protocol.refusals import Code, Refused
from support.executors.hostile_layers import (
    BLOCK,
    header,
    layer,
    padded,
    pax,
    record,
    sparse_member,
)

HIDDEN = header("hidden", size=3) + padded(b"abc")
UNCLEAR = {
    "size behind a NUL": header(stated=b"\0\0000001000\0"),
    "size with an underscore": header(stated=b"0000000_512\0"),
    "negative size": header(stated=b"\xff" * 12),
    "size with another first byte": header(stated=b"\x81" + bytes(11)),
    "hard link with data": header(kind=tarfile.LNKTYPE, size=BLOCK) + HIDDEN,
    "folder with data": header("x/", tarfile.AREGTYPE, BLOCK) + HIDDEN,
    "file named as a folder": header("x/", tarfile.REGTYPE),
    "unknown type": header(kind=b"M", size=BLOCK) + HIDDEN,
    "extended header of another system": header(kind=b"X", size=BLOCK) + padded(b"9 size=0\n"),
    "prefix without the format": header(magic=bytes(8), prefix=b"bin"),
    "prefix with times in it": header(prefix=b"bin", trailer=b"tar\0"),
    "wrong checksum": header(checksum=b"0000001\0"),
    "one empty block": bytes(BLOCK) + HIDDEN,
    "two extended headers": pax(record("size", "0")) + pax(record("size", "3")) + HIDDEN,
    "long name and pax": header(kind=b"L", size=2) + padded(b"y\0") + pax(record("path", "z")),
    "global size": pax(record("size", "0"), kind=tarfile.XGLTYPE) + HIDDEN,
    "record twice": pax(record("size", "3") + record("size", "0")) + HIDDEN,
    "records behind the stated end": header("p", tarfile.XHDTYPE, 9)
    + padded(record("size", "7") + record("uid", "1")),
    "empty size": pax(record("size", "")) + HIDDEN,
    "size with a sign": pax(record("size", "+3")) + HIDDEN,
    "name with a NUL": pax(record("path", "a\0b")) + HIDDEN,
    "record that is too long": pax(b"99 size=3\n") + HIDDEN,
}


def entries(data: bytes) -> list[LayerEntry]:
    return list(read_layer_headers(io.BytesIO(data), "layer"))


@pytest.mark.parametrize("parts", UNCLEAR.values(), ids=UNCLEAR.keys())
def test_a_header_with_two_readings_is_refused(parts: bytes) -> None:
    with pytest.raises(Refused) as refusal:
        entries(layer(parts))
    assert refusal.value.code is Code.MALFORMED
    assert refusal.value.detail.startswith("layer: ")


SPARSE = {
    "old": sparse_member(71 << 30),
    "0.0": pax(record("GNU.sparse.size", str(71 << 30)) + record("GNU.sparse.numblocks", "0")),
    "0.1": pax(record("GNU.sparse.size", str(71 << 30)) + record("GNU.sparse.map", "0,1")),
    "1.0": pax(
        record("GNU.sparse.major", "1")
        + record("GNU.sparse.minor", "0")
        + record("GNU.sparse.realsize", str(71 << 30))
    ),
}


@pytest.mark.parametrize("parts", SPARSE.values(), ids=SPARSE.keys())
def test_every_form_of_a_sparse_file_is_refused_with_its_size(parts: bytes) -> None:
    with pytest.raises(Refused, match=f"would write {71 << 30} bytes") as refusal:
        entries(layer(parts, HIDDEN))
    assert refusal.value.code is Code.UNSUPPORTED


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_ordinary_headers_are_read_as_the_tar_module_reads_them(form: int) -> None:
    buffer = io.BytesIO()
    long = form != tarfile.USTAR_FORMAT
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for kind, name, link in (
            (tarfile.DIRTYPE, "d" * 90 + "/" + "e" * 60, ""),
            (tarfile.REGTYPE, ("n" * 120 + "/" if long else "") + "file", ""),
            (tarfile.SYMTYPE, "link", "../" * 40 + "x" if long else "file"),
            (tarfile.LNKTYPE, "hard", "file"),
            (tarfile.REGTYPE, "ünï\udce4" if long else "plain", ""),
            (tarfile.FIFOTYPE, "fifo", ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mtime = kind, link, 1.5 if long else 1
            info.size = 700 if kind == tarfile.REGTYPE else 0
            info.pax_headers = {"SCHILY.xattr.user.x": "1"} if form == tarfile.PAX_FORMAT else {}
            archive.addfile(info, io.BytesIO(bytes(700)))
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive:
        wanted = [(item.name, item.type, item.linkname, item.size) for item in archive]
    found = [
        (item.name.rstrip("/"), item.kind, item.link, item.size)
        for item in entries(buffer.getvalue())
    ]
    assert found == wanted and len(found) == 6
