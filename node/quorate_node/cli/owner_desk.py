"""What the owner's money commands need: the chain, the contracts, the coordinators and the keys.

The commands work beside a daemon and without one. They send under the owner's key only, because the
daemon may use the operator key at any time.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from quorate_contracts.account import goals
from quorate_contracts.account.delivery import send_all
from quorate_contracts.calls import Step, ask, transact
from quorate_contracts.chain_check import check_chain
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.escrow import Tab
from quorate_node.base.config import Config
from quorate_node.base.operator_keys import FILE as OPERATOR_KEYS_FILE
from quorate_node.base.operator_keys import OperatorKeys
from quorate_node.base.provider_keys import SigningKeys
from quorate_node.market.coordinator_client import (
    Coordinator,
    deployment_from_info,
    fetch_info,
    saved_info_path,
)
from quorate_node.owner import stake_classes
from quorate_node.owner.account_state import AccountState, read_account
from quorate_node.owner.senders import owner_sender
from quorate_node.owner.tab_payments import draw_step, redeem_step, redeemable
from quorate_node.status.status import EarningStatus, read_status
from quorate_protocol.messages.classes import CPUS
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.messages.views import InfoView
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Amount, usd
from quorate_runtime.chain import ChainClient, Sender, chain_client
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.http.client_sessions import plain_session


@dataclass(frozen=True, slots=True)
class OwnTab:
    """A coordinator's tab for the owner at the chain's newest block, and the newest voucher."""

    coordinator: Address
    tab: Tab
    voucher: Envelope[Voucher] | None

    @property
    def redeemable(self) -> Amount:
        """What the voucher pays now."""
        cumulative = self.voucher.message.cumulative if self.voucher else Amount(0)
        return redeemable(cumulative, self.tab)

    @property
    def credit(self) -> Amount:
        return Amount(self.tab.paid - self.tab.drawn)


@dataclass(frozen=True, slots=True)
class OwnerDesk:
    """The surroundings of one command."""

    config: Config
    keys: SigningKeys
    clock: Clock
    client: ChainClient
    contracts: Contracts
    coordinators: tuple[Coordinator, ...]

    async def state(self) -> AccountState:
        status = read_status(self.config.path("status.json"))
        classes = set(stake_classes.remembered(self.config.home))
        classes |= {CPUS.id()}
        classes |= set(status.pools) if status else set()
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

    async def tabs(self) -> list[OwnTab]:
        vouchers = {item.coordinator: item.voucher for item in earnings(self.config.home)}
        known = dict.fromkeys(item.address for item in self.coordinators) | vouchers
        return [
            OwnTab(address, await self._tab(address), voucher) for address, voucher in known.items()
        ]

    async def _tab(self, coordinator: Address) -> Tab:
        query = self.contracts.escrow.tab(coordinator, self.keys.account)
        return await ask(self.client, query)

    async def collect(self, sender: Sender, item: OwnTab) -> Amount:
        """Redeems the voucher, then draws what the tab was paid. Returns what was drawn.

        Anyone may have sent both meanwhile. Raises Refused if the chain takes the voucher no more.
        """
        account, refused = self.keys.account, None
        if item.redeemable and item.voucher is not None:
            refused = await self._try(sender, redeem_step(self.contracts, item.voucher, item.tab))
        tab = await self._tab(item.coordinator)
        credit = Amount(tab.paid - tab.drawn)
        if credit:
            step = draw_step(self.contracts, account, item.coordinator, tab)
            refused = await self._try(sender, step) or refused
            tab = await self._tab(item.coordinator)
        cumulative = item.voucher.message.cumulative if item.voucher else Amount(0)
        if refused is not None and (redeemable(cumulative, tab) or tab.paid > tab.drawn):
            raise refused
        return credit

    async def top_up(self) -> tuple[Amount, list[str]]:
        """Returns what was restored of the stake that was burned, and the calls for an owner's key
        that is kept elsewhere.

        Repeated, it sends only what is missing then. Raises Refused if the wallet has too little.
        """
        nonce, state = await self.client.nonce(self.keys.account), await self.state()
        lacks, contracts = state.lacks, self.contracts
        if self.keys.owner is None:
            return Amount(0), [call.text for call in goals.top_up(contracts, lacks)]
        if state.tokens < lacks:
            raise Refused(
                Code.BAD_AMOUNT,
                f"{usd(lacks)} USD of stake are missing, and the wallet 0x{state.account.hex()} "
                f"has {usd(state.tokens)}: send it more",
            )
        query = contracts.token.allowance(state.account, contracts.stakes.address)
        calls = goals.top_up(contracts, lacks, await ask(self.client, query))
        with self.sender() as sender:
            await send_all(sender, calls, nonce)
        return lacks, []

    async def _try(self, sender: Sender, step: Step) -> Refused | None:
        try:
            await transact(sender, step.purpose, step.call)
        except Refused as refused:
            return refused  # the caller looks whether somebody else has sent it
        return None


def earnings(home: Path) -> Iterator[EarningStatus]:
    status = read_status(home / "status.json")
    yield from status.earnings if status else ()


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
