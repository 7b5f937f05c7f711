"""Containers of rentals whose daemon was killed are removed in time, and no others."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from quorate_node.executors.base import mounts
from quorate_node.executors.docker import lease_keeper
from quorate_node.executors.docker.lease_dirs import release_secrets
from quorate_node.executors.docker.lease_keeper import LeaseKeeper, end_keeper, folder_of, keep
from quorate_node.rentals.secrets import SecretStore
from quorate_runtime.keys.crypto import BoxKey

NOWHERE = "unix:///nowhere/engine.sock"


class Engine:
    """What the keeper asks of a container engine, which may be away."""

    def __init__(self) -> None:
        self.names = {"quorate-one", "quorate-two"}
        self.is_away = False

    def connect(self, url: str | None) -> "Engine":
        if self.is_away:
            raise docker.errors.DockerException("away")
        return self

    def inspect_container(self, name: str) -> None:
        if name not in self.names:
            raise docker.errors.NotFound("gone")

    def remove_container(self, name: str, **_: object) -> None:
        self.inspect_container(name)
        self.names.remove(name)

    def close(self) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(lease_keeper, "connect", made.connect)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "docker"


def at_each_pause(monkeypatch: pytest.MonkeyPatch, *works: Callable[[], Any]) -> None:
    left = list(works)
    monkeypatch.setattr(time, "sleep", lambda _: left.pop(0)())


def named(home: Path) -> set[str]:
    return {path.name for path in folder_of(home).iterdir() if path.name != ".keeper"}


def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What `extend` would start from now on."""
    found: list[list[str]] = []

    def popen(words: list[str], **_: object) -> SimpleNamespace:
        found.append(words)
        return SimpleNamespace(poll=lambda: None)

    monkeypatch.setattr(lease_keeper, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=None))
    return found


def test_one_keeper_looks_at_all(
    engine: Engine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, keeper = started(monkeypatch), LeaseKeeper(home, "quorate-")

    def second() -> None:
        keeper.extend("two", -1.0)
        keep(home, "quorate-", None)  # another one leaves at once
        assert named(home) == {"one", "two"}

    keeper.extend("one", 60.0)
    assert len(starts) == 1
    at_each_pause(monkeypatch, second, lambda: keeper.extend("one", -1.0), lambda: None)
    keep(home, "quorate-", None)
    assert len(starts) == 1 and not named(home) and not engine.names


@pytest.mark.rule("12.40")
def test_only_what_is_over_is_removed_with_all_that_was_made_for_it(
    engine: Engine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, keeper = started(monkeypatch), LeaseKeeper(home, "quorate-")
    secrets = home.with_name("secrets") / "one"
    for folder in (home / "one" / "files", home / "two", secrets):
        folder.mkdir(parents=True)
    keeper.extend("one", -1.0)
    keeper.extend("two", 60.0)

    def away() -> None:
        assert engine.names == {"quorate-two"} and named(home) == {"two"}
        assert not (home / "one").exists() and not secrets.exists() and (home / "two").exists()
        keeper.extend("two", -1.0)
        engine.is_away = True

    def back() -> None:
        assert named(home) == {"two"}, "the next look tries again"
        engine.is_away = False

    at_each_pause(monkeypatch, away, back, lambda: None)
    keep(home, "quorate-", None)
    assert not engine.names and starts


def test_one_that_its_daemon_removed_is_forgotten_and_a_late_one_is_not(
    engine: Engine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(monkeypatch)
    keeper = LeaseKeeper(home, "quorate-")
    keeper.extend("gone", 60.0)
    listed = iter([{"gone"}, {"gone"}, set(), {"one"}, {"one"}, set(), set()])
    monkeypatch.setattr(
        lease_keeper, "_named", lambda folder: [folder / name for name in next(listed)]
    )
    at_each_pause(monkeypatch, lambda: keeper.extend("one", -1.0), lambda: None)
    keep(home, "quorate-", None)
    assert engine.names == {"quorate-two"}


def test_daemon_and_keeper_remove_the_same_secrets(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = home.with_name(mounts.SECRETS_NAME) / "one"
    store = SecretStore(place.parent, BoxKey(bytes(32)))
    monkeypatch.setattr(mounts, "unmount", lambda folder: folder.rmdir())  # the other one has
    for remove in (lambda: store.remove("one"), lambda: release_secrets(home, "one")):
        place.mkdir(parents=True)
        remove()
        assert not place.exists()


@pytest.mark.filterwarnings("ignore:.*Popen.*:pytest.PytestUnraisableExceptionWarning")
def test_a_killed_devnet_ends_its_keeper(home: Path) -> None:
    LeaseKeeper(home, "quorate-", NOWHERE).extend("one", -1.0)
    lock = folder_of(home) / ".keeper"
    deadline = time.monotonic() + 30
    while not lock.read_text():
        assert time.monotonic() < deadline, "a keeper has begun"
        time.sleep(0.05)
    number = int(lock.read_text())
    end_keeper(home)
    assert not folder_of(home).exists()
    os.waitpid(number, 0)
    end_keeper(home)
