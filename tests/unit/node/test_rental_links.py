"""Frames of an engine's stream, keys that may come in, and what rentals need of an executor."""

from types import SimpleNamespace

import pytest

from quorate_node.executors.base.inside import rental_problem
from quorate_node.rentals.links import Frames
from quorate_node.rentals.ssh_server import authorised, host_key
from quorate_protocol.messages.ports import Sandbox
from quorate_runtime.keys.crypto import PeerKey


def frame(kind: int, text: bytes) -> bytes:
    return bytes([kind, 0, 0, 0]) + len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize("size", [1, 3, 8, 9, 1000])
def test_frames_are_found_however_the_stream_is_cut(size: int) -> None:
    stream = frame(1, b"out") + frame(2, b"error") + frame(1, b"") + frame(1, b"\0" * 20)
    frames, found = Frames(), {True: b"", False: b""}
    for at in range(0, len(stream), size):
        for is_error, piece in frames.take(stream[at : at + size]):
            found[is_error] += piece
    assert found == {False: b"out" + b"\0" * 20, True: b"error"}


def test_an_engines_plain_words_are_errors() -> None:
    frames = Frames()
    words = [*frames.take(b"OC"), *frames.take(b"I runtime"), *frames.take(b" exec failed")]
    assert b"".join(piece for is_error, piece in words if is_error) == b"OCI runtime exec failed"


@pytest.mark.rule("12.19")
def test_only_whole_keys_come_in() -> None:
    key = host_key(PeerKey(bytes(32)))
    line = key.export_public_key().decode()
    assert authorised((line,)) == {key.public_data}
    assert not authorised(("", "ssh-ed25519 AAAA", f'command="x" {line}', "#" + line))


@pytest.mark.rule("12.23")
def test_an_executor_that_cannot_be_entered_says_so() -> None:
    other = SimpleNamespace(sandbox=Sandbox.BWRAP)
    assert "jobs run in bwrap" in rental_problem(other)  # type: ignore[arg-type]
