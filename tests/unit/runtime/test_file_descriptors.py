"""Tests that connections never take all file descriptors: files and the chain node need some."""

import resource

import pytest

from quorate_runtime.http.listener import OpenConnections
from quorate_runtime.http.listener_limits import ListenerLimits
from quorate_runtime.process import file_descriptors


@pytest.mark.parametrize(
    ("limits", "raised", "fitting"),
    [
        ((1024, 1 << 20), 16_384, 8_192),
        ((1024, 4096), 4096, 3_072),
        ((1024, 1024), 1024, 512),
        ((80, 80), 80, 40),
        ((1 << 16, 1 << 20), 1 << 16, 8_192),
    ],
)
def test_the_limit_is_raised_as_far_as_allowed(
    limits: tuple[int, int], raised: int, fitting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = list(limits)

    def put(_: int, asked: tuple[int, int]) -> None:
        now[:] = asked

    monkeypatch.setattr(resource, "getrlimit", lambda _: (now[0], now[1]))
    monkeypatch.setattr(resource, "setrlimit", put)
    assert file_descriptors.connections_max(8_192) == fitting and now[0] == raised


def test_fewer_connections_are_allowed_where_the_limit_stays_low(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: int, asked: tuple[int, int]) -> None:
        raise OSError("not permitted")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    open_connections = OpenConnections(ListenerLimits())
    open_connections.connections_max = file_descriptors.connections_max(
        open_connections.bounds.connections_max
    )
    assert sum(open_connections.admit(f"10.0.{number}.0") for number in range(300)) == 100
    assert "ulimit -n" in caplog.text
