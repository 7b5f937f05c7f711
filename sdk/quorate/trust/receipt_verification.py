"""`quorate.verify`: checks a receipt file offline."""

from pathlib import Path

from quorate.errors import UsageError
from quorate_protocol.messages.receipt import RECEIPT_BYTES_MAX, Report
from quorate_protocol.rules import receipt_checks
from quorate_protocol.units import Round
from quorate_runtime.beacon.bls import verify_round
from quorate_runtime.keys.crypto import recover


def verify(source: Path | str | bytes) -> Report:
    """Checks a receipt, given as a path or as bytes, and returns every check by name.

    `report.valid` is true if all hold. Raises UsageError if the file cannot be read.
    """
    return receipt_checks.verify(
        source if isinstance(source, bytes) else _read(Path(source)), recover, check_round
    )


def check_round(key: bytes, number: int, signature: bytes) -> bool:
    """Implements `receipt_draws.VerifyRound` with BLS signatures."""
    return verify_round(key, Round(number), signature)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(RECEIPT_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
