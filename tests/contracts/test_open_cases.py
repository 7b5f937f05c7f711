"""Tests how programs find the open cases of an account: by logs, the newest first."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from contracts.court_trial import RIGHT, Trial
from contracts.court_world import SECRET, CourtWorld, peopled_court
from contracts.evm import CHAIN_ID, GENESIS_TIME
from contracts.evm_node import EvmNode
from contracts.world import account
from quorate_contracts import log_search
from quorate_contracts.court_facts import Phase, case_id
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.open_cases import OLDEST_SECONDS, OpenCases, due_at
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Address, BlockNumber, Hash32
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.types import BlockHead, RawLog
from quorate_runtime.keys.bls import public_key


@dataclass
class LogNode(EvmNode):
    """A chain node that gives the logs of at most three blocks at once."""

    found: list[RawLog] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)  # first blocks

    def watch(self) -> None:
        """Keeps the logs of all transactions from now on."""
        plain = self.evm._transact

        def kept(*transaction: Any) -> tuple[int, Any]:
            gas, logs = plain(*transaction)
            place = BlockNumber(self.evm.number - 1), ZERO_HASH, self.evm.now, ZERO_HASH
            self.found += [RawLog(*log, *place, index) for index, log in enumerate(logs)]
            return gas, logs

        self.evm._transact = kept  # type: ignore[method-assign]

    async def block(self, number: BlockNumber) -> BlockHead:
        """All blocks but those with a log are as old as the chain."""
        times = [log.block_time for log in self.found if log.block <= number]
        return BlockHead(number, ZERO_HASH, ZERO_HASH, max(times, default=GENESIS_TIME), 0)

    async def logs(
        self, first: int, last: int, places: Sequence[Address], topics: Sequence[Hash32]
    ) -> list[RawLog]:
        if last - first >= 3:
            raise RpcFailure(-32005, "too many blocks")
        self.asked.append(first)
        return [
            log
            for log in self.found
            if first <= log.block <= last and log.address in places and log.topics[0] == topics[0]
        ]


@pytest.fixture
def world() -> CourtWorld:
    return peopled_court()


def contracts_of(world: CourtWorld) -> Contracts:
    places = {name.lower().removeprefix("test"): it.address for name, it in world.contracts.items()}
    beacon = (public_key(SECRET), DEVNET.beacon_period, GENESIS_TIME - 10_000)
    names = ("token", "stakes", "escrow", "jobs", "beacon", "court", "faults")
    listed = [places.get(name, ZERO_ADDRESS) for name in names]
    return Contracts.of(Deployment(CHAIN_ID, BlockNumber(1), "devnet", *listed, *beacon))


def watched(world: CourtWorld, node: LogNode, who: str) -> OpenCases:
    return OpenCases.of(cast("Any", node), contracts_of(world), account(who))


async def test_accuser_and_accused_see_a_case_from_its_opening_to_its_end(
    world: CourtWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "RANGE_FIRST", 8)
    node = LogNode(world.evm)
    node.watch()
    trial = Trial(world, world.evidence())
    trial.open()
    accused, accuser, other = (watched(world, node, who) for who in ("owner0", "accuser", "owner1"))
    deployment = accused.contracts.deployment
    [(execution, case)] = (await accused.look()).items()
    assert execution == trial.evidence.execution and case_id(case.filing) == trial.case
    assert case.phase is Phase.DRAWING
    at = due_at(deployment, case)
    assert world.ask(world.beacon, "time_of", trial.round) == at
    assert await accuser.look() == accused.found and await other.look() == {}
    views = dict.fromkeys(trial.draw(), RIGHT)
    assert (await accused.look())[execution].phase is Phase.VOTING
    assert due_at(deployment, accused.found[execution]) == trial.state[5]
    trial.vote(views)
    assert (await accused.look())[execution].phase is Phase.REVEALING
    trial.reveal(views)
    trial.decide()
    assert await accused.look() == {} and await accuser.look() == {}


async def test_a_look_reads_no_log_that_is_older_than_every_case(
    world: CourtWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = LogNode(world.evm)
    node.watch()
    trial = Trial(world, world.evidence())
    trial.open()
    cases = watched(world, node, "owner0")
    assert len(await cases.look()) == 1
    world.evm.travel(OLDEST_SECONDS + 1)
    for _ in range(5):
        world.evm._transact(account("boss"), account("boss"), b"", 30_000)
    node.asked.clear()
    fresh = watched(world, node, "owner0")
    monkeypatch.setattr(log_search, "RANGE_FIRST", 3)
    assert await fresh.look() == {} and len(node.asked) == 1
    again = Trial(world, world.evidence(accused="owner2", other="owner3"))
    again.open(who="owner0")
    assert list(await fresh.look()) == [again.evidence.execution]
