"""Outputs that are not equal to the bit: what agrees, how far it is apart, and what is hostile."""

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from quorate_content.comparators import distance, text_files
from quorate_content.comparators.array_files import Malformed, read_heads
from quorate_content.comparators.report import DIFFERENT, PPB_ONE
from quorate_content.comparators.trees import compare
from quorate_content.comparators.worker import compare_apart
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Comparator

ONE_IN_A_THOUSAND = 1_000_000  # ppb
MUTATED = int(os.environ.get("QUORATE_FUZZ", "1")) * 200


def npy(values: NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def npz(**values: NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **values)
    return file.getvalue()


def safetensors(kind: str, shape: list[int], data: bytes, name: str = "w") -> bytes:
    head = json.dumps({name: {"dtype": kind, "shape": shape, "data_offsets": [0, len(data)]}})
    return struct.pack("<Q", len(head)) + head.encode() + data


def apart(folder: Path, name: str, left: bytes, right: bytes, kind: Comparator) -> int:
    """The distance of two outputs with one file each."""
    for side, data in (("left", left), ("right", right)):
        (folder / side).mkdir(exist_ok=True)
        (folder / side / name).write_bytes(data)
    return compare(folder / "left", folder / "right", kind, ("*",)).ppb


def numeric(folder: Path, name: str, left: bytes, right: bytes) -> int:
    return apart(folder, name, left, right, Comparator.NUMERIC)


FLOATS = np.linspace(-3, 3, 1000)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("x.npy", lambda values: npy(values.astype("<f4"))),
        ("x.npy", lambda values: npy(values.astype(">f8"))),
        ("x.npy", lambda values: npy(values + 1j * values)),
        ("x.npz", lambda values: npz(first=values, second=np.arange(3))),
        ("x.safetensors", lambda values: safetensors("F64", [1000], values.tobytes())),
        ("x.json", lambda values: json.dumps({"losses": list(values), "n": 3}).encode()),
        ("x.csv", lambda values: "".join(f"step,{value:.17f}\n" for value in values).encode()),
    ],
)
def test_noise_of_one_in_a_thousand_is_measured(
    name: str, make: Callable[[NDArray[np.float64]], bytes], tmp_path: Path
) -> None:
    noise = np.random.default_rng(1).standard_normal(1000)
    found = numeric(tmp_path, name, make(FLOATS), make(FLOATS * (1 + noise / 1000)))
    assert 0.8 * ONE_IN_A_THOUSAND < found < 1.2 * ONE_IN_A_THOUSAND


def test_a_patch_that_the_whole_would_hide_is_found(tmp_path: Path) -> None:
    changed = np.ones(1_000_000)
    changed[7] = 2.0
    assert np.linalg.norm(changed - 1) / np.linalg.norm(changed) < 1.1e-3
    assert numeric(tmp_path, "x.npy", npy(np.ones(1_000_000)), npy(changed)) > 15e6


@pytest.mark.parametrize(
    ("left", "right", "is_equal"),
    [
        ([0.0], [-0.0], True),
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([np.nan, 1.0], [1.0, np.nan], False),
        ([np.inf], [-np.inf], False),
        ([np.inf], [np.finfo(float).max], False),
        ([5e-324], [5e-324], True),
        ([], [], True),
    ],
)
def test_values_that_are_no_ordinary_numbers(
    left: list[float], right: list[float], is_equal: bool
) -> None:
    a, b = np.array(left), np.array(right)
    assert distance.numbers(lambda: [a], lambda: [b]) == (0 if is_equal else DIFFERENT)


