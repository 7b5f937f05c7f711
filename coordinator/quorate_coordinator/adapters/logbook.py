"""Log text of runs, in memory only, bounded for each run, each client and in all; never part of a result."""

from dataclasses import dataclass, field

from quorate_protocol.units import Address, Hash32

RUN_BYTES_MAX = 1 << 20
CLIENT_BYTES_MAX = 16 << 20
ALL_BYTES_MAX = 128 << 20
TEXT_BYTES = 512  # what a text counts as beside its bytes: a million runs of one byte each are no megabyte


@dataclass(slots=True)
class _Text:
    client: Address
    text: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class LogBook:
    """The oldest text goes first: a client's own when it has too much, anybody's when all have."""

    texts: dict[Hash32, _Text] = field(default_factory=dict)
    runs_of: dict[Address, dict[Hash32, None]] = field(default_factory=dict)  # a client's, the oldest first
    bytes_of: dict[Address, int] = field(default_factory=dict)
    bytes_in_all: int = 0

    def add(self, client: Address, job_id: Hash32, text: str) -> None:
        """Appends; beyond 1 MiB a run's log is cut."""
        if not text:
            return
        kept = self.texts.get(job_id)
        if kept is None:
            kept = self.texts[job_id] = _Text(client)
            self.runs_of.setdefault(client, {})[job_id] = None
            self._count(client, TEXT_BYTES)
        more = text.encode()[: max(0, RUN_BYTES_MAX - len(kept.text))]
        kept.text += more
        self._count(client, len(more))
        while self.bytes_of.get(client, 0) > CLIENT_BYTES_MAX:
            self._drop(next(iter(self.runs_of[client])))
        while self.bytes_in_all > ALL_BYTES_MAX:
            self._drop(next(iter(self.texts)))

    def read(self, job_id: Hash32, start: int) -> bytes:
        """What a run has said from byte `start` on."""
        found = self.texts.get(job_id)
        return bytes(found.text[start:]) if found is not None else b""

    def _drop(self, job_id: Hash32) -> None:
        gone = self.texts.pop(job_id)
        del self.runs_of[gone.client][job_id]
        if not self.runs_of[gone.client]:
            del self.runs_of[gone.client]
        self._count(gone.client, -TEXT_BYTES - len(gone.text))

    def _count(self, client: Address, more: int) -> None:
        self.bytes_in_all += more
        self.bytes_of[client] = self.bytes_of.get(client, 0) + more
        if not self.bytes_of[client]:
            del self.bytes_of[client]
