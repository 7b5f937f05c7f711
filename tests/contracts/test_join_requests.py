"""Tests that `quorate node request join` signs one stake slot for each GPU and CPU run slot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from contracts.evm_node import EvmNode
from contracts.foreign_market import foreign_market
from contracts.market import CHAIN_ID, Market, key
from quorate_contracts.account.relayed_requests import RequestFile, calls_to_relay
from quorate_contracts.encodings import OPEN_MAX
from quorate_node.base.config import Config, Settings
from quorate_node.base.gpu_settings import GpuPrice
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.cli.owner_desk import OwnerDesk
from quorate_node.cli.requesting import Wish, requests_for
from quorate_node.machine.gpu_slots import LaidOut, lay_out
from quorate_node.status.diagnostics import pools_of
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.messages.requests import OpenSlotsRequest, RegisterRequest
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Amount, Hash32, Price, UnixSeconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import PeerKey
from support.gpu.recorded_inventories import recorded
from support.markets.provider_world import CPUS

FEE = Amount(USD)
CPU_SLOTS = OPEN_MAX + 2
SETTINGS = Settings(("http://127.0.0.1",), gpu_prices=(GpuPrice(Price(1_000_000)),))
GPUS = lay_out(recorded("eight-h100-sxm"), SETTINGS)


class Node(EvmNode):
    """An owner's chain node. No account has coins."""

    async def balance(self, account: Address) -> int:
        return 0

    async def chain_id(self) -> int:
        return CHAIN_ID


def config(home: Path) -> Config:
    return Config(home=home, coordinators=(), slots=CPU_SLOTS, public_url="http://203.0.113.7:7710")


async def joins(world: Market, home: Path, wanted: Mapping[Hash32, int]) -> RequestFile:
    owner, operator = world.fund(key("owner5")), key("operator5")
    revoked = world.contracts.token.approve(world.contracts.stakes.address, Amount(0))
    world.evm.send(owner.address, revoked)
    peer, box = PeerKey(b"\x05" * 32), keccak256(b"box")
    keys = ProviderKeys(owner.address, owner.address, operator, peer, box, owner)
    node = cast("Any", Node(world.evm))
    desk = OwnerDesk(config(home), keys, SystemClock(), node, world.contracts, ())
    until = UnixSeconds(world.evm.now + 3_600)
    return await requests_for(desk, keys, Wish.JOIN, wanted, None, until, FEE)


def opened(found: RequestFile) -> dict[Hash32, list[int]]:
    """How many slots each request opens, by pool."""
    counts: dict[Hash32, list[int]] = {}
    for each in found.requests:
        if isinstance(each.request, OpenSlotsRequest):
            counts.setdefault(each.request.pool, []).append(int(each.request.count))
    return counts


@pytest.mark.rule("2.8", "2.12")
def wanted_of(config: Config, sandbox: Sandbox | None, gpus: LaidOut) -> dict[Hash32, int]:
    return {pool.id(): count for pool, count in pools_of(config, sandbox, gpus).items()}


async def test_an_owner_joins_with_a_stake_slot_for_each_gpu_and_cpu_slot(tmp_path: Path) -> None:
    world = foreign_market()
    [gpus] = GPUS.classes
    wanted = wanted_of(config(tmp_path), Sandbox.DOCKER_RUNC, GPUS)
    found = await joins(world, tmp_path, wanted)
    assert isinstance(found.requests[0].request, RegisterRequest)
    assert opened(found) == {CPUS.id(): [OPEN_MAX, 2], gpus.pool.id(): [8]}
    stake = (CPU_SLOTS + 8) * DEVNET.slot_stake
    assert found.permit is not None and found.permit.amount == stake + 4 * FEE
    c, owner = world.contracts, key("owner5").address
    calls = await calls_to_relay(cast("Any", Node(world.evm)), c, found, None, world.evm.now)
    for call in calls[:3]:  # the permit, the registration, and the first class in their order
        world.evm.send(key("relayer").address, call)
    rest = await joins(world, tmp_path, wanted)
    assert opened(rest) == {CPUS.id(): [OPEN_MAX, 2]}, "what the chain has is not asked for again"
    assert len(rest.requests) == 2
    for call in await calls_to_relay(cast("Any", Node(world.evm)), c, rest, None, world.evm.now):
        world.evm.send(key("relayer").address, call)
    for pool, count in wanted.items():
        assert world.evm.ask(c.stakes.open_slots_of(owner, pool)) == count
    with pytest.raises(Refused, match="has it already"):
        await joins(world, tmp_path, wanted)


def test_gpus_get_stake_slots_only_in_a_sandbox_that_can_run_their_jobs(tmp_path: Path) -> None:
    [gpus] = GPUS.classes
    cpus = {CPUS.id(): CPU_SLOTS}
    for sandbox, has_gpus in (
        (Sandbox.DOCKER_RUNC, True),
        (Sandbox.DOCKER_RUNSC, True),
        (Sandbox.BWRAP, False),
        (None, False),
    ):
        found = wanted_of(config(tmp_path), sandbox, GPUS)
        assert found == (cpus | {gpus.pool.id(): 8} if has_gpus else cpus), sandbox
    assert not pools_of(Config(home=tmp_path, coordinators=(), slots=0), None, LaidOut((), ()))
