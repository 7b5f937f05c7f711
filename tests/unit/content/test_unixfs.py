"""UnixFS: published vectors of both profiles, shapes of trees, and the builder on real
directories.
"""

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from Crypto.Cipher import ChaCha20

from quorate_content.dag.content_limits import Bounds
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.dag.unixfs import (
    V0_2015,
    V1_2025,
    Built,
    FileBuilder,
    Profile,
    build_directory,
    build_file,
    cid_of_bytes,
)
from quorate_protocol.refusals import Code, Refused

CASES = json.loads((Path(__file__).parents[2] / "vectors" / "cid.json").read_text())["cases"]
PROFILES = {profile.name: profile for profile in (V1_2025, V0_2015)}
LETTERS = b"abcdefghijklmnopqrstuvwxyz01234567890-_"
SLOW_FROM = 256 << 20


def key_stream(seed: str) -> "ChaCha20.ChaCha20Cipher":
    return ChaCha20.new(key=sha256(seed.encode()).digest(), nonce=bytes(8))


def stream_chunks(size: int, seed: str, chunk: int) -> Iterator[bytes]:
    cipher, zeros = key_stream(seed), bytes(chunk)
    while size > 0:
        yield cipher.encrypt(zeros[: min(size, chunk)])
        size -= chunk


def seeded_directory(profile: Profile, case: dict[str, object]) -> Built:
    cipher, file = key_stream(str(case["seed"])), build_file([b"x"], profile)
    count = int(str(case["entries"]))
    lengths = [int(str(case["nameBytes"]))] * (count - 1) + [int(str(case["lastNameBytes"]))]
    names = [
        bytes(LETTERS[byte % len(LETTERS)] for byte in cipher.encrypt(bytes(length)))
        for length in lengths
    ]
    return build_directory(dict.fromkeys(names, file), profile)


def built_tree(tree: dict[str, object], profile: Profile) -> Built:
    entries = {}
    for name, value in tree.items():
        entries[name.encode()] = (
            built_tree(value, profile)
            if isinstance(value, dict)
            else build_file([str(value).encode()], profile)
        )
    return build_directory(entries, profile)


def write_tree(tree: dict[str, object], root: Path) -> None:
    root.mkdir()
    for name, value in tree.items():
        if isinstance(value, dict):
            write_tree(value, root / name)
        else:
            (root / name).write_text(str(value))


def parameters() -> list[object]:
    found: list[object] = []
    for case in CASES:
        marks = [pytest.mark.slow] if case.get("size", 0) >= SLOW_FROM else []
        found.append(pytest.param(case, id=f"{case['profile']}: {case['name']}", marks=marks))
    return found


@pytest.mark.rule("I8", "3.30")
@pytest.mark.parametrize("case", parameters())
def test_published_vectors_hold(case: dict[str, object], tmp_path: Path) -> None:
    profile = PROFILES[str(case["profile"])]
    if case["kind"] == "text":
        assert str(cid_of_bytes(str(case["text"]).encode(), profile)) == case["cid"]
    elif case["kind"] == "stream":
        chunks = stream_chunks(int(str(case["size"])), str(case["seed"]), profile.chunk_bytes)
        assert str(build_file(chunks, profile).cid) == case["cid"]
    elif case["kind"] == "directory":
        assert str(seeded_directory(profile, case).cid) == case["cid"]
    else:
        tree = case["tree"]
        assert isinstance(tree, dict)
        assert str(built_tree(tree, profile).cid) == case["cid"]
        write_tree(tree, tmp_path / "tree")
        assert str(cid_of_path(tmp_path / "tree", profile)) == case["cid"]


def test_path_of_a_file_equals_its_bytes(tmp_path: Path) -> None:
    data = os.urandom(3 * V1_2025.chunk_bytes + 17)
    (tmp_path / "file").write_bytes(data)
    assert cid_of_path(tmp_path / "file") == cid_of_bytes(data)


def test_lone_trailing_child_is_wrapped_not_promoted() -> None:
    narrow = Profile("narrow", 4, 2, 1, True, True)
    nodes: list[bytes] = []
    builder = FileBuilder(narrow, lambda _, block: nodes.append(block))
    for _ in range(
        5
        # levels: 5 leaves, 3 nodes, 2 nodes, root; the fifth leaf passes through two nodes of its
        # own
    ):
        builder.add(b"data")
    builder.finish()
    assert len(nodes) == 3 + 2 + 1


@pytest.mark.parametrize("make", ["symlink", "fifo", "control"])
def test_special_entries_are_refused(tmp_path: Path, make: str) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    if make == "symlink":
        (root / "link").symlink_to("/etc/passwd")
    elif make == "fifo":
        os.mkfifo(root / "pipe")
    else:
        (root / "two\nlines").write_text("x")
    with pytest.raises(Refused) as refused:
        cid_of_path(root)
    assert refused.value.code is Code.MALFORMED


def test_deep_tree_and_sparse_terabyte_are_refused_at_once(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    here = deep
    for _ in range(100):
        here = here / "d"
        here.mkdir()
    with pytest.raises(Refused, match="depth"):
        cid_of_path(deep)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Refused, match="bytes of content"):
        cid_of_path(tmp_path / "sparse", bounds=Bounds(bytes_max=1 << 30))
