"""Makes the small program that starts a job in a user namespace of its own, inside its container.

An engine gives all containers the host's users. The kernel counts inotify instances, queued
signals, timers, message queues, pipe buffers and locked memory for each user. So each run slot has
a user of its own, and this program shows the job the same number in every slot and sandbox. The
program is static machine code without branches but for errors, because an image may have neither a
shell nor a C library. Every argument is known when the container is made.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from quorate_protocol.refusals import Code, Refused

MACHINE = "x86_64"
NEW_NAMESPACES = 0x10020000  # of users and of mounts
BIND_ALL = 0x5000  # MS_BIND and MS_REC
MAKE_READ_ONLY = 0x102F  # MS_REMOUNT, MS_BIND, MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC
FAILED = 125  # the exit code if the machine does not allow a step
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_ELF_X86_64 = 62
_BASE, _HEADER_BYTES = 0x400000, 64 + 56
_PATHS_BYTES_MAX = 1 << 20
IGNORE_SET_USER = 0x1023  # MS_REMOUNT, MS_BIND, MS_RDONLY, MS_NOSUID
_WRITE, _OPEN, _CLOSE, _EXECVE, _EXIT = 1, 2, 3, 59, 60
_CAPSET, _PRCTL, _MOUNT, _UNSHARE, _SECCOMP = 126, 157, 165, 272, 317
_O_WRONLY = 1
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_CAPABILITIES = 64
_CAPABILITY_HEADER = struct.pack("<Ii", 0x20080522, 0)
_REGISTERS = (b"\x48\xbf", b"\x48\xbe", b"\x48\xba", b"\x49\xba", b"\x49\xb8")
_LOAD_ENVIRONMENT = b"\x49\x8b\x14\x24\x49\x8d\x54\xd4\x10"  # rdx = stack + 8 * (argc + 2)


@dataclass(slots=True)
class _Program:
    data: bytearray = field(default_factory=bytearray)
    code: bytearray = field(default_factory=bytearray)

    def constant(self, content: bytes) -> int:
        self.data += bytes(-len(self.data) % 8)
        address = _BASE + _HEADER_BYTES + len(self.data)
        self.data += content
        return address

    def text(self, content: str) -> int:
        return self.constant(content.encode("utf-8", "surrogateescape") + b"\0")

    def call(self, number: int, *arguments: int) -> None:
        for load, value in zip(_REGISTERS, arguments, strict=False):
            self.code += load + struct.pack("<Q", value)
        self.code += b"\xb8" + struct.pack("<I", number) + b"\x0f\x05"

    def exit(self, status: int) -> None:
        self.code += b"\xbf" + struct.pack("<I", status)
        self.code += b"\xb8" + struct.pack("<I", _EXIT) + b"\x0f\x05"

    def must(self, number: int, *arguments: int) -> None:
        """Adds a system call; the program ends with FAILED if it fails."""
        self.call(number, *arguments)
        self.code += b"\x48\x85\xc0\x79\x0c"  # skips the exit unless the result is negative
        self.exit(FAILED)

    def write_file(self, path: str, content: str) -> None:
        self.must(_OPEN, self.text(path), _O_WRONLY)
        self.code += b"\x49\x89\xc5"  # r13 = the descriptor
        self.code += b"\x4c\x89\xef"  # rdi = r13
        at = self.constant(content.encode())
        self.code += b"\x48\xbe" + struct.pack("<Q", at)
        self.code += b"\x48\xba" + struct.pack("<Q", len(content))
        self.must(_WRITE)
        self.code += b"\x4c\x89\xef"
        self.call(_CLOSE)

    def file(self) -> bytes:
        self.data += bytes(-len(self.data) % 16)
        return elf_file(bytes(self.data), bytes(self.code))


def elf_file(data: bytes, code: bytes) -> bytes:
    """Returns a static program of constants and the machine code that it begins with."""
    size = _HEADER_BYTES + len(data) + len(code)
    entry = _BASE + _HEADER_BYTES + len(data)
    identity = b"\x7fELF\x02\x01\x01"
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", *(identity, 2, _ELF_X86_64, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + data + code


def start_program(user: int, shown: int, seccomp: bytes, words: Sequence[str], path: str) -> bytes:
    """Returns an ELF file that shows `user` as `shown` and runs `words`, found in PATH `path`,
    without capabilities and namespaces. `seccomp` is BPF.
    """
    program = _Program()
    program.code += b"\x49\x89\xe4"  # r12 = the stack: argument count, arguments, environment
    program.must(_PRCTL, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    program.must(_UNSHARE, NEW_NAMESPACES)
    program.write_file("/proc/self/setgroups", "deny")
    program.write_file("/proc/self/gid_map", f"{shown} {user} 1")
    program.write_file("/proc/self/uid_map", f"{shown} {user} 1")
    # Not `must`: AppArmor may refuse it. A job could then lower its score to be killed for memory.
    proc = program.text("/proc")
    program.call(_MOUNT, proc, proc, 0, BIND_ALL, 0)
    program.call(_MOUNT, 0, proc, 0, MAKE_READ_ONLY, 0)
    # Otherwise a program of the image that has file capabilities does not start at all.
    program.call(_MOUNT, 0, program.text("/"), 0, IGNORE_SET_USER, 0)
    for capability in range(_CAPABILITIES):
        program.call(_PRCTL, _PR_CAPBSET_DROP, capability, 0, 0, 0)
    program.must(_CAPSET, program.constant(_CAPABILITY_HEADER), program.constant(bytes(24)))
    filter_at = program.constant(seccomp)
    instructions = struct.pack("<HxxxxxxQ", len(seccomp) // 8, filter_at)
    program.must(_SECCOMP, 1, 0, program.constant(instructions))
    program.code += b"\x41\xbd" + struct.pack("<I", _NOT_FOUND)  # r13 = the exit code
    shell = program.text("/bin/sh")
    for place in _places(words[0], path):
        _add_try(program, program.text(place), shell)
    program.code += b"\x44\x89\xef"  # edi = r13
    program.code += b"\xb8" + struct.pack("<I", _EXIT) + b"\x0f\x05"
    return program.file()


def _places(word: str, path: str) -> list[str]:
    """Returns where the program may be, as execvp(3) looks for it."""
    if "/" in word:
        return [word]
    places = [f"{folder or '.'}/{word}" for folder in path.split(":")]
    if sum(map(len, places)) > _PATHS_BYTES_MAX:
        raise Refused(Code.OVERSIZE, "command: PATH has too many folders")
    return places


def _add_try(program: _Program, place: int, shell: int) -> None:
    """Adds an attempt to run a file. A script without a first line `#!` runs in the shell."""
    program.code += b"\x48\xbf" + struct.pack("<Q", place)
    program.code += b"\x49\x8d\x74\x24\x10" + _LOAD_ENVIRONMENT  # rsi = the second argument on
    program.call(_EXECVE)
    program.code += b"\x83\xf8\xf3\x75\x06"  # unless EACCES, skip:
    program.code += b"\x41\xbd" + struct.pack("<I", _NOT_EXECUTABLE)
    script = _Program()
    script.code += b"\x48\xb8" + struct.pack("<Q", shell) + b"\x49\x89\x44\x24\x08"
    script.code += b"\x48\xb8" + struct.pack("<Q", place) + b"\x49\x89\x44\x24\x10"
    script.code += b"\x48\xbf" + struct.pack("<Q", shell) + b"\x49\x8d\x74\x24\x08"
    script.code += _LOAD_ENVIRONMENT
    script.call(_EXECVE)
    script.exit(_NOT_EXECUTABLE)
    program.code += b"\x83\xf8\xf8\x75" + struct.pack("<B", len(script.code))  # unless ENOEXEC
    program.code += script.code
