"""Brings the loopback interface up, then runs a command, inside a new network namespace.

Ray's servers listen on every address of the machine, whatever their options. In a namespace there
is only 127.0.0.1.
"""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

SIOCSIFFLAGS = 0x8914
IFF_UP = 1


def up() -> None:
    """As `ip link set lo up`, which is not on every machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def entering() -> list[str]:
    """The words before a command that must have no network but loopback.

    OSError if this machine does not allow a namespace.
    """
    words = [shutil.which("unshare") or "unshare", "--net"]
    if os.geteuid() != 0:
        words += ["--user", "--map-root-user"]
    words += [sys.executable, os.path.abspath(__file__)]
    done = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise OSError(
            f"no network namespace can be made here ({done.stderr.strip().splitlines()[-1:]})"
        )
    return words


if __name__ == "__main__":
    up()
    os.execvp(sys.argv[1], sys.argv[1:])
