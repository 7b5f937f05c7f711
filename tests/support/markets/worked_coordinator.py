"""A coordinator that has worked before, so that it starts although there is no chain."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from quorate_contracts.deploy import Deployment, plan
from quorate_coordinator.base.config import Config
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.service import Service
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, BlockNumber, Seconds, UnixSeconds
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.actor.journal_port import Record
from quorate_runtime.journal.journal import Journal
from quorate_runtime.keys import bls
from quorate_runtime.keys.crypto import KeySigner, PeerKey

CODEC: PackedCodec[ev.Event, Effect] = PackedCodec(ev.Event, Effect)
NOWHERE = "http://127.0.0.1:1"
KEYS = CoordinatorKeys(*(KeySigner(bytes([i]) * 32) for i in (1, 2, 3)), PeerKey(b"\x04" * 32))


def a_deployment() -> Deployment:
    """Contracts that are on no chain."""
    key = bls.public_key(bls.keygen(b"32 bytes or more of nobody's seed"))
    beacon = BeaconInfo(key, Seconds(2), int(time.time()))
    return plan(ZERO_ADDRESS, 0, 31337, BlockNumber(0), DEVNET, beacon, faucet=True).deployment


async def work(home: Path) -> None:
    """Writes the journal of a coordinator that has worked."""
    journal, event = Journal.open(home / "journal"), CODEC.encode_event(ev.Restarted())
    await journal.append(Record(CODEC.version, UnixSeconds(1), ZERO_HASH, event))
    await journal.close()


@dataclass
class WorkedCoordinator:
    """A coordinator in such a folder, and the connections by which a test asks it."""

    service: Service
    session: aiohttp.ClientSession

    async def problems(self) -> dict[str, str]:
        """What its health shows, by name. Nothing while it does not listen."""
        with contextlib.suppress(aiohttp.ClientError):
            async with self.session.get(f"{self.service.url}/v1/health") as response:
                return {item["name"]: item["text"] for item in (await response.json())["problems"]}
        return {}


async def worked_service(home: Path, begin_anew: frozenset[str] = frozenset()) -> Service:
    """Returns a coordinator that is not started yet."""
    await work(home)
    nodes = a_deployment(), NOWHERE, NOWHERE
    return Service(Config(*nodes, port=0, home=home, begin_anew=begin_anew), KEYS)
