"""Keeps the receipts of this provider's jobs that passed their check, for a settlement without the
coordinator (PROTOCOL 6.35).
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from quorate_protocol.messages.receipt import RECEIPT_BYTES_MAX
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32, Seconds
from quorate_runtime.files import private_folder, write_atomic

FOLDER = "receipts"  # in the provider's home
FILES_MAX = 1024
LOOK_EVERY = 64  # receipts written between two looks for old ones

log = logging.getLogger(__name__)


def receipt_path(home: Path, job_id: Hash32) -> Path:
    """The file of a job's receipt."""
    return home / FOLDER / f"{job_id.hex()}.json"


def read_receipt(path: Path) -> bytes:
    """Returns a receipt's file. Raises Refused if it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(RECEIPT_BYTES_MAX + 1)
    except OSError as error:
        raise Refused(
            Code.UNKNOWN, f"{path}: {error.strerror}; name the job's receipt with --receipt FILE"
        ) from error
    if len(data) > RECEIPT_BYTES_MAX:
        raise Refused(Code.OVERSIZE, f"{path}: more than {RECEIPT_BYTES_MAX} bytes")
    return data


@dataclass(slots=True)
class KeptReceipts:
    """The newest receipts in `home`, for so many seconds. The disk may lose one: the coordinator
    shows it again.
    """

    home: Path
    seconds: Seconds
    clock: Clock
    _written: int = 0

    def keep(self, job_id: Hash32, data: bytes) -> None:
        """Stores one receipt, and removes old ones now and then. Blocks for a disk write."""
        path = receipt_path(self.home, job_id)
        try:
            private_folder(path.parent)
            write_atomic(path, data, 0o600)
            if self._written % LOOK_EVERY == 0:
                self._remove_old(path.parent)
            self._written += 1
        except OSError as error:
            # Not re-raised: a full disk must not end the checks of other receipts.
            log.warning("the receipt of job 0x%s is not kept: %s", job_id.hex(), error)

    def _remove_old(self, folder: Path) -> None:
        with os.scandir(folder) as entries:
            found = sorted(((entry.stat().st_mtime, entry.path) for entry in entries), reverse=True)
        oldest = self.clock.now() - self.seconds
        for place, (written, path) in enumerate(found):
            if place >= FILES_MAX or written < oldest:
                Path(path).unlink(missing_ok=True)
