"""The base of documents that travel as canonical JSON and are named by their CID."""

from quorate_protocol.codec import cids, text_writer
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.readable import Readable
from quorate_protocol.units import Hash32


class Document(Readable, frozen=True):
    """A document. Messages name it by the digest of its CID (v1, raw, sha2-256)."""

    def encode(self) -> bytes:
        return text_writer.encode(self)

    def digest(self) -> Hash32:
        return sha256(self.encode())

    def cid(self) -> str:
        return cids.document_cid(self.encode())
