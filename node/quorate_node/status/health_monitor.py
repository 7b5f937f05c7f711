"""Checks what the daemon depends on: engine, chain, coordinators, disk, room for content.

It puts each problem on the board under its name.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from quorate_node.market.coordinator_client import Coordinator
from quorate_protocol.messages.ports import Clock, Executor, Peers
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, UnixSeconds
from quorate_runtime.chain import ChainClient
from quorate_runtime.process.health import Board, chain_problem, disk_problem

CHECK_SECONDS = 5.0
ROOM_LEAST_BYTES = 64 << 20  # with less the provider would decline nearly every job


class HealthMonitor:
    """The task of the daemon that checks them. `chain_url` is only for messages."""

    def __init__(
        self,
        board: Board,
        executor: Executor,
        client: ChainClient,
        chain_url: str,
        coordinators: Mapping[Address, Coordinator],
        peers: Mapping[Address, Peers],
        home: Path,
        clock: Clock,
        room: Callable[[], Awaitable[int]],
    ) -> None:
        """`room` returns how many bytes of inputs and outputs can still be kept."""
        self._room = room
        self._board, self._executor = board, executor
        self._client, self._chain_url = client, chain_url
        self._coordinators, self._peers, self._home, self._clock = coordinators, peers, home, clock

    async def run(self) -> None:
        while True:
            await self.check()
            await self._clock.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        self._board.put("engine", await self._engine())
        self._board.put("chain", await self._chain())
        self._board.put("disk", await asyncio.to_thread(disk_problem, self._home))
        self._board.put("room", room_problem(await self._room()))
        away = [
            item.url
            for address, item in self._coordinators.items()
            if not self._peers[address].connected()
        ]
        self._board.put("coordinator", f"not connected to {', '.join(away)}" if away else "")

    async def _engine(self) -> str:
        """`Executor.check` might choose another sandbox than the one on offer."""
        try:
            await self._executor.leases()
        except (Unavailable, Refused) as error:
            return str(error)  # not re-raised: it is the result of the check
        return ""

    async def _chain(self) -> str:
        try:
            head = await self._client.head()
        except (Unavailable, Refused) as error:
            # not re-raised: it is the result of the check
            return f"{error}; look at the chain node at {self._chain_url}"
        return chain_problem(self._clock, UnixSeconds(head.time), self._chain_url)


def room_problem(room_bytes: int) -> str:
    """ "" while jobs have room in the content store."""
    if room_bytes >= ROOM_LEAST_BYTES:
        return ""
    return (
        f"{room_bytes >> 20} MiB are left for inputs and outputs: free disk space, or give more "
        "with `quorate node init --store-size SIZE`"
    )
