"""Finds the open cases of one account, at the chain's newest block.

Who follows the court's logs hears of a case some blocks later. That is too late for some steps.
"""

from dataclasses import dataclass
from typing import TypeVar

from quorate_contracts.artifact import CHAIN_RETRY_SECONDS
from quorate_contracts.bindings.calls import Query
from quorate_contracts.bindings.court import Case, CaseId, Phase
from quorate_contracts.deploy import Contracts, Deployment
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, UnixSeconds
from quorate_runtime.chain.client import ChainClient

T = TypeVar("T")
CASES_MAX = 64  # that one look asks for, among the new ones and among the old ones
AGAIN = 4  # the newest ones, which a reorganisation may replace
OLDEST_SECONDS = 14 * 86_400  # no case lasts so long
NEXT = {
    Phase.DRAWING: "the beacon draws the jury",
    Phase.VOTING: "the jury repeats the execution",
    Phase.REVEALING: "the jury reveals its votes",
    Phase.DECIDING: "anybody opens the results",
}
"""What happens next in a case that is open."""


@dataclass(slots=True)
class OpenCases:
    """The open cases that `account` opened, or in which its stake or bond pays.

    `found` is the newest answer, by number. The first looks also go back to older cases.
    """

    client: ChainClient
    contracts: Contracts
    account: Address
    found: dict[int, Case]
    _first: int = 0  # the oldest case that was asked for; 0 before the first look
    _last: int = 0  # the newest one

    @classmethod
    def of(cls, client: ChainClient, contracts: Contracts, account: Address) -> "OpenCases":
        """Returns the cases of an account, before the first look."""
        return cls(client, contracts, account, {})

    async def look(self) -> dict[int, Case]:
        """Asks the chain, and returns `found`. Raises Unavailable while it does not answer."""
        court = self.contracts.court
        newest = await self._ask(court.case_count())
        start = min(self._last, newest) - AGAIN + 1 if self._last else newest - CASES_MAX + 1
        start = max(1, start)
        last = min(newest, start + CASES_MAX - 1)
        before = self._first if self._last else start
        first = max(1, before - CASES_MAX) if self._last else start
        numbers = sorted({*self.found, *range(first, before), *range(start, last + 1)})
        asked = {each: await self._ask(court.case(CaseId(each))) for each in numbers}
        self.found = {each: case for each, case in asked.items() if self._is_open(case)}
        times = [case.opened_at for case in asked.values() if case.opened_at]
        is_all = bool(times) and max(times) - min(times) > OLDEST_SECONDS
        self._first, self._last = 1 if is_all else first, last
        return self.found

    def _is_open(self, case: Case) -> bool:
        is_open = case.phase not in (Phase.NONE, Phase.DECIDED)
        return is_open and self.account in (case.accuser, case.accused)

    async def _ask(self, query: Query[T]) -> T:
        try:
            return query.decode(await self.client.call(query.to, query.data))
        except Refused as refused:
            told = f"the chain node: {refused}"  # these functions never revert
            raise Unavailable(told, CHAIN_RETRY_SECONDS) from refused


def due_at(deployment: Deployment, case: Case) -> UnixSeconds:
    """Returns when the next step of a case can be taken; 0 if it can be taken now."""
    if case.phase is Phase.DRAWING:
        info = deployment.beacon_info()
        return UnixSeconds(info.genesis_time + (case.round - 1) * info.period)
    return UnixSeconds(0) if case.phase is Phase.DECIDING else case.deadline
