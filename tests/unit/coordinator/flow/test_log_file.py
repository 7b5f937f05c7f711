"""Log text outlives the coordinator's process, within a bound."""

from pathlib import Path

import pytest

from quorate_coordinator.storage import run_logs
from quorate_coordinator.storage.run_logs import LogFile, Piece, RunLogs
from quorate_protocol.units import Address, Hash32

CLIENT, LEASE = Address(b"\x01" * 20), Hash32(b"\x0a" * 32)


def job(number: int) -> Hash32:
    return Hash32(number.to_bytes(32, "big"))


def test_next_process_has_the_log_text_of_one_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "logs.bin"
    logs = RunLogs.open(path)
    for line in range(12):
        logs.add(CLIENT, job(1), LEASE, f"line {line}\n")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])  # killed while it wrote the next piece
    after = RunLogs.open(path)
    assert after.read(job(1), 0) == logs.read(job(1), 0) and after.last_writer(job(1)) == LEASE
    after.add(CLIENT, job(1), LEASE, "line 12\n")
    assert RunLogs.open(path).read(job(1), 0).endswith(b"line 11\nline 12\n")
    assert path.stat().st_mode & 0o777 == 0o600


def test_files_of_log_text_are_bounded_and_the_oldest_goes_first(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "logs.bin", 10_000)
    for number in range(100):
        file.add(Piece(CLIENT, job(number), LEASE, b"x" * 1_000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 24_000
    kept = [piece.job_id for piece in file.pieces()]
    assert kept == [job(number) for number in range(100 - len(kept), 100)] and len(kept) >= 10


def test_disk_that_takes_no_log_text_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logs, "FILE_BYTES_MAX", 0)
    logs = RunLogs.open(tmp_path / "logs.bin")
    logs.add(CLIENT, job(1), LEASE, "first\n")
    (tmp_path / "logs.bin").unlink()  # the next piece needs a new file, and cannot move this one
    logs.add(CLIENT, job(1), LEASE, "second\n")
    assert logs.read(job(1), 0) == b"first\nsecond\n"
