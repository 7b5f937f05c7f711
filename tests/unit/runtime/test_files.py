"""Tests that `write_atomic` replaces a file whole or not at all."""

import os
from pathlib import Path

import pytest

from quorate_runtime.files import write_atomic


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


def test_what_a_crash_left_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.with_name("facts.json.part").write_bytes(b"half of a longer fi")
    write_atomic(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["facts.json"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failed_write_leaves_the_old_file_and_no_other(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "facts.json"
    write_atomic(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["facts.json"]


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "missing" / "facts.json", b"")
