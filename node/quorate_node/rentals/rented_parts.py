"""The daemon's parts for rentals: streams, network, secrets, and the watch over them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import aiohttp

from quorate_node.base.config import Config
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.core.phases import Live
from quorate_node.core.provider_core import ProviderCore
from quorate_node.executors.base import mounts
from quorate_node.executors.base.inside import HasInside
from quorate_node.machine.gpu_manners import GpuUse
from quorate_node.rentals.dialer import Serve, StreamDialer
from quorate_node.rentals.egress import RentalEgress, devnet_host
from quorate_node.rentals.idle_watch import IdleWatch
from quorate_node.rentals.rented_frames import RentedFrames
from quorate_node.rentals.secrets import SecretStore, take
from quorate_node.rentals.ssh_server import SshServer
from quorate_protocol.messages.ports import Clock, Executor
from quorate_protocol.units import Address, Hash32


@dataclass(frozen=True, slots=True)
class RentedParts:
    """None: the executor has no way into its containers, or memory for secrets."""

    frames: RentedFrames
    streams: StreamDialer | None = None
    egress: RentalEgress | None = None
    secrets: SecretStore | None = None
    watch: IdleWatch | None = None


@dataclass(frozen=True, slots=True)
class RentedInput:
    """What the parts are made of. `serve` takes the SSH server's place in tests."""

    config: Config
    keys: ProviderKeys
    executor: Executor
    session: aiohttp.ClientSession
    urls: Mapping[Address, str]  # of coordinators
    core: ProviderCore
    clock: Clock
    read_gpu_use: Callable[[], tuple[GpuUse, ...]]
    serve: Serve | None = None


def rented_parts(given: RentedInput) -> RentedParts:
    """Raises Refused for a host of a devnet elsewhere."""
    core, executor, config = given.core, given.executor, given.config
    host = devnet_host(config.devnet_host, config.is_devnet)

    def is_live(coordinator: Address, lease: Hash32) -> bool:
        found = core.executions.get(lease)
        is_ours = found is not None and found.coordinator == coordinator
        return is_ours and found is not None and isinstance(found.phase, Live)

    def access_of(lease: Hash32) -> tuple[str, ...]:
        found = core.executions.get(lease)
        return () if found is None else found.spec.access

    if not isinstance(executor, HasInside):
        if given.serve is None:
            return RentedParts(RentedFrames())
        streams = StreamDialer(given.session, given.urls, is_live, given.serve)
        return RentedParts(RentedFrames(streams), streams)
    secrets = _secrets(given)
    env_of = secrets.env_of if secrets is not None else _no_env
    server = SshServer(given.keys.peer, executor.inside, access_of, given.clock, env_of)
    streams = StreamDialer(given.session, given.urls, is_live, given.serve or server.serve)
    return RentedParts(
        frames=RentedFrames(
            streams, partial(take, secrets, core.executions) if secrets is not None else None
        ),
        streams=streams,
        egress=RentalEgress(executor.inside.listen, given.clock, host=host),
        secrets=secrets,
        watch=IdleWatch(
            core=core,
            server=server,
            inside=executor.inside,
            stop=executor.stop,
            read_gpu_use=given.read_gpu_use,
            clock=given.clock,
        ),
    )


def _no_env(lease_id: str) -> dict[str, str]:
    return {}


def _secrets(given: RentedInput) -> SecretStore | None:
    """Only root makes file systems in memory."""
    key = given.keys.box
    if not key or not mounts.can_mount():
        return None
    return SecretStore(given.config.path(mounts.SECRETS_NAME), key)
