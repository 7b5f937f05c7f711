"""Tests sealed outputs: sealing is deterministic, and only the right salt and digest open them.

No changed byte passes.
"""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.transfer.sealed import (
    SEALED_CHUNK_BYTES,
    check_sealed,
    nonce,
    open_sealed,
    output_key,
    seal_directory,
)
from quorate_coordinator.base.storage_sizes import ciphertext_most
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import OUTPUT_CHUNK_BYTES
from quorate_protocol.messages.job_spec import Resources
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32

SALT = sha256(b"salt").digest()


def make_output(root: Path) -> None:
    (root / "frames" / "none").mkdir(parents=True)
    (root / "frames" / "0001.png").write_bytes(sha256(b"a").digest() * 9000)
    (root / "frames" / "0002 – größe.png").write_bytes(b"")
    (root / "log").write_bytes(b"done\n")
    (root / "zeros").write_bytes(bytes(3 << 20))


def sealed(tmp_path: Path, salt: bytes = SALT) -> tuple[Path, Hash32]:
    make_output(tmp_path / "out")
    digest, cid, size = seal_directory(tmp_path / "out", salt, tmp_path / "sealed")
    assert cid == cid_of_path(tmp_path / "sealed")
    assert size == (tmp_path / "sealed").stat().st_size
    return tmp_path / "sealed", digest


@pytest.mark.rule("3.30")
def test_a_sealed_tree_opens_to_the_same_tree(tmp_path: Path) -> None:
    path, digest = sealed(tmp_path)
    assert digest == cid_of_path(tmp_path / "out").digest
    check_sealed(path, SALT, digest)
    open_sealed(path, SALT, digest, tmp_path / "back")
    assert cid_of_path(tmp_path / "back").digest == digest
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", "out", "sealed"]


@pytest.mark.rule("3.32", "3.34")
def test_sealing_is_deterministic_and_hides_the_plaintext(tmp_path: Path) -> None:
    path, digest = sealed(tmp_path)
    seal_directory(tmp_path / "out", SALT, tmp_path / "again")
    seal_directory(tmp_path / "out", bytes(32), tmp_path / "other")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert (tmp_path / "other").read_bytes() != path.read_bytes()
    assert path.read_bytes().find(digest) < 0
    assert b"done\n" not in path.read_bytes()


