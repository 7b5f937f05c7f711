"""Runs a watcher without a daemon: `quorate watch`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from quorate_contracts.bindings.calls import Call
from quorate_contracts.chain_check import check_chain
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.watch.acting import Acting
from quorate_contracts.watch.bonds import BondedSender
from quorate_contracts.watch.epoch_watcher import EpochWatcher
from quorate_contracts.watch.evidence import Evidence
from quorate_contracts.watch.public_leaves import PublicLeaves
from quorate_contracts.watch.watch_file import Action, locked
from quorate_protocol.ports import Clock, Signer
from quorate_protocol.units import Address
from quorate_runtime.chain import ChainClient, Rpc, Sender
from quorate_runtime.http.client_sessions import plain_session

SEND_SECONDS = 60.0
SENDS_FILE = "watch.sqlite"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to watch, and who pays. `urls` are base URLs of coordinators."""

    home: Path
    account: Address
    deployment: Deployment
    chain_url: str
    urls: tuple[str, ...]
    signer: Signer
    told: Callable[[Action], None]


async def watch(wanted: Wanted, clock: Clock) -> None:
    """Watches until cancelled. Raises Unavailable if another watcher works in this folder or the
    chain does not answer, and Refused if the chain is not the deployment's.
    """
    async with watcher_of(wanted, clock) as (watcher, leaves), asyncio.TaskGroup() as group:
        group.create_task(watcher.run())
        group.create_task(_meet(leaves, watcher.pause_seconds, clock))


@asynccontextmanager
async def watcher_of(
    wanted: Wanted, clock: Clock
) -> AsyncIterator[tuple[EpochWatcher, PublicLeaves]]:
    """Gives a watcher that does not run yet, and its source of leaves."""
    contracts = Contracts.of(wanted.deployment)
    wanted.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(wanted.home):
        async with plain_session() as session:
            client = ChainClient(Rpc(wanted.chain_url, session))
            await check_chain(client, wanted.deployment)
            path, chain_id = wanted.home / SENDS_FILE, wanted.deployment.chain_id
            sender = Sender(client, wanted.signer, path, clock, chain_id=chain_id)

            async def pay(purpose: str, call: Call) -> None:
                await sender.send(
                    purpose, call.to, call.data, gas=call.gas, deadline_seconds=SEND_SECONDS
                )

            bonded = BondedSender(client, contracts, lambda: wanted.signer.address, pay)
            acting = Acting(
                wanted.account, client, contracts, bonded, clock, wanted.home, wanted.told
            )
            leaves = PublicLeaves(session, wanted.account, wanted.urls)

            def coordinators() -> Iterable[Address]:
                known = (item.coordinator for item in acting.state.watched)
                return dict.fromkeys((*known, *leaves.met()))

            try:
                yield EpochWatcher(acting, Evidence(acting, leaves), coordinators, True), leaves
            finally:
                sender.close()


async def _meet(leaves: PublicLeaves, pause_seconds: float, clock: Clock) -> None:
    while True:
        await leaves.meet()
        await clock.sleep(pause_seconds)
