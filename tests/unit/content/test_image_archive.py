"""Image archives from strangers: good ones are read, and bad ones end in a typed refusal."""

import gzip
import io
import json
import tarfile
import time
from pathlib import Path

import pytest

from quorate_content.images.archive_reader import read_archive, sanitized_archive
from quorate_content.images.image_info import ImageLimits, refuse_shell_command
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
from support.executors.image_archives import entry, image_entries, tar

Entries = list[tuple[tarfile.TarInfo, bytes]]
SHELL = tar([entry("bin/", kind=tarfile.DIRTYPE), entry("bin/sh", b"\x7fELF", mode=0o755)])
PLAIN = tar([entry("./data", b"x")])


def write(tmp_path: Path, entries: Entries) -> Path:
    path = tmp_path / "image.tar"
    path.write_bytes(tar(entries))
    return path


def test_a_good_archive_is_read(tmp_path: Path) -> None:
    config = {
        "Env": ["A=1"],
        "Entrypoint": ["/e"],
        "Cmd": ["c"],
        "User": "7",
        "WorkingDir": "/w",
        "Labels": {"quorate.python": "3"},
    }
    info = read_archive(write(tmp_path, image_entries([gzip.compress(SHELL), PLAIN], config)))
    assert (info.env, info.entrypoint, info.command, info.user, info.working_dir) == (
        ("A=1",),
        ("/e",),
        ("c",),
        "7",
        "/w",
    )
    assert info.label("quorate.python") == "3"
    assert info.has_shell
    assert not info.has_env
    refuse_shell_command(info, ("/bin/sh", "-c", "true"))


@pytest.mark.parametrize(
    "upper",
    [entry("bin/.wh.sh"), entry(".wh.bin"), entry("bin/.wh..wh..opq")],
    ids=["file whited out", "folder whited out", "opaque"],
)
def test_a_shell_that_a_higher_layer_removes_does_not_count(
    tmp_path: Path, upper: tuple[tarfile.TarInfo, bytes]
) -> None:
    info = read_archive(write(tmp_path, image_entries([SHELL, tar([upper])])))
    assert not info.has_shell
    with pytest.raises(Refused) as refusal:
        refuse_shell_command(info, ("/bin/sh", "-c", "true"))
    assert refusal.value.code is Code.MALFORMED
    refuse_shell_command(info, ("python3",))


@pytest.mark.rule("11.6")
@pytest.mark.parametrize("name", ["scratch", "outputs", "inputs", "tmp"])
def test_an_image_without_a_folder_at_a_mount_point_is_refused_by_name(
    tmp_path: Path, name: str
) -> None:
    link, file = entry(f"./{name}", kind=tarfile.SYMTYPE, link="var"), entry(name, b"x")
    for upper in (link, file):
        with pytest.raises(Refused, match=f"/{name} must be a folder") as refusal:
            read_archive(write(tmp_path, image_entries([PLAIN, tar([upper])])))
        assert refusal.value.code is Code.MALFORMED
        later = tar([entry(f"{name}/", kind=tarfile.DIRTYPE)])
        read_archive(write(tmp_path, image_entries([tar([upper]), later])))


def test_engine_sees_no_tags_and_no_strange_members(tmp_path: Path) -> None:
    entries = [*image_entries([PLAIN]), entry("repositories", b'{"python":{"3.12":"x"}}')]
    path = write(tmp_path, entries)
    info = read_archive(path)
    shown = tmp_path / "shown.tar"
    shown.write_bytes(b"".join(sanitized_archive(path, info)))
    with tarfile.open(shown) as archive:
        assert archive.getnames() == [f"{info.config_digest}.json", "0/layer.tar", "manifest.json"]
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        assert json.load(manifest)[0]["RepoTags"] is None
    assert read_archive(shown).config_digest == info.config_digest


def test_repeated_layer_is_a_link_to_the_first(tmp_path: Path) -> None:
    entries = image_entries([PLAIN, PLAIN])
    entries[2] = entry("1/layer.tar", kind=tarfile.SYMTYPE, link="../0/layer.tar")
    path = write(tmp_path, entries)
    info = read_archive(path)
    (tmp_path / "shown.tar").write_bytes(b"".join(sanitized_archive(path, info)))
    assert len(read_archive(tmp_path / "shown.tar").layers) == 2


def bad_layer(*entries: tuple[tarfile.TarInfo, bytes]) -> Entries:
    return image_entries([tar(list(entries))])