@pytest.mark.rule("3.30")
def test_an_empty_directory_is_sealed_and_opened(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    digest, _, _ = seal_directory(tmp_path / "out", SALT, tmp_path / "sealed")
    assert (
        str(cid_of_path(tmp_path / "out"))
        == "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354"
    )
    open_sealed(tmp_path / "sealed", SALT, digest, tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []


@pytest.mark.rule("3.32", "3.33")
def test_keys_and_nonces_are_as_the_protocol_says() -> None:
    assert output_key(SALT) == hash_tuple("key", SALT)
    assert nonce(0, True) == bytes(23) + b"\x01"
    assert nonce(300, False) == bytes(22) + b"\x02\x58"


def attacks(raw: bytes) -> dict[str, bytes]:
    one = SEALED_CHUNK_BYTES
    assert len(raw) > 4 * one
    return {
        "empty": b"",
        "first byte": bytes((raw[0] ^ 1,)) + raw[1:],
        "last byte": raw[:-1] + bytes((raw[-1] ^ 1,)),
        "tag in the middle": raw[: one - 3] + bytes((raw[one - 3] ^ 128,)) + raw[one - 2 :],
        "one byte less": raw[:-1],
        "cut at a chunk": raw[: 2 * one],
        "last chunk only": raw[len(raw) // one * one :],
        "chunks swapped": raw[one : 2 * one] + raw[:one] + raw[2 * one :],
        "chunk twice": raw[:one] + raw,
        "chunk left out": raw[:one] + raw[2 * one :],
        "extra byte": raw + b"\0",
        "extra tag": raw + bytes(16),
        "twice": raw + raw,
    }


@pytest.mark.rule("3.35")
@pytest.mark.parametrize("name", attacks(bytes(5 * SEALED_CHUNK_BYTES)))
def test_changed_ciphertext_does_not_open(tmp_path: Path, name: str) -> None:
    path, digest = sealed(tmp_path)
    (tmp_path / "changed").write_bytes(attacks(path.read_bytes())[name])
    with pytest.raises(Refused) as refused:
        check_sealed(tmp_path / "changed", SALT, digest)
    assert refused.value.code is Code.DOES_NOT_OPEN
    with pytest.raises(Refused) as refused:
        open_sealed(tmp_path / "changed", SALT, digest, tmp_path / "back")
    assert refused.value.code is Code.DOES_NOT_OPEN
    assert sorted(p.name for p in tmp_path.iterdir()) == ["changed", "out", "sealed"]


@pytest.mark.rule("3.34", "3.35")
def test_wrong_salt_and_wrong_digest_do_not_open(tmp_path: Path) -> None:
    path, digest = sealed(tmp_path)
    for salt, wanted in ((bytes(32), digest), (SALT, Hash32(bytes(32)))):
        with pytest.raises(Refused) as refused:
            check_sealed(path, salt, wanted)
        assert refused.value.code is Code.DOES_NOT_OPEN


def test_validly_sealed_nonsense_does_not_open(tmp_path: Path) -> None:
    """A provider may seal anything under its own salt. The plaintext must still be exactly the one
    CAR of the digest.
    """
    from quorate_content.transfer import sealed as module

    path, digest = sealed(tmp_path)
    with module._opened(path, SALT) as source:
        plain = bytearray()
        buffer = memoryview(bytearray(OUTPUT_CHUNK_BYTES))
        while count := source.readinto(buffer):
            plain += buffer[:count]
    whole = bytes(plain)
    forged = {
        "junk after": whole + b"junk",
        "cut": whole[:-200],
        "not a CAR": b"hello",
        "changed": whole[:-9] + b"!" + whole[-8:],
    }
    for name, text in forged.items():
        (tmp_path / name).write_bytes(b"".join(module._seal(iter([text]), output_key(SALT))))
        with pytest.raises(Refused) as refused:
            check_sealed(tmp_path / name, SALT, digest)
        assert refused.value.code is Code.DOES_NOT_OPEN


@pytest.mark.rule("3.33")
def test_exact_multiple_of_the_chunk_has_no_empty_last_chunk() -> None:
    from quorate_content.transfer import sealed as module

    chunks = list(module._seal(iter([bytes(2 * OUTPUT_CHUNK_BYTES)]), output_key(SALT)))
    assert [len(chunk) for chunk in chunks] == [SEALED_CHUNK_BYTES] * 2


def test_an_oversized_tree_does_not_open_and_a_link_is_not_sealed(tmp_path: Path) -> None:
    path, digest = sealed(tmp_path)
    with pytest.raises(Refused) as refused:
        open_sealed(path, SALT, digest, tmp_path / "back", bytes_max=1 << 20)
    assert refused.value.code is Code.OVERSIZE
    assert not (tmp_path / "back").exists()
    os.symlink("/etc", tmp_path / "out" / "link")
    with pytest.raises(Refused) as refused:
        seal_directory(tmp_path / "out", SALT, tmp_path / "again")
    assert refused.value.code is Code.MALFORMED
    assert not (tmp_path / "again").exists()


def test_the_ciphertext_of_many_empty_files_fits_the_upload_limit(tmp_path: Path) -> None:
    """Once their names alone exceeded the upload limit of a small job, so no provider could commit
    and be paid.
    """
    root, count = tmp_path / "out", 6_000
    root.mkdir()
    for number in range(count):
        (root / f"{number:0255}").touch()
    _, _, size = seal_directory(root, SALT, tmp_path / "sealed")
    assert size < ciphertext_most(Resources(output_bytes=1, output_inodes=count))
    assert size > ciphertext_most(Resources(output_bytes=1, output_inodes=1)), (
        "it is the names that take the room"
    )
