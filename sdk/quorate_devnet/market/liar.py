"""A lying provider for tests: it runs programs honestly but changes their outputs.

The node itself has no such code.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from quorate_protocol.messages.ports import (
    Executor,
    Exit,
    LogPiece,
    RegistryLogin,
    Sandbox,
    Task,
    TaskState,
)

CHANGED_BYTES = 2_000
_DIGITS = re.compile(r"\d{3,}")


class LyingExecutor:
    """Wraps an executor and changes its outputs.

    Each key gives another lie. One lease always gets the same lie.
    """

    def __init__(self, inner: Executor, key: bytes) -> None:
        self._inner = inner
        self._key = key
        self.sandbox: Sandbox = inner.sandbox
        self.has_volumes = inner.has_volumes

    async def check(self) -> None:
        """Calls the inner executor, which may learn its sandbox only now."""
        await self._inner.check()
        self.sandbox = self._inner.sandbox

    async def fetch_image(
        self,
        lease_id: str,
        name: str,
        deadline_seconds: float,
        needs_gpu: bool = False,
        login: RegistryLogin | None = None,
    ) -> None:
        await self._inner.fetch_image(lease_id, name, deadline_seconds, needs_gpu, login)

    def image_requirement(self, name: str) -> str:
        return self._inner.image_requirement(name)

    async def start(self, task: Task) -> None:
        await self._inner.start(task)

    async def state(self, lease_id: str) -> TaskState:
        return await self._inner.state(lease_id)

    async def wait(self, lease_id: str) -> Exit:
        return await self._inner.wait(lease_id)

    def logs(self, lease_id: str, follow: bool, at: int = 0) -> AsyncIterator[LogPiece]:
        return self._inner.logs(lease_id, follow, at)

    async def collect(self, lease_id: str, destination: Path) -> None:
        """Collects the outputs and changes every file a little, so that they still look right."""
        await self._inner.collect(lease_id, destination)
        await asyncio.to_thread(_falsify, destination, self._key)

    async def stop(self, lease_id: str) -> None:
        await self._inner.stop(lease_id)

    async def remove(self, lease_id: str) -> None:
        await self._inner.remove(lease_id)

    async def leases(self) -> Sequence[str]:
        return await self._inner.leases()

    async def close(self) -> None:
        await self._inner.close()


def _falsify(folder: Path, key: bytes) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(lie(path.read_bytes(), key))


def lie(data: bytes, key: bytes) -> bytes:
    """Returns plausible other content. JSON keeps its form with other numbers; other files keep
    their size with some bytes changed.
    """
    try:
        text = data.decode()
        json.loads(text)
    except ValueError:  # not JSON text, so bytes are changed
        return _other_bytes(data, key)
    changed = _DIGITS.sub(lambda match: _other_figure(match[0], key), text)
    return changed.encode() if changed != text else _other_bytes(data, key)


def _other_figure(digits: str, key: bytes) -> str:
    value = int(digits)
    share = 1 + hashlib.sha256(key + digits.encode()).digest()[0] % 7
    return str(max(value - max(1, value * share // 100), 10 ** (len(digits) - 1))).zfill(
        len(digits)
    )


def _other_bytes(data: bytes, key: bytes) -> bytes:
    """Changes a band of bytes in the middle by a few steps. An empty file gets one byte."""
    if not data:
        return key[:1] or b"\0"
    step = 3 + hashlib.sha256(key).digest()[1] % 13
    start = max(0, (len(data) - CHANGED_BYTES) // 2)
    band = bytes(
        byte + step if byte + step < 256 else byte - step
        for byte in data[start : start + CHANGED_BYTES]
    )
    return data[:start] + band + data[start + len(band) :]
