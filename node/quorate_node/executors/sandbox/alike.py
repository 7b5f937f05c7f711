"""Makes a sandbox of bubblewrap like an engine's container: limits, and ports below 1024."""

import ctypes
import os
import resource
from contextlib import suppress

_PORT_START = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
_LIBC = ctypes.CDLL(None, use_errno=True)


def set_limits(limits: dict[str, list[int]]) -> None:
    """Sets limits of this process: number of the kernel -> soft and hard limit, -1 for none.

    Without root a hard limit can only fall, so a limit of the daemon that is lower stays.
    """
    for number, (soft, hard) in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(int(number), (soft, hard))


def allow_low_ports(pid: int) -> None:
    """Lets the sandbox of process `pid` use ports below 1024 in its own network, as engines do.

    A child does it, because it enters the sandbox's namespaces and cannot leave them.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    status = 1
    try:
        opened = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("user", "net")]
        may_enter = os.geteuid() == 0 or _LIBC.setns(opened[0], 0) == 0
        if may_enter and _LIBC.setns(opened[1], 0) == 0:
            with open(_PORT_START, "w", encoding="ascii") as file:
                file.write("0")
            status = 0
    finally:
        os._exit(status)
