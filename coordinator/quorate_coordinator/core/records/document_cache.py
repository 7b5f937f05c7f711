"""Documents that were just made and wait to be stored, so that they need not be made twice.
Derived: never part of a snapshot.
"""

BYTES_MAX = 16 << 20


class DocumentCache:
    """By CID, as many of the newest as fit. Whoever does not find one makes it anew, the same to
    the byte.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._documents: dict[str, bytes] = {}
        self._bytes, self._bytes_max = 0, bytes_max

    def put(self, cid: str, data: bytes) -> None:
        """Keeps one; the oldest make room."""
        self.take(cid)
        self._documents[cid] = data
        self._bytes += len(data)
        while self._bytes > self._bytes_max:
            self.take(next(iter(self._documents)))

    def take(self, cid: str) -> bytes | None:
        """Gives one away."""
        data = self._documents.pop(cid, None)
        self._bytes -= len(data or b"")
        return data
