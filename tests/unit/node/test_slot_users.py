"""Users of leases, and the program that shows each as the same number."""

from pathlib import Path

import pytest

from quorate_node.executors.base.slot_users import (
    SHOWN_USER,
    USERS_MAX,
    SlotUsers,
    users_of_processes,
)
from quorate_node.executors.base.start_program import MACHINE, start_program
from quorate_node.executors.docker.engine_connection import user_namespace_problem
from quorate_protocol.refusals import Code, Refused, Unavailable


def lease(home: Path, name: str) -> str:
    (home / name).mkdir(parents=True)
    return name


def test_each_lease_has_a_user_of_its_own_until_its_folder_goes(tmp_path: Path) -> None:
    users = SlotUsers(tmp_path)
    one, two = users.of(lease(tmp_path, "one")), users.of(lease(tmp_path, "two"))
    assert one != two and not {one, two} & users_of_processes()
    assert SlotUsers(tmp_path).of("one") == one, "a restarted daemon finds it"
    (tmp_path / "one" / "user").unlink()
    assert users.of(lease(tmp_path, "three")) == one


def test_two_daemons_have_different_ranges(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        lease(tmp_path / name, "one")
        found.append(SlotUsers(tmp_path / name).of("one"))
    assert abs(found[0] - found[1]) >= USERS_MAX


def test_an_owners_range_is_used_and_ends(tmp_path: Path) -> None:
    users = SlotUsers(tmp_path, 500_000)
    found = {users.of(lease(tmp_path, str(number))) for number in range(20)}
    assert found == set(range(500_000, 500_020))
    for number in range(USERS_MAX - 20):
        (tmp_path / f"held-{number}").mkdir()
        (tmp_path / f"held-{number}" / "user").write_text(str(500_020 + number))
    with pytest.raises(Unavailable, match="--job-user"):
        users.of(lease(tmp_path, "last"))


def test_the_start_program_names_its_users_and_looks_in_path() -> None:
    program = start_program(70_000, SHOWN_USER, bytes(16), ["run", "x"], "/bin:/usr/bin")
    assert program.startswith(b"\x7fELF")
    for text in (b"65534 70000 1", b"/bin/run\0", b"/usr/bin/run\0", b"/proc/self/uid_map\0"):
        assert text in program
    assert b"/bin/./run" not in start_program(7, 8, bytes(16), ["./run"], "/bin")


def test_a_path_without_end_is_refused() -> None:
    with pytest.raises(Refused, match="PATH") as refusal:
        start_program(7, 8, bytes(16), ["r" * 1000], "x:" * 2000)
    assert refusal.value.code is Code.OVERSIZE


@pytest.mark.parametrize(
    ("changes", "setting", "is_possible"),
    [
        ({}, ("user/max_user_namespaces", 100), True),
        ({}, ("user/max_user_namespaces", 0), False),
        ({}, ("kernel/unprivileged_userns_clone", 0), False),
        ({}, ("kernel/apparmor_restrict_unprivileged_userns", 1), False),
        ({"SecurityOptions": ["name=seccomp", "name=rootless"]}, ("user/x", 1), False),
        ({"SecurityOptions": ["name=userns"]}, ("user/x", 1), False),
        ({"KernelVersion": "6.6.6-linuxkit"}, ("user/x", 1), False),
    ],
)
def test_what_forbids_user_namespaces_is_named(
    changes: dict[str, object],
    setting: tuple[str, int],
    is_possible: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: MACHINE)
    monkeypatch.setattr("platform.release", lambda: "6.1")
    path = tmp_path / setting[0]
    path.parent.mkdir(parents=True)
    path.write_text(f"{setting[1]}\n")
    problem = user_namespace_problem({"KernelVersion": "6.1", **changes}, tmp_path)
    assert (problem == "") is is_possible
