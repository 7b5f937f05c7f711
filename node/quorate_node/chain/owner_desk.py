"""What the owner's money commands need: the chain, the contracts, the coordinators and the keys.

The commands work beside a daemon and without one. They send under the owner's key only, because the
daemon may use the operator key at any time.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import aiohttp

from quorate_contracts.chain_check import check_chain
from quorate_contracts.deploy import Contracts
from quorate_node.chain import stake_classes
from quorate_node.chain.account_state import AccountState, read_account
from quorate_node.chain.calls import ask, transact
from quorate_node.chain.claims import checked_proof
from quorate_node.chain.owner_sender import owner_sender
from quorate_node.config import Config
from quorate_node.executors.host_class_probe import detect_cpu_class
from quorate_node.keys.operator_keys import FILE as OPERATOR_KEYS_FILE
from quorate_node.keys.operator_keys import OperatorKeys
from quorate_node.keys.provider_keys import SigningKeys
from quorate_node.messaging.coordinator_client import (
    Coordinator,
    ProofView,
    deployment_from_info,
    fetch_info,
    saved_info_path,
)
from quorate_node.ops.status import read_status
from quorate_protocol.messages.views import InfoView
from quorate_protocol.ports import Clock, Sandbox
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Amount
from quorate_runtime.chain import ChainClient, Sender, chain_client
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.http.client_sessions import plain_session

SEND_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Claimable:
    """Credit that a coordinator's newest final epoch gives and the chain has not paid yet."""

    coordinator: Coordinator
    view: ProofView
    amount: Amount


@dataclass(frozen=True, slots=True)
class OwnerDesk:
    """The surroundings of one command."""

    config: Config
    keys: SigningKeys
    clock: Clock
    client: ChainClient
    contracts: Contracts
    coordinators: tuple[Coordinator, ...]

    @property
    def chain_name(self) -> str:
        """The chain, as messages name it."""
        return f"chain {self.contracts.deployment.chain_id}"

    async def state(self) -> AccountState:
        """Asks the chain for stake and balances, in every host class that this home knows."""
        status = read_status(self.config.path("status.json"))
        classes = set(stake_classes.remembered(self.config.home))
        classes |= {detect_cpu_class(sandbox).id() for sandbox in (None, Sandbox.DOCKER_RUNSC)}
        classes |= set(status.host_classes) if status else set()
        keys = self.keys
        return await read_account(
            self.client, self.contracts, keys.account, keys.operator.address, classes
        )

    @contextmanager
    def sender(self) -> Iterator[Sender]:
        """Gives the sender of the owner's key. Call it only if that key is here."""
        assert self.keys.owner is not None, "the owner's key is here"
        home, deployment = self.config.home, self.contracts.deployment
        with owner_sender(home, self.client, self.keys.owner, self.clock, deployment) as sender:
            yield sender

    async def claimable(self) -> tuple[list[Claimable], list[str]]:
        """Returns what can be claimed now, and a sentence for each coordinator that is away."""
        found, away = [], []
        for coordinator in self.coordinators:
            try:
                item = await self._claimable(coordinator)
            except Unavailable as error:
                # Not re-raised: the others pay meanwhile, and a later command asks again.
                away.append(f"{coordinator.url}: {error}")
                continue
            found += [item] if item is not None and item.amount > 0 else []
        return found, away

    async def _claimable(self, coordinator: Coordinator) -> Claimable | None:
        epochs, account = self.contracts.epochs, self.keys.account
        epoch = await ask(self.client, epochs.newest_final(coordinator.address))
        if not epoch.number:
            return None
        try:
            view = await checked_proof(coordinator, epoch, account)
        except Refused as refused:
            if refused.code is Code.UNKNOWN:
                return None  # not re-raised: the epoch has no leaf of this provider
            raise
        paid = await ask(self.client, epochs.claimed(coordinator.address, account))
        return Claimable(coordinator, view, Amount(view.leaf.final - paid))

    async def claim(self, sender: Sender, item: Claimable) -> Amount:
        """Claims, unless somebody else has claimed meanwhile. Returns what the chain paid."""
        address, view, epochs = item.coordinator.address, item.view, self.contracts.epochs
        call = epochs.claim(address, view.epoch, view.leaf, view.proof)
        purpose = f"claim/{epochs.address.hex()[:8]}/{address.hex()}/{view.epoch}"
        try:
            await transact(sender, purpose, call, SEND_SECONDS)
        except Refused:
            # Not re-raised if the chain has paid: the coordinator claims for all providers.
            paid = await ask(self.client, epochs.claimed(address, self.keys.account))
            if paid < view.leaf.final:
                raise
        return item.amount


@asynccontextmanager
async def owner_desk(config: Config, keys: SigningKeys, clock: Clock) -> AsyncIterator[OwnerDesk]:
    """Meets the coordinators and the chain. Raises Unavailable if the chain is away, or no
    coordinator was ever met; Refused if the chain is another one.
    """
    async with plain_session() as session:
        infos = await _infos(config, session)
        first = next(iter(infos.values()))
        contracts = Contracts.of(deployment_from_info(first))
        urls = config.chain_urls(first.chain_url)
        client = chain_client(urls, session, config.fee_cap_gwei * GWEI)
        await _meet_chain(client, contracts)
        operator_keys = OperatorKeys(keys, config.path(OPERATOR_KEYS_FILE))
        coordinators = tuple(
            Coordinator(url, info, session, keys.account, operator_keys, clock)
            for url, info in infos.items()
        )
        yield OwnerDesk(config, keys, clock, client, contracts, coordinators)


async def _meet_chain(client: ChainClient, contracts: Contracts) -> None:
    try:
        await check_chain(client, contracts.deployment)
    except Unavailable as error:
        raise Unavailable(
            f"{error}; nothing was sent: type this again once the chain node answers, or name "
            "another one: quorate node init --chain-url URL",
            error.retry_after,
        ) from error


async def _infos(config: Config, session: aiohttp.ClientSession) -> dict[str, InfoView]:
    found: dict[str, InfoView] = {}
    problem = Unavailable("no coordinator is named: quorate node init --coordinator URL", 0)
    for url in config.coordinators:
        try:
            saved = saved_info_path(config.path("coordinators"), url)
            found[url] = await fetch_info(session, url, saved, config.home)
        except Unavailable as error:
            # Raised if no other coordinator is known.
            problem = Unavailable(f"{error}; nothing was sent: type this again later", 2.0)
    if not found:
        raise problem
    return found


def transfer_text(desk: OwnerDesk, to: Address, amount: Amount) -> str:
    """The transfer of tokens, for an owner who signs it elsewhere."""
    token = desk.contracts.token.address
    return f"transfer(0x{to.hex()}, {amount}) of 0x{token.hex()}"