@pytest.mark.parametrize("size", [1e308, 1e-308, 5e-324])
def test_neither_huge_nor_tiny_values_lose_their_distance(size: float) -> None:
    a, b = np.array([size, -size]), np.array([size, size])
    with np.errstate(all="ignore"):
        found = distance.numbers(lambda: [a], lambda: [b])
    assert found > PPB_ONE and found < DIFFERENT


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (npy(np.zeros(4, "f4")), npy(np.zeros(4, "f8"))),
        (npy(np.zeros((2, 3))), npy(np.zeros((3, 2)))),
        (npy(np.asfortranarray(np.ones((2, 3)))), npy(np.ones((2, 3)))),
        (npy(np.arange(4)), npy(np.arange(1, 5))),  # whole numbers are equal or not
        (npy(np.zeros(4)), npy(np.array([{}], dtype=object))),  # a pickle
        (npy(np.zeros(4)), npy(np.zeros(4))[:-1]),
        (npy(np.zeros(4)), npy(np.zeros(4)) + b"\0"),
        (npy(np.zeros(4)), b"\x93NUMPY\x01\x00\xff\xff"),
        (npy(np.zeros(4)), b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100),
        (npy(np.zeros(4)), npy(np.zeros(4)).replace(b"(4,)", b"(9999999999999, 9999999999999)")),
        (npy(np.zeros(4)), b""),
    ],
)
def test_arrays_of_another_form_are_different(left: bytes, right: bytes, tmp_path: Path) -> None:
    assert numeric(tmp_path, "x.npy", left, right) == DIFFERENT


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, data in members:
            made.writestr(name, data)
    return file.getvalue()


TWICE = archive(("a.npy", npy(FLOATS)), ("b.npy", npy(FLOATS))).replace(b"b.npy", b"a.npy")
BOMB = npy(np.zeros(1)).replace(b"(1,)", b"(8589934592,)")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (TWICE, "two of one name"),
        (archive(("a.txt", b"x")), "no npy file"),
        (archive(("a.npy", npy(FLOATS)), method=zipfile.ZIP_BZIP2), "neither stored nor deflated"),
        (archive(("a.npy", BOMB)), "promises another size"),
        (b"PK\x03\x04", "no zip archive"),
        (
            archive(("a.npy", npy(FLOATS)), method=zipfile.ZIP_STORED).replace(b"NUMPY", b"numpy"),
            "npy file of version",
        ),
    ],
)
def test_hostile_archives_are_named(data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(Malformed, match=why):
        list(read_heads(tmp_path / "x.npz", ".npz")["a"].pieces())


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 100_000) + b"[" * 100_000,
        safetensors("F32", [2], bytes(8)) + b"x",
        safetensors("F32", [3], bytes(8)),
        safetensors("F33", [2], bytes(8)),
        safetensors("F32", [1 << 62, 1 << 62], bytes(8)),
        safetensors("F32", [-2], bytes(8)),
        safetensors("F32", [2], bytes(8)).replace(b"[0, 8]", b"[1, 9]"),
    ],
)
def test_hostile_safetensors_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(Malformed):
        read_heads(tmp_path / "x.safetensors", ".safetensors")


@pytest.mark.parametrize(
    ("kind", "code", "value"),
    [("BF16", 0x3F80, 1.0), ("F8_E4M3", 0x7E, 448.0), ("F8_E5M2", 0x3C, 1.0), ("F16", 0x3C00, 1.0)],
)
def test_small_floats_have_their_values(kind: str, code: int, value: float, tmp_path: Path) -> None:
    size = 1 if kind.startswith("F8") else 2
    data = safetensors(kind, [1], code.to_bytes(size, "little"))
    (tmp_path / "x.safetensors").write_bytes(data)
    (found,) = read_heads(tmp_path / "x.safetensors", ".safetensors")["w"].pieces()
    assert found.tolist() == [value]


