"""Caches documents that the core has just built, until the shell stores them. No snapshot contains
them.
"""

BYTES_MAX = 16 << 20


class DocumentCache:
    """The newest documents by CID, up to `bytes_max`. A missing document can be built again, with
    the same bytes.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._documents: dict[str, bytes] = {}
        self._bytes, self._bytes_max = 0, bytes_max

    def put(self, cid: str, data: bytes) -> None:
        """Adds a document, and drops the oldest ones if there is not enough room."""
        self.take(cid)
        self._documents[cid] = data
        self._bytes += len(data)
        while self._bytes > self._bytes_max:
            self.take(next(iter(self._documents)))

    def take(self, cid: str) -> bytes | None:
        """Removes a document and returns it; None if it is not here."""
        data = self._documents.pop(cid, None)
        self._bytes -= len(data or b"")
        return data
