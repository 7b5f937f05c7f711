"""The second place: a folder, on another disk, to which a running coordinator copies its files.

A round first takes a moment of the journal, then copies all other files, then the journal up to
that moment. So the copy of the journal never knows of a run, a document or a transaction that the
other copies lack.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from quorate_contracts.deploy import Deployment
from quorate_coordinator.base.config import TRANSACTIONS, Config
from quorate_coordinator.base.operator_view import BackupView
from quorate_coordinator.base.settings import FILE as SETTINGS
from quorate_coordinator.storage import file_copies
from quorate_protocol.codec import canonical
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address
from quorate_runtime.files import file_lock, private_folder, write_atomic
from quorate_runtime.journal.journal import Journal
from quorate_runtime.journal.journal_copy import JournalCut
from quorate_runtime.journal.journal_files import database

log = logging.getLogger(__name__)
MARKER = "quorate-backup.json"
LOCK = "quorate-backup.lock"
JOURNAL, KEYS, SENDS = "journal", "keys", (TRANSACTIONS, "account.sqlite")
ROUND_SECONDS = 1.0
RETRY_SECONDS = 10.0
TOLD_EVERY_SECONDS = 60.0
BYTES_LEAST = 64 << 20
MARKER_BYTES_MAX = 4096


class Owner(Struct, frozen=True):
    """One account may have a coordinator on several chains."""

    coordinator: Address
    chain_id: int
    stakes: Address

    @classmethod
    def of(cls, coordinator: Address, deployment: Deployment) -> "Owner":
        return cls(coordinator, deployment.chain_id, deployment.stakes)

    def __str__(self) -> str:
        return (
            f"coordinator 0x{self.coordinator.hex()} on chain {self.chain_id} (stakes contract "
            f"0x{self.stakes.hex()})"
        )


class Marker(Struct, frozen=True):
    """Whose copy a folder holds, and up to when it is whole. Rows are the last that were copied."""

    owner: Owner
    copied_at: int = 0  # Unix seconds: all that was durable then is here; 0 = never whole
    offset: int = 0  # of the journal's newest event here
    archive_row: int = 0
    documents_row: int = 0


def read_marker(place: Path) -> Marker:
    """`Unavailable` if the folder has none."""
    path = place / MARKER
    try:
        return canonical.decode(Marker, path.read_bytes()[: MARKER_BYTES_MAX + 1])
    except OSError as error:
        raise Unavailable(
            f"{path}: {error.strerror}; mount the second place, or make it: quorate coordinator "
            f"backup {place}",
            RETRY_SECONDS,
        ) from error
    except Refused as error:
        raise Unavailable(f"{path} is damaged ({error.detail})", RETRY_SECONDS) from error


def make_place(place: Path, home: Path, owner: Owner) -> None:
    """Raises Refused for a folder of another coordinator or network, one that holds other files, or
    one inside the home; OSError as the disk does.
    """
    if place.resolve().is_relative_to(home.resolve()):
        raise Refused(
            Code.MALFORMED, f"{place} is inside {home}: name a folder on another disk or machine"
        )
    if (place / MARKER).exists():
        found = read_marker(place)
        if found.owner != owner:
            raise Refused(
                Code.MALFORMED,
                f"{place} holds the copy of {found.owner}, not of {owner}: name another folder",
            )
        return
    if place.exists() and any(place.iterdir()):
        raise Refused(Code.MALFORMED, f"{place} holds other files: name an empty folder")
    private_folder(place)
    write_atomic(place / MARKER, canonical.encode(Marker(owner)))


def copy_once(home: Path, place: Path, owner: Owner, now: int) -> Marker:
    """Copies until the copy is whole; returns the new marker. It blocks. `now` is the second at
    which it is called. Raises `Unavailable` with the reason and the remedy.
    """
    try:
        busy = Unavailable(f"{place} is in use by another process", RETRY_SECONDS)
        with file_lock(place / LOCK, busy):
            return _round(home, place, owner, now)
    except (OSError, sqlite3.Error) as error:
        told = getattr(error, "strerror", None) or error
        raise Unavailable(
            f"the second place {place} takes no copy: {told}; free some space there, or look at "
            "the disk",
            RETRY_SECONDS,
        ) from error


def _round(home: Path, place: Path, owner: Owner, now: int) -> Marker:
    marker = read_marker(place)
    if marker.owner != owner:
        raise Unavailable(
            f"{place} holds the copy of {marker.owner}, not of {owner}: name another folder",
            RETRY_SECONDS,
        )
    if not database(home / JOURNAL).exists():
        raise Unavailable(f"{home} has no journal yet: start the coordinator", RETRY_SECONDS)
    _check_room(place)
    for path in (home / SETTINGS, *sorted((home / KEYS).glob("*"))):
        if path.is_file():
            file_copies.copy_file(path, place / path.relative_to(home))
    # What is long is copied before the moment is taken, because the journal's WAL grows until the
    # moment ends.
    rows = _copy_rows(home, place, marker.archive_row, marker.documents_row)
    with JournalCut(home / JOURNAL) as cut:
        rows = _copy_rows(home, place, *rows)
        for name in SENDS:
            if (home / name).exists():
                file_copies.copy_database(home / name, place / name)
        cut.write(place / JOURNAL)
    marker = Marker(owner, now, cut.last_offset, *rows)
    write_atomic(place / MARKER, canonical.encode(marker))
    return marker


def _copy_rows(home: Path, place: Path, archive: int, documents: int) -> tuple[int, int]:
    while (reached := file_copies.copy_archive(home, place, archive)) != archive:
        archive = reached
    while (reached := file_copies.copy_documents(home, place, documents)) != documents:
        documents = reached
    return archive, documents


def _check_room(place: Path) -> None:
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if found.f_flag & os.ST_RDONLY or free < BYTES_LEAST:
        what = "is read-only" if found.f_flag & os.ST_RDONLY else f"has {free >> 20} MiB free"
        raise Unavailable(
            f"the disk of the second place {place} {what}; the market goes on without a copy: "
            "free some space there",
            RETRY_SECONDS,
        )


@dataclass(slots=True)
class SecondPlace:
    """Copies the coordinator's files for as long as it runs. Without a `place` it does nothing.
    `newest` gives the offset of the journal's newest event.
    """

    home: Path
    place: Path | None
    owner: Owner
    clock: Clock
    newest: Callable[[], int]
    problem: str = ""  # why nothing is copied now, with the remedy; "" while it is
    copied_at: float = 0.0  # all that was durable then is in the second place; 0 = never
    offset: int = 0  # of the newest event in the second place
    _told_at: float = field(default=float("-inf"))

    def lag_seconds(self) -> int | None:
        """Of the newest whole copy; None before the first."""
        return max(0, int(self.clock.now() - self.copied_at)) if self.copied_at else None

    @classmethod
    def of(
        cls, config: Config, coordinator: Address, clock: Clock, journal: Journal
    ) -> "SecondPlace":
        owner = Owner.of(coordinator, config.deployment)
        place = Path(config.backup) if config.backup else None
        return cls(config.home, place, owner, clock, lambda: journal.last_offset)

    def view(self) -> BackupView | None:
        if self.place is None:
            return None
        behind = max(0, self.newest() - self.offset)
        return BackupView(str(self.place), self.lag_seconds(), behind, self.problem)

    async def run(self) -> None:
        """A place that takes nothing never ends it."""
        while self.place is not None:
            await self.copy(self.place)
            await self.clock.sleep(RETRY_SECONDS if self.problem else ROUND_SECONDS)

    async def copy(self, place: Path) -> None:
        """Says once a minute what hinders it."""
        now = self.clock.now()
        try:
            marker = await asyncio.to_thread(copy_once, self.home, place, self.owner, int(now))
        except Unavailable as error:
            # Not re-raised: without a second place the market goes on.
            self.problem = str(error)
            if now - self._told_at >= TOLD_EVERY_SECONDS:
                self._told_at = now
                log.error("no copy for %s: %s", _age(self.lag_seconds()), error)
            return
        if self.problem:
            log.warning("the second place %s takes copies again", place)
            self.problem, self._told_at = "", float("-inf")
        self.copied_at, self.offset = now, marker.offset


def _age(seconds: int | None) -> str:
    return "this whole run" if seconds is None else f"{seconds} s"