def test_structure_counts_and_whole_numbers_are_exact(tmp_path: Path) -> None:
    good = b'{"loss": 0.5, "tokens": [1, 2]}'
    for other in (
        b'{"loss": 0.5, "tokens": [1, 3]}',
        b'{"loss": 0.5, "tokens": [1]}',
        b'{"loss": 0.5, "tokens": [1, 2], "x": 0.5}',
        b'{"loss": "0.5", "tokens": [1, 2]}',
        b'{"loss": 0.5, "loss": 0.5, "tokens": [1, 2]}',
        b"[" * 100_000,
        b"\xff",
    ):
        assert numeric(tmp_path, "x.json", good, other) == DIFFERENT
    assert numeric(tmp_path, "x.csv", b"a,1.5\n", b"a,1.5\nb,2.5\n") == DIFFERENT
    assert numeric(tmp_path, "x.csv", b"a,1.5\n", b"b,1.5\n") == DIFFERENT


def test_texts_differ_by_their_words(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(1000)]
    left, right = " ".join(words).encode(), " ".join([*words[:500], "new", *words[501:]]).encode()
    assert apart(tmp_path, "x.txt", left, right, Comparator.TEXT) == ONE_IN_A_THOUSAND
    assert text_files.edit_count(["a"] * 50, ["b"] * 50, 10) is None
    assert text_files.edit_count(list("abcabba"), list("cbabac"), 10) == 5


def test_both_outputs_must_have_the_included_files(tmp_path: Path) -> None:
    for side in ("left", "right"):
        (tmp_path / side / "logs").mkdir(parents=True)
        (tmp_path / side / "x.npy").write_bytes(npy(FLOATS))
        (tmp_path / side / "logs" / "run.log").write_text(side)
    left, right = tmp_path / "left", tmp_path / "right"
    assert compare(left, right, Comparator.NUMERIC, ("*.npy",)).ppb == 0
    assert compare(left, right, Comparator.NUMERIC, ("*",)).ppb == DIFFERENT
    assert compare(left, right, Comparator.NUMERIC, ("none*",)).ppb == DIFFERENT
    (right / "y.npy").symlink_to(left / "x.npy")
    assert compare(left, right, Comparator.NUMERIC, ("*.npy",)).ppb == 0
    (left / "y.npy").write_bytes(npy(FLOATS))
    assert compare(left, right, Comparator.NUMERIC, ("*.npy",)).ppb == DIFFERENT


SEEDS = {
    ".npy": npy(FLOATS),
    ".npz": npz(first=FLOATS, second=np.arange(9)),
    ".safetensors": safetensors("F64", [1000], FLOATS.tobytes()),
}


@pytest.mark.parametrize("suffix", SEEDS)
def test_a_mutated_file_is_read_or_refused(suffix: str, tmp_path: Path) -> None:
    random, good = Random(suffix), SEEDS[suffix]
    head = min(len(good), 400)
    for _ in range(MUTATED):
        data = bytearray(good)
        for _ in range(random.randint(1, 4)):
            place = random.randrange(head if random.random() < 0.8 else len(data))
            data[place] = random.randrange(256)
        if random.random() < 0.2:
            del data[random.randrange(len(data)) :]
        assert numeric(tmp_path, f"x{suffix}", good, bytes(data)) >= 0


async def test_the_process_that_compares_has_little_memory_and_time(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    for side in (left, right):
        side.mkdir()
        with (side / "x.npy").open("wb") as file:
            head = {"descr": "<f4", "fortran_order": False, "shape": (1 << 32,)}
            np.lib.format.write_array_header_1_0(file, head)  # type: ignore[arg-type]
            file.truncate(file.tell() + (4 << 32))  # 16 GiB that are not on the disk
    with (right / "x.npy").open("r+b") as file:
        file.seek(4096)
        file.write(b"\1")
    with pytest.raises(Refused, match="took more than 1 s") as refused:
        await compare_apart(left, right, Comparator.NUMERIC, ("*",), seconds=1)
    assert refused.value.code is Code.OVERSIZE
    (left / "x.npy").write_bytes(npy(FLOATS))
    (right / "x.npy").write_bytes(npy(FLOATS * 1.001))
    report = await compare_apart(left, right, Comparator.NUMERIC, ("*",))
    assert 0 < report.ppb < 2 * ONE_IN_A_THOUSAND and report.files == 1
