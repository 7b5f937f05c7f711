"""A provider whose disk is full: it took an Assignment that it could not write down, and ended by it in the middle of others."""

import asyncio
from dataclasses import dataclass, field

from node_world import make_terms
from quorate_node import loops
from quorate_node.core.provider import ProviderCore
from quorate_protocol.messages import FreeSlots
from quorate_runtime.clock import VirtualClock
from quorate_runtime.health import Board


@dataclass
class Herald:
    """Looks at the disk after each heartbeat: there is room, then none, then room again."""

    board: Board
    sent: list[int] = field(default_factory=list)
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def send_heartbeat(self, free: tuple[FreeSlots, ...]) -> int:
        self.sent.append(sum(item.free for item in free))
        self.board.put("disk", "0 MiB are free" if len(self.sent) == 1 else "")
        if len(self.sent) == 3:
            self.enough.set()
        return 1


async def test_no_slot_is_free_while_the_disk_is_full() -> None:
    board, core = Board(), ProviderCore(make_terms())
    herald = Herald(board)
    beats = asyncio.create_task(loops.beat(core, herald, VirtualClock(), board))  # type: ignore[arg-type]  # as far as it is needed
    await herald.enough.wait()
    beats.cancel()
    slots = sum(item.free for item in core.free_slots())
    assert slots and herald.sent[:3] == [slots, 0, slots]
