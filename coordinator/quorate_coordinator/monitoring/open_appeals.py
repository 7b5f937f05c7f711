"""Watches the court for appeals against this coordinator.

It asks the chain's newest block, because an appeal can be granted only until the jury is drawn. The
core hears of cases some blocks later.
"""

import logging
from dataclasses import dataclass, field

from quorate_contracts.bindings.court import Case
from quorate_contracts.watch.open_cases import OpenCases, due_at
from quorate_coordinator.chain.own_disputes import can_be_granted, granted_cost, lost_cost
from quorate_coordinator.core.state import State
from quorate_coordinator.monitoring.operator_view import AppealView
from quorate_protocol.units import Hash32, usd

log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenAppeals:
    """The appeals that are open against the coordinator. `views` is the newest answer."""

    cases: OpenCases
    state: State
    views: tuple[AppealView, ...] = ()
    _told: set[int] = field(default_factory=set)

    async def look(self) -> None:
        """Asks the chain once. Raises Unavailable while it does not answer."""
        account, found = self.cases.account, await self.cases.look()
        self.views = tuple(
            self._view(number, case)
            for number, case in found.items()
            if case.accused == account  # only an appeal accuses a coordinator
        )
        for item in self.views:
            if item.case_id not in self._told:
                log.warning("%s", appeal_text(item))
        self._told = {item.case_id for item in self.views}

    def _view(self, number: int, case: Case) -> AppealView:
        return AppealView(
            case_id=number,
            provider=case.accuser,
            jobs=self._jobs_of(number),
            phase=case.phase.name.lower(),
            until=due_at(self.cases.contracts.deployment, case),
            can_be_granted=can_be_granted(case),
            granted_cost=granted_cost(case),
            lost_cost=lost_cost(case),
        )

    def _jobs_of(self, number: int) -> tuple[Hash32, ...]:
        cases = self.state.cases.values()
        return next((case.jobs for case in cases if case.case_id == number), ())


def appeal_text(item: AppealView) -> str:
    """Says what an appeal is about, what comes next, and what the operator can do."""
    jobs = ", ".join(f"0x{job.hex()}" for job in item.jobs)
    about = f" about job {jobs}" if jobs else ""
    told = f"case {item.case_id} of provider 0x{item.provider.hex()}{about}: {item.phase}"
    lost = f"if the jury finds its result, the bond pays at most {usd(item.lost_cost)} USD"
    if not item.can_be_granted:
        return f"{told}; {lost}"
    command = f"`quorate coordinator concede {item.case_id}`"
    return f"{told}; {command} grants it for at most {usd(item.granted_cost)} USD; {lost}"
