"""Reads the market's state during the demo, once a second: both clients' runs, the providers, the
case.
"""

from dataclasses import dataclass

import aiohttp

from quorate.client.market import Market
from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.escrow import Tab
from quorate_devnet.demo.accounting import ChainHistory, read_chain_history
from quorate_protocol.codec import canonical
from quorate_protocol.messages.views import (
    AccountView,
    CaseView,
    ExecutionView,
    ProviderView,
    RunView,
)
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Hash32, Outcome
from quorate_runtime.chain import ChainClient

ANSWER_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class MarketSnapshot:
    """The state at one moment.

    `runs` are by job id. `case` is the case against the liar, or None.
    """

    runs: dict[Hash32, RunView]
    providers: dict[Address, ProviderView]
    accounts: tuple[AccountView, ...]
    case: CaseView | None
    history: ChainHistory
    tabs: dict[Address, Tab]  # the coordinator's, by provider

    def decided(self) -> list[RunView]:
        return [run for run in self.runs.values() if run.verdict is not None]

    def all_accepted(self) -> bool:
        return bool(self.runs) and all(
            run.verdict is not None and run.verdict.message.outcome is Outcome.ACCEPTED
            for run in self.runs.values()
        )

    def executions_of(self, provider: Address) -> list[tuple[RunView, ExecutionView]]:
        return [
            (run, item)
            for run in self.runs.values()
            for item in run.executions
            if item.provider == provider
        ]

    def lies(self, liar: Address) -> list[RunView]:
        return [run for run, item in self.executions_of(liar) if item.agreed is False]

    def is_all_paid(self) -> bool:
        """Returns whether nothing is held back and payrolls paid every final credit."""
        paid = self.paid()
        views = self.providers.values()
        return any(view.final for view in views) and all(
            view.held == 0 and paid.get(view.provider, 0) == view.final for view in views
        )

    def paid(self) -> dict[Address, int]:
        """Returns what each provider was paid by payrolls and vouchers, in token units."""
        return {provider: tab.paid for provider, tab in self.tabs.items()}


@dataclass(slots=True)
class MarketWatch:
    """Reads the state. Raises Unavailable if the coordinator or the chain does not answer."""

    session: aiohttp.ClientSession
    url: str
    coordinator: Address
    markets: tuple[Market, ...]
    providers: tuple[Address, ...]
    liar: Address
    chain: ChainClient
    contracts: Contracts

    async def look(self) -> MarketSnapshot:
        runs = {run.job_id: run for market in self.markets for run in await market.runs()}
        views = [
            canonical.from_json(ProviderView, await self._get(f"/v1/providers/0x{each.hex()}"))
            for each in self.providers
        ]
        cases = [
            canonical.from_json(CaseView, tree) for tree in (await self._get("/v1/cases"))["cases"]
        ]
        accounts = tuple([await market.account() for market in self.markets])
        case = next((item for item in cases if item.accused == self.liar), None)
        return MarketSnapshot(
            runs,
            {view.provider: view for view in views},
            accounts,
            case,
            await read_chain_history(self.chain, self.contracts),
            {each: await self._tab(each) for each in self.providers},
        )

    async def _tab(self, provider: Address) -> Tab:
        return await ask(self.chain, self.contracts.escrow.tab(self.coordinator, provider))

    async def _get(self, path: str) -> canonical.Json:
        try:
            async with self.session.get(self.url + path) as response:
                data = await response.content.read(ANSWER_BYTES_MAX)
                if response.status != 200:
                    raise Unavailable(f"{path}: status {response.status}")
        except aiohttp.ClientError as error:
            raise Unavailable(f"{self.url}: {error}") from error
        return canonical.parse(data, ANSWER_BYTES_MAX)