def with_manifest(body: bytes) -> Entries:
    return [*image_entries([PLAIN])[:-1], entry("manifest.json", body)]


ATTACKS: dict[str, tuple[Entries, Code]] = {
    "name out of the layer": (bad_layer(entry("../x")), Code.MALFORMED),
    "name inside out": (bad_layer(entry("a/../../x")), Code.MALFORMED),
    "hard link out of the layer": (
        bad_layer(entry("x", kind=tarfile.LNKTYPE, link="../../etc/shadow")),
        Code.MALFORMED,
    ),
    "link out of the layer": (
        bad_layer(entry("a/x", kind=tarfile.SYMTYPE, link="../../etc/shadow")),
        Code.MALFORMED,
    ),
    "device": (bad_layer(entry("disk", kind=tarfile.BLKTYPE)), Code.MALFORMED),
    "layer is a link out": (
        [
            *image_entries([PLAIN])[:1],
            entry("0/layer.tar", kind=tarfile.SYMTYPE, link="/etc/shadow"),
            image_entries([PLAIN])[2],
        ],
        Code.MALFORMED,
    ),
    "layer is missing": (
        [item for item in image_entries([PLAIN]) if "layer" not in item[0].name],
        Code.MALFORMED,
    ),
    "layer is not a tar": (image_entries([b"x" * 5000]), Code.MALFORMED),
    "zstd": (image_entries([b"\x28\xb5\x2f\xfd" + bytes(100)]), Code.UNSUPPORTED),
    "member out of the archive": ([*image_entries([PLAIN]), entry("../../x")], Code.MALFORMED),
    "member twice": ([*image_entries([PLAIN]), entry("manifest.json", b"[]")], Code.MALFORMED),
    "no manifest": ([entry("x")], Code.MALFORMED),
    "manifest is no JSON": (with_manifest(b"{"), Code.MALFORMED),
    "manifest nested deeply": (with_manifest(b"[" * 100_000), Code.MALFORMED),
    "two images": (with_manifest(b"[{},{}]"), Code.MALFORMED),
    "config outside": (
        with_manifest(b'[{"Config":"../x","Layers":["0/layer.tar"]}]'),
        Code.MALFORMED,
    ),
    "no layers": (with_manifest(b'[{"Config":"x","Layers":[]}]'), Code.OVERSIZE),
    "diff ids do not match": (image_entries([PLAIN], rootfs={"diff_ids": []}), Code.MALFORMED),
    "config is no object": (image_entries([PLAIN], rootfs=7), Code.MALFORMED),
    "env is no list": (image_entries([PLAIN], {"Env": "A=1"}), Code.MALFORMED),
    "too much env": (image_entries([PLAIN], {"Env": ["A=1"] * 1000}), Code.OVERSIZE),
    "other system": (image_entries([PLAIN], os="windows"), Code.UNSUPPORTED),
    "hard link chain": (
        bad_layer(
            entry("a", kind=tarfile.LNKTYPE, link="b"),
            entry("b", kind=tarfile.LNKTYPE, link="../x"),
        ),
        Code.MALFORMED,
    ),
    "whiteout of the parent": (bad_layer(entry("../.wh.etc")), Code.MALFORMED),
    "layer is a link to a link": (
        [
            *image_entries([PLAIN])[:1],
            entry("0/layer.tar", kind=tarfile.SYMTYPE, link="../b"),
            entry("b", kind=tarfile.SYMTYPE, link="c"),
            entry("c", PLAIN),
            image_entries([PLAIN])[2],
        ],
        Code.MALFORMED,
    ),
    "layer is itself": (
        [
            *image_entries([PLAIN])[:1],
            entry("0/layer.tar", kind=tarfile.SYMTYPE, link="layer.tar"),
            image_entries([PLAIN])[2],
        ],
        Code.MALFORMED,
    ),
    "layer is a folder": (
        [
            *image_entries([PLAIN])[:1],
            entry("0/layer.tar", kind=tarfile.DIRTYPE),
            image_entries([PLAIN])[2],
        ],
        Code.MALFORMED,
    ),
    "name of 5000 bytes": (bad_layer(entry("x" * 5000)), Code.MALFORMED),
    "a character device": (bad_layer(entry("tty", kind=tarfile.CHRTYPE)), Code.MALFORMED),
    "absolute link out of a hard link": (
        bad_layer(entry("x", kind=tarfile.LNKTYPE, link="/../../etc/shadow")),
        Code.MALFORMED,
    ),
    "words without end": (image_entries([PLAIN], {"Entrypoint": ["w"] * 100_000}), Code.OVERSIZE),
    "a word that no kernel takes": (
        image_entries([PLAIN], {"Cmd": ["w" * 131_072]}),
        Code.OVERSIZE,
    ),
    "variables that no kernel takes": (
        image_entries([PLAIN], {"Env": [f"A{n}=" + "x" * 4000 for n in range(500)]}),
        Code.OVERSIZE,
    ),
    "half of a character": (image_entries([PLAIN], {"Cmd": ["\ud800"]}), Code.MALFORMED),
    "huge config": (image_entries([PLAIN], {"Labels": {"x": "y" * (2 << 20)}}), Code.OVERSIZE),
}


