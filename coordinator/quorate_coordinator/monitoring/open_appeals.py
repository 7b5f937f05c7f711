"""Watches the court for appeals against this coordinator.

It asks the chain's newest block, because an appeal can be granted only for a few seconds. The core
hears of cases some blocks later.
"""

import logging
from dataclasses import dataclass, field

from quorate_contracts.bindings.court import Case, CaseId, Phase
from quorate_contracts.deploy import Contracts
from quorate_coordinator.chain.own_disputes import can_be_granted, granted_cost, lost_cost
from quorate_coordinator.chain.queries import view
from quorate_coordinator.core.state import State
from quorate_coordinator.monitoring.operator_view import AppealView
from quorate_protocol.units import Address, Hash32, UnixSeconds, usd
from quorate_runtime.chain.client import ChainClient

log = logging.getLogger(__name__)
CASES_MAX = 64  # that one look asks for
AGAIN = 4  # the newest ones, which a reorganisation may replace
COMMAND = "`quorate coordinator concede {}`"


@dataclass(slots=True)
class OpenAppeals:
    """The appeals that are open against `account`. `views` is the newest answer."""

    client: ChainClient
    contracts: Contracts
    account: Address
    state: State
    views: tuple[AppealView, ...] = ()
    _asked: int = 0  # the newest case that a look asked for
    _told: set[int] = field(default_factory=set)

    async def look(self) -> None:
        """Asks the chain once. Raises Unavailable while it does not answer."""
        court = self.contracts.court
        newest = await view(self.client, court.case_count())
        first = min(self._asked, newest) - AGAIN + 1 if self._asked else newest - CASES_MAX + 1
        first = max(1, first)
        last = min(newest, first + CASES_MAX - 1)
        numbers = sorted({item.case_id for item in self.views} | set(range(first, last + 1)))
        found = [(each, await view(self.client, court.case(CaseId(each)))) for each in numbers]
        self.views = tuple(self._view(each, case) for each, case in found if self._is_ours(case))
        self._asked = last
        self._tell()

    def _is_ours(self, case: Case) -> bool:
        is_open = case.phase not in (Phase.NONE, Phase.DECIDED)
        return is_open and case.is_appeal and case.accused == self.account

    def _view(self, number: int, case: Case) -> AppealView:
        until = case.deadline
        if case.phase is Phase.DRAWING:
            info = self.contracts.deployment.beacon_info()
            until = UnixSeconds(info.genesis_time + (case.round - 1) * info.period)
        return AppealView(
            case_id=number,
            provider=case.accuser,
            jobs=self._jobs_of(number),
            phase=case.phase.name.lower(),
            until=until,
            can_be_granted=can_be_granted(case),
            granted_cost=granted_cost(case),
            lost_cost=lost_cost(case),
        )

    def _jobs_of(self, number: int) -> tuple[Hash32, ...]:
        cases = self.state.cases.values()
        return next((case.jobs for case in cases if case.case_id == number), ())

    def _tell(self) -> None:
        for item in self.views:
            if item.case_id not in self._told:
                log.warning("%s", appeal_text(item))
        self._told = {item.case_id for item in self.views}


def appeal_text(item: AppealView) -> str:
    """Says what an appeal is about, what comes next, and what the operator can do."""
    jobs = ", ".join(f"0x{job.hex()}" for job in item.jobs)
    about = f" about job {jobs}" if jobs else ""
    told = f"case {item.case_id} of provider 0x{item.provider.hex()}{about}: {item.phase}"
    lost = f"if the jury finds its result, the bond pays at most {usd(item.lost_cost)} USD"
    if not item.can_be_granted:
        return f"{told}; {lost}"
    command = COMMAND.format(item.case_id)
    return f"{told}; {command} grants it for at most {usd(item.granted_cost)} USD; {lost}"
