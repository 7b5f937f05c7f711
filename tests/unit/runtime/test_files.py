"""Tests that `write_atomic` replaces a file whole or not at all."""

import errno
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from quorate_protocol.refusals import Unavailable
from quorate_runtime.durable import make_whole, trouble
from quorate_runtime.files import private_file, private_folder, write_atomic
from support.full_disks import fill_disks


def test_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["facts.json"]


def test_file_has_the_mode_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"open to all")
    write_atomic(path, b"secret", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_writers_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, texts = tmp_path / "facts.json", [bytes([letter]) * 100_000 for letter in b"abcd"]

    def write(text: bytes) -> None:
        for _ in range(25):
            write_atomic(path, text)
            assert path.read_bytes() in texts

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, texts))
    assert os.listdir(tmp_path) == ["facts.json"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failed_write_leaves_the_old_file_and_no_other(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "facts.json"
    write_atomic(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space left") as failed:
        write_atomic(path, b"new")
    assert failed.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["facts.json"]


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "missing" / "facts.json", b"")


def test_home_and_its_files_are_for_their_owner_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "a" / "home"
    private_folder(home)
    write_atomic(home / "settings.json", b"{}")
    private_file(home / "store.sqlite")
    make_whole(home / "journal.sqlite", "CREATE TABLE a (b);")
    assert {mode_of(path) for path in (home, *home.iterdir())} == {0o700, 0o600}
    assert caplog.messages == []


def test_rights_of_an_older_home_are_narrowed_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "ledger.sqlite").write_bytes(b"")
    (home / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"")
    private_folder(home)
    private_folder(home)
    assert (mode_of(home), mode_of(home / "ledger.sqlite")) == (0o700, 0o600)
    assert mode_of(tmp_path / "elsewhere") == 0o644
    assert caplog.messages == [f"others could read {home} (mode 0755); now only you can"]


def test_shared_folder_keeps_its_rights_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o1777)
    private_folder(tmp_path)
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
    assert "use a folder of your own" in caplog.text


def test_database_on_a_full_disk_is_called_whole_and_its_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"
    make_whole(path, "CREATE TABLE a (b);")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.OperationalError) as full:
            connection.execute("INSERT INTO a VALUES (zeroblob(100000))")
    assert "ulimit" in str(trouble(path, full.value))
    fill_disks(monkeypatch)
    told = trouble(path, full.value)
    assert isinstance(told, Unavailable) and f"df -h {tmp_path}" in str(told)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777
