"""Tests that a container's log ends although the engine does not end its stream."""

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from quorate_node.executors.docker import docker_executor
from quorate_node.executors.docker.docker_executor import LogReaders


def test_a_log_ends_although_its_engine_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    stream = socket.SocketIO(ours, "r")
    stream._response = ours  # type: ignore[attr-defined]
    engine = SimpleNamespace(attach_socket=lambda *_: stream)
    readers = LogReaders(engine)  # type: ignore[arg-type]
    with theirs:
        readers.attach("quorate-a", tmp_path / "log")
        readers.note_end("quorate-a")
        assert readers.is_reading("quorate-a"), "its last output may be on the way"
        monkeypatch.setattr(docker_executor, "LATE_SECONDS", -1.0)
        assert not readers.is_reading("quorate-a")
