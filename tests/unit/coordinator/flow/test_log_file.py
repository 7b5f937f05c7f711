"""Log text outlives the coordinator's process, within a bound."""

from pathlib import Path

import pytest

from quorate_coordinator.storage import run_logs
from quorate_coordinator.storage.run_logs import LogFile, Piece, RunLogs
from quorate_protocol.units import Address, Hash32

CLIENT, LEASE = Address(b"\x01" * 20), Hash32(b"\x0a" * 32)


def job(number: int) -> Hash32:
    return Hash32(number.to_bytes(32, "big"))


def piece(number: int, at: int, text: bytes, client: Address = CLIENT) -> Piece:
    return Piece(client, job(number), LEASE, at, text)


def kept(logs: RunLogs) -> dict[Hash32, list[tuple[int, bytes]]]:
    return {
        name: [part for text in logs.texts(name) for part in text.pieces()]
        for name in logs.client_of
    }


def test_next_process_has_the_log_text_of_one_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "logs.bin"
    logs = RunLogs.open(path)
    for line in range(12):
        logs.add(piece(1, line * 8, b"line %02d\n" % line))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])  # killed while it wrote the next piece
    after = RunLogs.open(path)
    assert kept(after) == kept(logs)
    after.add(piece(1, 96, b"line 12\n"))
    ((_, text),) = kept(RunLogs.open(path))[job(1)]
    assert text.endswith(b"line 11\nline 12\n") and len(text) == 104
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_flood_of_one_client_leaves_the_text_of_others_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logs, "FILE_BYTES_MAX", 200_000)
    monkeypatch.setattr(run_logs, "CLIENT_BYTES_MAX", 300_000)
    path, flooder = tmp_path / "logs.bin", Address(b"\x02" * 20)
    logs = RunLogs.open(path)
    logs.add(piece(1, 0, b"a traceback\n"))
    long = b"y" * (run_logs.HEAD_BYTES_MAX // 8)
    for number in range(400):
        logs.add(piece(2 + number % 9, number // 9 * len(long), long, flooder))
        size = sum(item.stat().st_size for item in tmp_path.iterdir())
        assert size < 2 * (200_000 + 300_000 + 2 * len(long))
    assert kept(RunLogs.open(path))[job(1)] == [(0, b"a traceback\n")]
    assert [item.name for item in tmp_path.iterdir()] == ["logs.bin"], "one file after a start"


def test_a_full_file_becomes_the_older_one_and_none_is_lost(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "logs.bin", 10_000)
    for number in range(15):
        file.add(piece(number, 0, b"x" * 1_000))
        if file.is_full:
            assert file.begin()
    assert [item.job_id for item in file.pieces()] == [job(number) for number in range(15)]


def test_disk_that_takes_no_log_text_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logs, "FILE_BYTES_MAX", 0)
    logs = RunLogs.open(tmp_path / "logs.bin")
    logs.add(piece(1, 0, b"first\n"))
    (tmp_path / "logs.bin").unlink()  # the next piece needs a new file, and cannot move this one
    logs.add(piece(1, 6, b"second\n"))
    assert kept(logs)[job(1)] == [(0, b"first\nsecond\n")]
