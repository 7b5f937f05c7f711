"""Sealed outputs (PROTOCOL §3): the deterministic encryption of an output directory, and its
decryption.

key = H("key", salt). The plaintext is the directory's CARv1, depth first, with every visit of a
block written. It is cut into chunks of 64 KiB; the last may be shorter but not empty. Chunk i is
XChaCha20-Poly1305 without associated data. Its nonce is uint192(2 * i + last), 24 bytes big-endian,
where last is 1 for the last chunk.

So the same output and salt give the same ciphertext. A changed, missing, moved or extra byte makes
decryption fail. These functions block: call them in a thread.
"""

import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt as _decrypt
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt as _encrypt
from nacl.exceptions import CryptoError

from quorate_content.dag.car import read_exact_car, write_car
from quorate_content.dag.cid import Cid, Codec, from_digest
from quorate_content.dag.content_limits import Bounds
from quorate_content.dag.disk_tree import (
    FILE_MODE,
    LocalBlocks,
    Nodes,
    TreeWriter,
    build_path,
    keep_nodes,
    remove_tree,
)
from quorate_content.dag.unixfs import V1_2025, FileBuilder
from quorate_content.dag.walk import Block, DagWalk, NullSink, Sink
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import OUTPUT_CHUNK_BYTES
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32

TAG_BYTES = 16
NONCE_BYTES = 24
SEALED_CHUNK_BYTES = OUTPUT_CHUNK_BYTES + TAG_BYTES


def output_key(salt: bytes) -> bytes:
    """Returns the 32-byte key of one output: H("key", salt)."""
    assert len(salt) == 32, "a salt has 32 bytes"
    return hash_tuple("key", salt)


def nonce(index: int, is_last: bool) -> bytes:
    """Returns the 24-byte nonce of chunk `index`."""
    return (2 * index + is_last).to_bytes(NONCE_BYTES, "big")


def seal_directory(
    path: Path, salt: bytes, destination: Path, bounds: Bounds | None = None
) -> tuple[Hash32, Cid, int]:
    """Writes the sealed directory to the new file `destination`. Returns (output digest, CID of the
    ciphertext, its bytes).

    Raises as `seal` does.
    """
    digest, chunks = seal(path, salt, bounds)
    builder, size = FileBuilder(), 0
    try:
        with open(destination, "xb") as out:
            for chunk in chunks:
                builder.add(chunk)
                out.write(chunk)
                size += len(chunk)
            out.flush()
            os.fchmod(out.fileno(), FILE_MODE)
            os.fsync(out.fileno())
    except BaseException:
        destination.unlink(missing_ok=True)
        raise
    return digest, builder.finish().cid, size


def seal(
    path: Path, salt: bytes, bounds: Bounds | None = None
) -> tuple[Hash32, Generator[bytes, None, None]]:
    """Returns (output digest, the sealed directory in pieces).

    It reads the directory twice. `Refused(MALFORMED)` if the directory changes meanwhile or holds
    links or devices.
    """
    bounds = bounds or Bounds()
    nodes: Nodes = {}
    if not path.is_dir():
        raise Refused(Code.MALFORMED, f"an output must be a directory, but {path.name} is not one")
    root = build_path(path, V1_2025, keep_nodes(nodes), None, bounds).cid
    return root.digest, _sealed_pieces(path, nodes, root, salt, bounds)


def _sealed_pieces(
    path: Path, nodes: Nodes, root: Cid, salt: bytes, bounds: Bounds
) -> Generator[bytes, None, None]:
    blocks = LocalBlocks(path, nodes)
    try:
        pieces = write_car(DagWalk(root, NullSink(), bounds), root, blocks.supply)
        yield from _regroup(_seal(pieces, output_key(salt)), V1_2025.chunk_bytes)
    finally:
        blocks.close()


