"""Replaces private parts of libp2p 0.8.1 by which one stranger could end the host.

Each function below names what it mends. The replaced names are private, so the package accepts one
exact version, and tests/integration/p2p/test_guard.py sends the same bytes as a stranger would.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import trio
from libp2p.abc import IMuxedStream
from libp2p.io import utils as io_utils
from libp2p.io.abc import Reader, ReadWriteCloser
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.swarm import Swarm
from libp2p.protocol_muxer.exceptions import MultiselectCommunicatorError
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.stream_muxer import muxer_multistream
from libp2p.stream_muxer.yamux import yamux
from libp2p.tools.anyio_service.trio_manager import TrioManager

from quorate_runtime.p2p.host.connection_places import (
    BIND_SECONDS,
    ConnectionPlaces,
    Place,
    Standing,
)
from quorate_runtime.p2p.host.guarded_yamux import GuardedStream, GuardedYamux
from quorate_runtime.p2p.host.host_config import CONNECTIONS_MAX

log = logging.getLogger(__name__)
stopped: Counter[str] = Counter()  # what the guard stopped, by kind

_read_exactly = io_utils.read_exactly
_handle_stream = SwarmConn._handle_muxed_stream
_run_task = TrioManager.run_task
_read_protocol = MultiselectCommunicator.read
places_of: "WeakKeyDictionary[Swarm, ConnectionPlaces]" = WeakKeyDictionary()


def install() -> None:
    """Replaces the parts. Call it before the first host is made; a second call changes nothing."""
    replacements: list[tuple[object, str, object]] = [
        (SwarmConn, "_handle_muxed_stream", handle_stream),
        (Swarm, "_do_handle_inbound_connection", accept),
        (TrioManager, "run_task", run_task),
        (MultiselectCommunicator, "read", read_protocol),
        # libp2p makes connections and streams by these two names.
        (muxer_multistream, "Yamux", GuardedYamux),
        (yamux, "YamuxStream", GuardedStream),
    ]
    for name, module in sys.modules.copy().items():  # in one step: other threads import meanwhile
        if name.startswith("libp2p.") and getattr(module, "read_exactly", None) is _read_exactly:
            replacements.append((module, "read_exactly", read_exactly))
    for place, name, replacement in replacements:
        setattr(place, name, replacement)


async def handle_stream(self: SwarmConn, stream: IMuxedStream) -> None:
    """An exception in the handler of one stream ended the host. It ends this stream only."""
    try:
        await _handle_stream(self, stream)
    except Exception:
        stopped["stream"] += 1
        log.debug("a stream's handler failed", exc_info=True)
        try:
            await stream.reset()
        except Exception:
            log.debug("the stream could not be reset", exc_info=True)


def run_task(
    self: TrioManager,
    async_fn: Callable[..., Any],
    *args: Any,
    daemon: bool = False,
    name: str | None = None,
    _internal: bool = False,
) -> None:
    """An exception in a task of a service, for example over one message, ended the service."""

    async def safely(*given: Any) -> None:
        try:
            await async_fn(*given)
        except Exception:
            stopped["task"] += 1
            log.debug("a task of libp2p failed", exc_info=True)

    task = async_fn if daemon else safely
    label = name or getattr(async_fn, "__qualname__", str(async_fn))
    _run_task(self, task, *args, daemon=daemon, name=label, _internal=_internal)


async def accept(self: Swarm, stream: ReadWriteCloser, address: Any, failure_event: object) -> None:
    """The place of an inbound connection was never given back, so 250 connections used up a host.
    And one stranger could take all places, with as many free identities.
    """
    places = places_of.setdefault(self, ConnectionPlaces(CONNECTIONS_MAX))
    remote = stream.get_remote_address()
    place = places.enter(remote[0] if remote else None)
    if place is None:
        stopped["place"] += 1
        await stream.close()
        return
    raw = RawConnection(stream, False)
    try:
        connection = await self.upgrade_inbound_raw_conn(raw, address)
        assert isinstance(connection, GuardedYamux), "the only muxer on offer"
        await hold(connection, place, places)
    except Exception:
        stopped["connection"] += 1
        log.debug("an inbound connection failed", exc_info=True)
        await raw.close()
    finally:
        places.give_back(place)


async def hold(connection: GuardedYamux, place: Place, places: ConnectionPlaces) -> None:
    """Waits for the end of a connection, and ends it if it is of no use."""
    place.leave = partial(trio.lowlevel.spawn_system_task, connection.cut)
    connection.bind, connection.unbind = partial(places.bind, place), partial(places.unbind, place)
    peer = connection.peer_id.to_bytes()
    while not connection.is_closed:
        with trio.move_on_after(BIND_SECONDS) as scope:
            await connection.event_closed.wait()
        is_of_use = place.standing is not Standing.STRANGER or places.listens(peer)
        if scope.cancelled_caught and not is_of_use:
            stopped["stranger"] += 1
            await connection.cut()


async def read_protocol(self: MultiselectCommunicator) -> str:
    """A protocol name that is not UTF-8 ended the host."""
    try:
        return await _read_protocol(self)
    except UnicodeDecodeError as error:
        raise MultiselectCommunicatorError("the protocol name is not UTF-8") from error


async def read_exactly(reader: Reader, n: int, retry_count: int = 0) -> bytes:
    """libp2p gave up after 100 short reads, so large messages failed. Here only an end counts."""
    buffer = bytearray()
    while len(buffer) < n:
        data = await reader.read(n - len(buffer))
        if not data:
            raise IncompleteReadError(
                f"the connection ended after {len(buffer)} of {n} bytes",
                expected_bytes=n,
                received_bytes=len(buffer),
            )
        buffer += data
    return bytes(buffer)
