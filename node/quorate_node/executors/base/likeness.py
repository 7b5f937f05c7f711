"""What all sandboxes have alike, because auditors compare results to the bit.

Engines and kernels have defaults of their own for these.
"""

from collections.abc import Mapping

PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FILES: Mapping[str, str] = {
    "/etc/hosts": (
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tjob\n"
    ),
    "/etc/resolv.conf": "",
}
"""Files that name the machine and its network; `/etc/hostname` is `job` in every sandbox."""

_MIB = 1 << 20
UNLIMITED = -1
LIMITS: Mapping[str, tuple[int, int]] = {
    "core": (0, 0),
    "nofile": (8192, 8192),
    "memlock": (65_536, 65_536),
    "msgqueue": (819_200, 819_200),
    "nproc": (16_384, 16_384),  # the lease's group has the lower limit
    "sigpending": (4096, 4096),
    "stack": (8 * _MIB, UNLIMITED),
}
"""Soft and hard limits of a job's processes, by the kernel's name.

An engine inside another container cannot raise its own limits, so these are low.
"""