def open_sealed(
    ciphertext: Path,
    salt: bytes,
    expected_output_digest: Hash32,
    destination: Path,
    bytes_max: int = 1 << 40,
) -> None:
    """Restores the directory as the new folder `destination`. Raises `Refused(DOES_NOT_OPEN)`
    unless every byte is as sealed.

    `destination` appears only after everything is verified. `Refused(OVERSIZE)` above `bytes_max`
    bytes of files.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    if destination.exists():
        raise FileExistsError(destination)
    work = Path(tempfile.mkdtemp(prefix=".open-", dir=destination.parent))
    writer = TreeWriter(work / "tree", Bounds())
    try:
        _open(ciphertext, salt, expected_output_digest, writer, bytes_max)
        os.rename(work / "tree", destination)
    finally:
        writer.abandon()
        remove_tree(work)


def check_sealed(
    ciphertext: Path, salt: bytes, expected_output_digest: Hash32, bytes_max: int = 1 << 40
) -> None:
    """Checks that a reveal opens its ciphertext. Like `open_sealed`, but keeps nothing."""
    _open(ciphertext, salt, expected_output_digest, NullSink(), bytes_max)


def _open(ciphertext: Path, salt: bytes, digest: Hash32, sink: Sink, bytes_max: int) -> None:
    bounds = replace(Bounds(), bytes_max=bytes_max)
    root = from_digest(digest, Codec.DAG_PB)
    with _opened(ciphertext, salt) as source:
        try:
            read_exact_car(source, root, DagWalk(root, sink, bounds, is_directory=True), bounds)
        except Refused as error:
            if error.code in (Code.OVERSIZE, Code.DOES_NOT_OPEN):
                raise
            raise Refused(Code.DOES_NOT_OPEN, error.detail) from error


@contextmanager
def _opened(ciphertext: Path, salt: bytes) -> Iterator["_Plaintext"]:
    with open(ciphertext, "rb") as file:
        yield _Plaintext(file, os.fstat(file.fileno()).st_size, output_key(salt))


class _Plaintext:
    """Reads the decrypted stream. The chunk that reaches the end of the file is the last one."""

    def __init__(self, file: BinaryIO, size: int, key: bytes) -> None:
        self._file, self._left, self._key = file, size, key
        self._index = 0
        self._chunk = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        if not self._chunk:
            self._next()
        count = min(len(buffer), len(self._chunk))
        buffer[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count

    def _next(self) -> None:
        if not self._left:
            return
        sealed = self._file.read(min(SEALED_CHUNK_BYTES, self._left))
        self._left -= len(sealed)
        if len(sealed) <= TAG_BYTES:
            raise Refused(Code.DOES_NOT_OPEN, f"chunk {self._index} is cut short")
        try:
            self._chunk = memoryview(
                _decrypt(sealed, None, nonce(self._index, not self._left), self._key)
            )
        except CryptoError as error:
            raise Refused(
                Code.DOES_NOT_OPEN,
                f"chunk {self._index} was not sealed with this salt at this place",
            ) from error
        self._index += 1


def _seal(pieces: Iterator[Block], key: bytes) -> Iterator[bytes]:
    """Yields sealed chunks. It holds one chunk back, because only the end shows which is the
    last.
    """
    index, held = 0, b""
    for chunk in _regroup(pieces, OUTPUT_CHUNK_BYTES):
        if held:
            yield _encrypt(held, None, nonce(index, False), key)
            index += 1
        held = chunk
    yield _encrypt(held, None, nonce(index, True), key)


def _regroup(pieces: Iterator[Block] | Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yields the same bytes in pieces of exactly `size`; the last may be shorter but not empty. It
    copies the bytes, so sources may reuse their buffers.
    """
    pending = bytearray()
    for piece in pieces:
        pending += piece
        at = 0
        while len(pending) - at >= size:
            yield bytes(pending[at : at + size])
            at += size
        del pending[:at]
    if pending:
        yield bytes(pending)