@pytest.mark.parametrize(("entries", "code"), ATTACKS.values(), ids=ATTACKS.keys())
def test_bad_archive_is_refused(tmp_path: Path, entries: Entries, code: Code) -> None:
    with pytest.raises(Refused) as refusal:
        read_archive(write(tmp_path, entries))
    assert refusal.value.code is code
    assert refusal.value.detail


def test_an_archive_beyond_a_limit_is_refused(tmp_path: Path) -> None:
    many = image_entries([tar([entry(str(number)) for number in range(50)])])
    bomb = image_entries([gzip.compress(tar([entry("zeros", bytes(3 << 20)), entry("after")]))])
    cases = [
        (many, ImageLimits(members=40)),
        (many, ImageLimits(archive_bytes=1000)),
        (bomb, ImageLimits(unpacked_bytes=1 << 20)),
        (image_entries([PLAIN, PLAIN]), ImageLimits(layers=1)),
    ]
    for entries, limits in cases:
        with pytest.raises(Refused) as refusal:
            read_archive(write(tmp_path, entries), limits)
        assert refusal.value.code is Code.OVERSIZE


def test_a_huge_extended_header_is_refused(tmp_path: Path) -> None:
    """A PAX header may claim any size, and the tar module would read it whole."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 8 << 20
    path = tmp_path / "image.tar"
    path.write_bytes(header.tobuf() + bytes(8 << 20))
    with pytest.raises(Refused) as refusal:
        read_archive(path)
    assert refusal.value.code is Code.OVERSIZE


def test_every_cut_of_an_archive_is_refused(tmp_path: Path) -> None:
    data = tar(image_entries([SHELL]))
    path = tmp_path / "image.tar"
    end = io.BytesIO(data).getvalue().rstrip(b"\0")
    for length in range(0, len(end), 509):
        path.write_bytes(data[:length])
        with pytest.raises(Refused):
            read_archive(path)


@pytest.mark.parametrize(
    "field",
    [
        b"99 size=99999999999999999999999\n",
        b"30 GNU.sparse.size=-1000000000\n",
        b"30 mtime=1e400\n",
        b"20 path=/../x\n",
    ],
)
def test_false_pax_headers_are_refused(tmp_path: Path, field: bytes) -> None:
    """Sizes beyond the file, sparse maps, impossible times, and names that the plain header does
    not show.
    """
    record = b"%d " % (len(field.split(b" ", 1)[1]) + 3) + field.split(b" ", 1)[1]
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    body = tarfile.TarInfo("y").tobuf()
    path = tmp_path / "image.tar"
    path.write_bytes(header.tobuf() + record.ljust(512, b"\0") + body + bytes(1024))
    with pytest.raises(Refused):
        read_archive(path)


def test_a_layer_that_expands_a_thousandfold_is_bounded(tmp_path: Path) -> None:
    """Reading stops at the bound; the rest is never unpacked."""
    bomb = gzip.compress(tar([entry("zeros", bytes(64 << 20)), entry("after")]))
    path = write(tmp_path, image_entries([bomb] * 3))
    begun = time.process_time()
    with pytest.raises(Refused) as refusal:
        read_archive(path, ImageLimits(unpacked_bytes=1 << 20))
    assert refusal.value.code is Code.OVERSIZE and time.process_time() - begun < 5
    with pytest.raises(Refused):
        read_archive(path, ImageLimits(expansion=2, expansion_free_bytes=1 << 20))
    three = write(
        tmp_path, image_entries([gzip.compress(tar([entry("zeros", bytes(2 << 20))]))] * 3)
    )
    with pytest.raises(Refused):
        # each of them fits, and all of them together do not
        read_archive(three, ImageLimits(unpacked_bytes=5 << 20))
    assert len(read_archive(three, ImageLimits(unpacked_bytes=7 << 20)).layers) == 3


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
