"""Checks a second place, and makes a new home of it."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.config import ARCHIVE, DOCUMENTS, RESTORED
from quorate_coordinator.base.coordinator_keys import account_of
from quorate_coordinator.base.settings import FILE as SETTINGS
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.storage import file_copies
from quorate_coordinator.storage.second_place import (
    JOURNAL,
    KEYS,
    SENDS,
    Marker,
    Owner,
    read_marker,
)
from quorate_protocol.refusals import Code, Refused
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.files import private_folder
from quorate_runtime.journal import journal_files
from quorate_runtime.journal.journal_copy import JournalCut, check_copy


class Checked(Struct, frozen=True):
    """What a second place holds. Times are Unix seconds."""

    marker: Marker
    offset: int  # of the newest event
    newest_at: int  # of the newest event after the newest snapshot; 0 if there is none
    pending: int  # effects that the coordinator will perform first
    runs: int  # in the archive


def check_place(place: Path) -> Checked:
    """Reads all that a second place holds, as a start would, and writes nothing. Raises
    `JournalError` for a journal that is not whole, Refused for missing or unreadable files,
    Unavailable if the folder is no second place.
    """
    marker = read_marker(place)
    if not marker.copied_at:
        raise Refused(Code.WRONG_PHASE, f"{place}: no copy was ever whole here")
    _check_owner(place, marker.owner)
    folder = place / JOURNAL
    offset, newest_at = check_copy(folder)
    codec: PackedCodec[ev.Event, Effect] = PackedCodec(ev.Event, Effect)
    snapshot = journal_files.read_snapshot(folder)
    for stored in journal_files.read_events(folder, snapshot.offset if snapshot else 0):
        codec.decode_event(stored.record.version, stored.record.payload)
    with closing(journal_files.connect(journal_files.database(folder))) as opened:
        pending = journal_files.read_outbox(opened, folder).pending()
    for effect in pending:
        codec.decode_effect(effect.version, effect.payload)
    if offset < marker.offset:
        raise Refused(
            Code.MALFORMED, f"{folder} ends at event {offset}, and had {marker.offset} before"
        )
    runs = 0
    for name in (ARCHIVE, DOCUMENTS, *SENDS):
        if (place / name).exists():
            runs = max(runs, _rows(place / name) if name == ARCHIVE else 0)
            _check_database(place / name)
    return Checked(marker, offset, newest_at, len(pending), runs)


def restore(place: Path, home: Path) -> Checked:
    """Raises as `check_place`, and Refused if the home is not empty."""
    if home.exists() and any(home.iterdir()):
        raise Refused(Code.MALFORMED, f"{home} is not empty: name a new folder")
    checked = check_place(place)
    private_folder(home)
    # First, so that no start after an interruption trusts this journal to be the newest. The
    # settings come last: without them nothing starts.
    (home / RESTORED).touch(mode=0o600)
    with JournalCut(place / JOURNAL) as cut:
        cut.write(home / JOURNAL)
    for name in (ARCHIVE, DOCUMENTS, *SENDS):
        if (place / name).exists():
            file_copies.copy_database(place / name, home / name)
    shutil.copytree(place / KEYS, home / KEYS)
    file_copies.copy_file(place / SETTINGS, home / SETTINGS)
    return checked


def _check_owner(place: Path, owner: Owner) -> None:
    for name in (SETTINGS, KEYS):
        if not (place / name).exists():
            raise Refused(Code.MALFORMED, f"{place / name} is missing: put back your copy of it")
    found = Owner.of(account_of(place / KEYS), settings_file.read(place).deployment)
    if found != owner:
        raise Refused(
            Code.MALFORMED,
            f"{place} has the journal of {owner}, and settings or keys of {found}: put back your "
            "copies of coordinator.json and keys/",
        )


def _rows(path: Path) -> int:
    with file_copies.reading(path) as opened:
        return int(opened.execute("SELECT count(*) FROM runs").fetchone()[0])


def _check_database(path: Path) -> None:
    try:
        with file_copies.reading(path) as opened:
            found = str(opened.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        raise Refused(Code.MALFORMED, f"{path}: {error}") from error
    if found != "ok":
        raise Refused(Code.MALFORMED, f"{path}: {found[:200]}")
