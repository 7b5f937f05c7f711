"""Runs the seccomp program in a small interpreter and compares it with the profile.

The tests compare every system call, with arguments at their limits.
"""

import itertools
import json
import struct
from pathlib import Path

import pytest

from quorate_node.executors.base import seccomp_bpf
from quorate_node.executors.base.seccomp_bpf import (
    ALLOW,
    ARCHITECTURES,
    ERRNO,
    KILL_PROCESS,
    assemble,
    filter_for,
)

FOLDER = Path(seccomp_bpf.__file__).parents[1] / "base"
PROFILE = json.loads((FOLDER / "seccomp.json").read_text())
NUMBERS = json.loads((FOLDER / "syscalls.json").read_text())
EPERM, ENOSYS = ERRNO | 1, ERRNO | 38


def run(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Returns what the kernel's interpreter would return."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    steps = [struct.unpack_from("=HBBI", program, offset) for offset in range(0, len(program), 8)]
    accumulator = place = 0
    while True:
        code, skip_true, skip_false, constant = steps[place]
        place += 1
        match code:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, constant)[0]
            case 0x54:
                accumulator &= constant
            case 0x15:
                place += skip_true if accumulator == constant else skip_false
            case 0x25:
                place += skip_true if accumulator > constant else skip_false
            case 0x35:
                place += skip_true if accumulator >= constant else skip_false
            case 0x06:
                return int(constant)
            case other:
                raise AssertionError(f"unknown instruction {other:#x}")


def meaning(name: str, arguments: tuple[int, ...]) -> int:
    """Returns what the profile says about a call."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)
    for entry in PROFILE["syscalls"]:
        if name not in entry["names"]:
            continue
        held = [
            padded[test["index"]] & test["value"] == test["valueTwo"]
            if test["op"] == "SCMP_CMP_MASKED_EQ"
            else padded[test["index"]] == test["value"]
            for test in entry.get("args", ())
        ]
        if all(held):
            return ALLOW if entry["action"] == "SCMP_ACT_ALLOW" else ERRNO | entry["errnoRet"]
    return EPERM


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_call_is_treated_as_the_profile_says(machine: str) -> None:
    program, architecture = filter_for(machine), ARCHITECTURES[machine]
    names = {number: name for name, number in NUMBERS[machine].items()}
    small, modes = (0, 1, 2, 10, 16, 17, 40), (4096, 8192, 32768, 49152, 61440)
    flags = (0x20000, 0x7E020000, 0x10000000, 0xFFFFFFFF)
    edges = (*small, *modes, *flags, 1 << 32, (1 << 32) + 1, (1 << 64) - 1)
    for number in range(600):
        plain = meaning(names[number], ()) if number in names else EPERM
        assert run(program, architecture, number) == plain, names.get(number, number)
    filtered = {"socket", "socketpair", "personality", "mknod", "mknodat", "clone", "clone3"}
    for name in (filtered | {"read"}) & NUMBERS[machine].keys():
        for arguments in itertools.product(edges, edges, (0, 4096, 8192)):
            assert run(program, architecture, NUMBERS[machine][name], arguments) == meaning(
                name, arguments
            ), (name, arguments)


def test_dangerous_calls_are_refused() -> None:
    program, here = filter_for("x86_64"), ARCHITECTURES["x86_64"]
    forbidden = {
        "unshare": 272,
        "mount": 165,
        "ptrace": 101,
        "bpf": 321,
        "keyctl": 250,
        "setns": 308,
        "perf_event_open": 298,
        "init_module": 175,
        "open_by_handle_at": 304,
        "add_key": 248,
        "fsopen": 430,
        "move_mount": 429,
        "chroot": 161,
    }
    for name, number in forbidden.items():
        assert run(program, here, number) == EPERM, name
    for name, number in {"io_uring_setup": 425, "userfaultfd": 323, "io_setup": 206}.items():
        assert run(program, here, number) == ENOSYS, name
    vsock, user_namespace = 40, 0x10000000
    assert run(program, here, NUMBERS["x86_64"]["socket"], (vsock,)) == EPERM
    assert run(program, here, NUMBERS["x86_64"]["clone"], (user_namespace,)) == EPERM
    assert run(program, here, NUMBERS["x86_64"]["clone3"]) == ENOSYS
    assert run(program, here, 0x40000000) == EPERM  # the x32 numbers
    assert run(program, 0x40000003, 3) == KILL_PROCESS  # a 32-bit call
    assert run(program, here, NUMBERS["x86_64"]["write"]) == ALLOW


def test_every_name_of_the_profile_has_a_number_somewhere() -> None:
    """A misspelt name would silently allow nothing. The listed calls belong to other
    architectures.
    """
    of_32_bits = "fadvise64_64 fcntl64 fstatat64 fstatfs64 ftruncate64 statfs64 truncate64"
    foreign = {*of_32_bits.split(), "arm_fadvise64_64", "riscv_hwprobe", "sync_file_range2"}
    named = {name for entry in PROFILE["syscalls"] for name in entry["names"]}
    assert named - NUMBERS["x86_64"].keys() - NUMBERS["aarch64"].keys() == foreign
    assert len(NUMBERS["x86_64"]) == len(set(NUMBERS["x86_64"].values()))


def test_unknown_words_of_a_profile_are_errors() -> None:
    for entry in (
        {"names": ["read"], "action": "SCMP_ACT_TRACE"},
        {
            "names": ["read"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_GT"}],
        },
    ):
        with pytest.raises(ValueError, match="unknown"):
            assemble({**PROFILE, "syscalls": [entry]}, {"read": 0}, 1)
    with pytest.raises(ValueError, match="allow-list"):
        assemble({**PROFILE, "defaultAction": "SCMP_ACT_ALLOW"}, {"read": 0}, 1)
