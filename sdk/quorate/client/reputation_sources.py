"""Public logs from coordinators and files: each is checked, folded, and compared with what its
coordinator says and with what this client knows.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from quorate.base.errors import EvidenceError, UnavailableError, UsageError, from_refused
from quorate.client.base.client_ledger import Ledger
from quorate.trust.coordinator_identity import CoordinatorIdentity, read_pinned
from quorate_protocol.messages import envelope
from quorate_protocol.messages.signed import Ack
from quorate_protocol.messages.views import ImportedView, ReputationHead, ReputationView
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.reputation import fold
from quorate_protocol.rules.reputation.log_document import LINES_MAX, FoldedLog, first_difference
from quorate_protocol.units import Address, Hash32
from quorate_runtime.http import log_file
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.http.log_download import LogDownload

COMPARISONS_MAX = 5  # tries to ask for numbers while the log does not grow


@dataclass(frozen=True, slots=True)
class Known:
    """What a profile knows of one coordinator: its identity, and the log's roots in its Acks."""

    identity: CoordinatorIdentity
    acked: Mapping[int, Hash32]


@dataclass(frozen=True, slots=True)
class ReadLog:
    """A log that was read. `source` is its URL or path.

    `said` has the coordinator's own numbers at the log's length; None from a file, and if the log
    grew at each try. `is_pinned`: a profile knows this coordinator's key.
    """

    source: str
    log: FoldedLog
    is_pinned: bool
    acks: int  # of this profile's orders, whose roots the log has
    said: Mapping[Address, ReputationView] | None = None
    differences: tuple[str, ...] = ()
    imported: tuple[ImportedView, ...] = ()  # what this coordinator says of others' logs

    def view(self, provider: Address) -> ReputationView:
        return fold.view_of(self.log.trusts.get(provider) or fold.Trusts())


def known_of(home: Path) -> Known | None:
    """Returns what the profile in a folder knows of its coordinator; None before first contact.

    Raises EvidenceError if two Acks name different roots for one length.
    """
    if not (home / "pins.json").exists():
        return None
    identity = read_pinned(home / "pins.json")
    acked: dict[int, Hash32] = {}
    ledger = Ledger(home / "ledger.sqlite")
    try:
        for entry in ledger.entries(identity.coordinator):
            if entry.ack is None:
                continue
            ack = envelope.decode(entry.ack, Ack).message
            if acked.setdefault(ack.log_length, ack.log_root) != ack.log_root:
                raise EvidenceError(
                    f"two Acks of this profile name different roots for the first {ack.log_length} "
                    "lines of the log; the coordinator shows different logs"
                )
    finally:
        ledger.close()
    return Known(identity, acked)


def read_file(path: Path, known: Known | None) -> ReadLog:
    """Reads a log from a file alone. Raises EvidenceError, which names the line; UsageError."""
    try:
        with path.open("rb") as file, _evidence(str(path)):
            head = log_file.head_line(file)
            return _checked(str(path), head, file, known, head.length)
    except OSError as error:
        raise UsageError(f"--log {path}: {error.strerror or error}") from error


async def download(
    url: str, known: Known | None, wanted: Address | None, save: Path | None
) -> ReadLog:
    """Downloads a log, folds it, and compares it with the coordinator's own numbers, of one
    provider or of all. Writes the log's document to `save`.

    Raises EvidenceError, which names the line; UnavailableError; UsageError.
    """
    from quorate_runtime.http.log_download import LogDownload

    with tempfile.TemporaryFile() as body:
        async with plain_session() as session:
            with _evidence(url):
                source = LogDownload(url, session, body)
                head, said = await _fetched(source, wanted)
                imported = await source.imported(wanted)
        body.seek(0)
        with _evidence(url):
            found = _checked(url, head, body, known, LINES_MAX)
        if save is not None:
            try:
                log_file.write_file(save, head, body)
            except OSError as error:
                raise UsageError(f"--save {save}: {error.strerror or error}") from error
    differences = [
        line
        for provider, view in sorted((said or {}).items())
        for line in _differences(provider, found.view(provider), view)
    ]
    return replace(found, said=said, differences=tuple(differences), imported=imported)


def check_one_log(read: list[ReadLog]) -> None:
    """Raises EvidenceError if one coordinator signed two logs, with the first line that differs."""
    for number, one in enumerate(read):
        for other in read[:number]:
            if one.log.head.coordinator != other.log.head.coordinator:
                continue
            line = first_difference(one.log, other.log)
            if line is not None:
                raise EvidenceError(
                    f"coordinator 0x{one.log.head.coordinator.hex()} signed two logs: line {line} "
                    f"of {one.source} is not line {line} of {other.source}"
                )


async def _fetched(
    download: LogDownload, wanted: Address | None
) -> tuple[ReputationHead, dict[Address, ReputationView] | None]:
    """Fetches the lines, and the coordinator's numbers at the same length of its log."""
    head = await download.head()
    for _ in range(COMPARISONS_MAX):
        await download.fetch(head)
        views = [
            await download.provider(provider)
            for provider in ([wanted] if wanted else sorted(download.providers))
        ]
        now = await download.head()
        if now == head:
            return head, {view.provider: view.reputation for view in views if view}
        head = now
    await download.fetch(head)
    return head, None


def _checked(
    source: str, head: ReputationHead, file: BinaryIO, known: Known | None, length_max: int
) -> ReadLog:
    """Folds a log. Acks above `length_max` are not looked for, because a file may be older."""
    identity = None if known is None else known.identity
    if known is None or identity is None or head.coordinator != identity.coordinator:
        return ReadLog(source, log_file.folded_file(head, file, {}), False, 0)
    named = (head.statement_key, head.chain_id, head.stakes)
    if named != (identity.statement_key, identity.chain_id, identity.stakes):
        raise Refused(
            Code.WRONG_SIGNER,
            "log: its key, chain or contract is not the one that this profile knows",
        )
    acked = {length: root for length, root in known.acked.items() if length <= length_max}
    return ReadLog(source, log_file.folded_file(head, file, acked), True, len(acked))


def _differences(provider: Address, own: ReputationView, said: ReputationView) -> Iterator[str]:
    for name in ReputationView.__struct_fields__:
        one, other = getattr(own, name), getattr(said, name)
        if one != other:
            yield (
                f"0x{provider.hex()}: {name.replace('_', ' ')}: the coordinator says {other}, its "
                f"log gives {one}"
            )


@contextmanager
def _evidence(source: str) -> Iterator[None]:
    """Turns a refused log into EvidenceError, because a log is evidence and not a request."""
    try:
        yield
    except Refused as refused:
        raise EvidenceError(f"{source}: {refused.detail or from_refused(refused)}") from refused
    except Unavailable as away:
        raise UnavailableError(str(away)) from away
