"""Serves SFTP to one client inside a rental's container, as a program of its own.

It begins as root, joins the container's mounts and network, and becomes the container's user
without any capability, under the filter of system calls that jobs have. Only then it reads the
first request. It does not join the container's process ids: so /proc/self leads nowhere there, and
no program of the container sees this one.
"""

import asyncio
import ctypes
import os
import platform
import resource
import socket
import struct
import sys
from types import SimpleNamespace

import asyncssh
from asyncssh.logging import logger
from asyncssh.sftp import SFTPServerHandler

from quorate_node.executors.base.hardened_profile import HOME_TARGET, LIMITS, OOM_SCORE, UNLIMITED
from quorate_node.executors.base.seccomp_bpf import filter_for
from quorate_node.executors.base.start_program import MACHINE
from quorate_node.executors.docker.namespaces import (
    NEW_MOUNTS,
    NEW_NETWORK,
    OpenedContainer,
    call,
    enter,
)

_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SECCOMP, _DROP_BOUND, _NO_NEW_PRIVILEGES = 1, 4, 22, 24, 38
_SIGKILL, _FILTER_MODE, _CAPABILITIES = 9, 2, 41
_SFTP_VERSION = 3  # of OpenSSH
_READ_BYTES = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Files(asyncssh.SFTPServer):
    """Names of users would be looked up by the container's own libraries."""

    def format_user(self, uid: int | None) -> str:
        return "" if uid is None else str(uid)

    def format_group(self, gid: int | None) -> str:
        return "" if gid is None else str(gid)


class _Reader:
    """Takes a request only once its client has taken most answers."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str
    ) -> None:
        self._reader, self._writer, self._client = reader, writer, client
        self.logger = logger

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._client if name == "client_version" else default

    async def readexactly(self, count: int) -> bytes:
        await self._writer.drain()
        return await self._reader.readexactly(count)


def run(link: int, folder: int, user: int, client: str) -> None:
    """`link` and `folder` are descriptors of the socket and of a process's folder in /proc."""
    connection = socket.socket(fileno=link)
    seccomp = filter_for(MACHINE) if platform.machine() == MACHINE else b""
    enter_container(OpenedContainer("", user, folder, os.dup(folder)))
    drop_rights(user, seccomp)
    asyncio.run(serve(connection, client))


def enter_container(container: OpenedContainer) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE))
    namespaces = container.namespace("net"), container.namespace("mnt")
    container.close()
    for namespace, kind in zip(namespaces, (NEW_NETWORK, NEW_MOUNTS), strict=True):
        enter(namespace, kind)
        os.close(namespace)
    os.chdir(HOME_TARGET)
    # Nothing of the container is ever imported.
    sys.path, sys.meta_path, sys.path_hooks = [], [], []


def drop_rights(user: int, seccomp: bytes) -> None:
    for name, (soft, hard) in LIMITS.items():
        limit = getattr(resource, f"RLIMIT_{name.upper()}", None)
        if limit is not None:
            resource.setrlimit(limit, (_limit(soft), _limit(hard)))
    for capability in range(_CAPABILITIES):
        _LIBC.prctl(_DROP_BOUND, capability, 0, 0, 0)  # fails for those that the kernel lacks
    os.umask(0o022)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    call(_LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    call(_LIBC.prctl(_SET_DUMPABLE, 0, 0, 0, 0))
    call(_LIBC.prctl(_SET_DEATH_SIGNAL, _SIGKILL, 0, 0, 0))
    if seccomp:
        program = ctypes.create_string_buffer(seccomp)
        header = struct.pack("@HP", len(seccomp) // 8, ctypes.addressof(program))
        call(_LIBC.prctl(_SET_SECCOMP, _FILTER_MODE, header, 0, 0))


def _limit(value: int) -> int:
    return resource.RLIM_INFINITY if value == UNLIMITED else value


async def serve(connection: socket.socket, client: str) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=_READ_BYTES)
    channel = SimpleNamespace(is_closing=writer.is_closing, logger=logger)
    out = SimpleNamespace(write=writer.write, close=writer.close, channel=channel, logger=logger)
    # The library's server takes a channel of its SSH connection; it uses only what is given here.
    handler = SFTPServerHandler(
        _Files(channel),  # type: ignore[arg-type]
        _Reader(reader, writer, client),  # type: ignore[arg-type]
        out,  # type: ignore[arg-type]
        _SFTP_VERSION,
    )
    await handler.run()
