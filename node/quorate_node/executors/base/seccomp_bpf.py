"""Assembles the strict seccomp profile as a classic BPF program, for sandboxes without an engine.

We do not use libseccomp. The profile is an allow-list with few argument tests, which takes a
hundred lines here, and the owner's machine needs one native library less. `syscalls.json` has the
numbers of system calls. A name that an architecture lacks is left out, as engines do. Layout of the
input (`struct seccomp_data`) and of instructions: seccomp(2), and the kernel's networking/filter.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
KILL_PROCESS = 0x80000000
LOAD, AND, JUMP_EQUAL, JUMP_GREATER, JUMP_NOT_LESS, RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x06
OFFSET_NUMBER, OFFSET_ARCHITECTURE, OFFSET_ARGUMENTS = 0, 4, 16
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
INSTRUCTIONS_MAX = 4096
_PROFILE = Path(__file__).parents[1] / "base" / "seccomp.json"
_NUMBERS = Path(__file__).parents[1] / "base" / "syscalls.json"
_WORD = 0xFFFFFFFF
_COMPARISONS = ("SCMP_CMP_EQ", "SCMP_CMP_MASKED_EQ")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One BPF instruction: its code, how many to skip if a test holds, how many if not, its
    constant.
    """

    code: int
    skip_true: int
    skip_false: int
    constant: int

    def encode(self) -> bytes:
        return struct.pack("=HBBI", self.code, self.skip_true, self.skip_false, self.constant)


@dataclass(frozen=True, slots=True)
class Test:
    """A test whether argument `index` (64 bits), masked, equals `value`."""

    index: int
    mask: int
    value: int


@dataclass(frozen=True, slots=True)
class Rule:
    """The action for a call if all tests hold."""

    tests: tuple[Test, ...]
    action: int


def filter_for(machine: str, without: frozenset[str] = frozenset()) -> bytes:
    """Refuses the calls in `without` too. Raises KeyError for an unknown architecture."""
    known = json.loads(_NUMBERS.read_text())[machine]
    numbers = {name: number for name, number in known.items() if name not in without}
    return b"".join(
        item.encode()
        for item in assemble(json.loads(_PROFILE.read_text()), numbers, ARCHITECTURES[machine])
    )


def assemble(
    profile: Mapping[str, object], numbers: Mapping[str, int], architecture: int
) -> list[Instruction]:
    """Kills foreign architectures first, because their numbers mean other calls."""
    refusal = ERRNO | _integer(profile["defaultErrnoRet"])
    rules = rules_of(profile, numbers)
    program = [
        Instruction(LOAD, 0, 0, OFFSET_ARCHITECTURE),
        Instruction(JUMP_EQUAL, 1, 0, architecture),
        Instruction(RETURN, 0, 0, KILL_PROCESS),
        Instruction(LOAD, 0, 0, OFFSET_NUMBER),
    ]
    plain = [number for number, found in rules.items() if found == [Rule((), ALLOW)]]
    for number in sorted(rules.keys() - set(plain)):
        program += _tested_call(number, rules[number], refusal)
    for low, high in _ranges(sorted(plain)):
        # Sorted: above `high` the next range decides, and below `low` no later range can match.
        program += [
            Instruction(JUMP_GREATER, 3, 0, high),
            Instruction(JUMP_NOT_LESS, 0, 1, low),
            Instruction(RETURN, 0, 0, ALLOW),
            Instruction(RETURN, 0, 0, refusal),
        ]
    program.append(Instruction(RETURN, 0, 0, refusal))
    assert len(program) <= INSTRUCTIONS_MAX, "the kernel takes no longer programs"
    return program


def rules_of(profile: Mapping[str, object], numbers: Mapping[str, int]) -> dict[int, list[Rule]]:
    """Raises ValueError for a profile that this assembler does not know."""
    if profile["defaultAction"] != "SCMP_ACT_ERRNO":
        raise ValueError("only an allow-list can be assembled")
    rules: dict[int, list[Rule]] = {}
    for entry in _entries(profile["syscalls"]):
        rule = Rule(tuple(_test(item) for item in _entries(entry.get("args", ()))), _action(entry))
        names = entry["names"]
        assert isinstance(names, list), "a profile lists names"
        for name in names:
            if name in numbers:
                rules.setdefault(numbers[name], []).append(rule)
    return rules


def _action(entry: Mapping[str, object]) -> int:
    match entry["action"]:
        case "SCMP_ACT_ALLOW":
            return ALLOW
        case "SCMP_ACT_ERRNO":
            return ERRNO | _integer(entry["errnoRet"])
        case other:
            raise ValueError(f"unknown action {other}")


def _test(entry: Mapping[str, object]) -> Test:
    if entry["op"] not in _COMPARISONS:
        raise ValueError(f"unknown comparison {entry['op']}")
    value = _integer(entry["value"])
    if entry["op"] == "SCMP_CMP_MASKED_EQ":
        return Test(_integer(entry["index"]), value, _integer(entry["valueTwo"]))
    return Test(_integer(entry["index"]), _WORD << 32 | _WORD, value)


def _tested_call(number: int, rules: Sequence[Rule], refusal: int) -> list[Instruction]:
    body: list[Instruction] = []
    for rule in rules:
        body += _rule(rule)
    body.append(Instruction(RETURN, 0, 0, refusal))
    assert len(body) <= 255, "a conditional jump reaches 255 instructions"
    return [Instruction(JUMP_EQUAL, 0, len(body), number), *body]


def _rule(rule: Rule) -> list[Instruction]:
    """Each test leaves the rule if it fails. An argument is two 32-bit words, the low one first."""
    words = [
        (
            OFFSET_ARGUMENTS + 8 * test.index + 4 * half,
            (test.mask >> 32 * half) & _WORD,
            (test.value >> 32 * half) & _WORD,
        )
        for test in rule.tests
        for half in (0, 1)
    ]
    body: list[Instruction] = []
    for place, (offset, mask, value) in enumerate(words):
        remaining = 3 * (len(words) - place - 1) + 1
        body += [
            Instruction(LOAD, 0, 0, offset),
            Instruction(AND, 0, 0, mask),
            Instruction(JUMP_EQUAL, 0, remaining, value),
        ]
    return [*body, Instruction(RETURN, 0, 0, rule.action)]


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _entries(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list | tuple), "a profile lists its entries"
    return list(value)


def _integer(value: object) -> int:
    assert isinstance(value, int), "a profile gives numbers"
    return value
