"""Log text of runs, in memory only, bounded for each run, each client and in all; never part of a result."""

from dataclasses import dataclass, field

from quorate_protocol.units import Address, Hash32

RUN_BYTES_MAX = 1 << 20
CLIENT_BYTES_MAX = 16 << 20
ALL_BYTES_MAX = 128 << 20
TAIL_BYTES = 4 << 10  # kept of the end of a text that was cut: why a program failed, or why its files were refused, is said last
TEXT_BYTES = 512  # what a text counts as beside its bytes: a million runs of one byte each are no megabyte


@dataclass(slots=True)
class _Text:
    client: Address
    text: bytearray = field(default_factory=bytearray)
    left_out: int = 0  # bytes between the text and its tail
    tail: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.text) + len(self.tail)

    def add(self, data: bytes) -> None:
        """Whole letters up to the bound, and of what comes after it the end."""
        room = RUN_BYTES_MAX - len(self.text)
        if not self.tail and len(data) <= room:
            self.text += data
            return
        if not self.tail:
            taken = data[:room].decode(errors="ignore").encode()
            self.text += taken
            data = data[len(taken) :]
        self.tail += data
        cut = max(0, len(self.tail) - TAIL_BYTES)
        while 0 < cut < len(self.tail) and self.tail[cut] & 0xC0 == 0x80:
            cut += 1
        del self.tail[:cut]
        self.left_out += cut


@dataclass(slots=True)
class LogBook:
    """The oldest text goes first: a client's own when it has too much, anybody's when all have."""

    texts: dict[Hash32, _Text] = field(default_factory=dict)
    runs_of: dict[Address, dict[Hash32, None]] = field(default_factory=dict)  # a client's, the oldest first
    bytes_of: dict[Address, int] = field(default_factory=dict)
    bytes_in_all: int = 0

    def add(self, client: Address, job_id: Hash32, text: str) -> None:
        """Appends; beyond 1 MiB a run's log is cut, but for its last lines."""
        if not text:
            return
        kept = self.texts.get(job_id)
        if kept is None:
            kept = self.texts[job_id] = _Text(client)
            self.runs_of.setdefault(client, {})[job_id] = None
            self._count(client, TEXT_BYTES)
        before = len(kept)
        kept.add(text.encode(errors="replace"))
        self._count(client, len(kept) - before)
        while self.bytes_of.get(client, 0) > CLIENT_BYTES_MAX:
            self._drop(next(iter(self.runs_of[client])))
        while self.bytes_in_all > ALL_BYTES_MAX:
            self._drop(next(iter(self.texts)))

    def read(self, job_id: Hash32, start: int) -> bytes:
        """What a run has said from byte `start` on, up to where its text was cut."""
        found = self.texts.get(job_id)
        return bytes(found.text[start:]) if found is not None else b""

    def ending(self, job_id: Hash32) -> bytes:
        """What comes after the place of the cut: how much was left out there, and the last lines. Nothing for a text that is whole."""
        found = self.texts.get(job_id)
        if found is None or not found.tail:
            return b""
        mark = b"\n[%d bytes were left out here]\n" % found.left_out if found.left_out else b""
        return mark + bytes(found.tail)

    def _drop(self, job_id: Hash32) -> None:
        gone = self.texts.pop(job_id)
        del self.runs_of[gone.client][job_id]
        if not self.runs_of[gone.client]:
            del self.runs_of[gone.client]
        self._count(gone.client, -TEXT_BYTES - len(gone))

    def _count(self, client: Address, more: int) -> None:
        self.bytes_in_all += more
        self.bytes_of[client] = self.bytes_of.get(client, 0) + more
        if not self.bytes_of[client]:
            del self.bytes_of[client]
