"""`quorate.verify`: rechecks a receipt file without asking anybody."""

from pathlib import Path

from quorate.errors import UsageError
from quorate_protocol.messages import receipt
from quorate_protocol.messages.receipt import RECEIPT_BYTES_MAX, Report
from quorate_protocol.units import Round
from quorate_runtime.beacon.bls import verify_round
from quorate_runtime.keys.crypto import recover


def verify(source: Path | str | bytes) -> Report:
    """Every check of a receipt by name; `report.valid` is true when all hold. A path, or the
    file's bytes.
    """
    return receipt.verify(
        source if isinstance(source, bytes) else _read(Path(source)), recover, check_round
    )


def check_round(key: bytes, number: int, signature: bytes) -> bool:
    """`receipt.VerifyRound` with real signatures."""
    return verify_round(key, Round(number), signature)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(RECEIPT_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
