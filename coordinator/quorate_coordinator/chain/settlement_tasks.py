"""The tasks of the service that send transactions about epochs, beside the posting itself."""

from collections.abc import Coroutine
from dataclasses import dataclass

from quorate_contracts.deploy import Contracts
from quorate_coordinator.chain.batch_claims import BatchClaims
from quorate_coordinator.chain.demand_answers import DemandAnswers
from quorate_coordinator.chain.settlement_answers import KnowsCredits, SettlementAnswers
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_protocol.ports import Clock
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender


@dataclass(frozen=True, slots=True)
class SettlementTasks:
    """What the tasks need. With `claims_for_all` the coordinator claims for all accounts."""

    client: ChainClient
    contracts: Contracts
    core: CoordinatorCore
    sender: Sender
    clock: Clock
    archive: KnowsCredits
    claims_for_all: bool

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Returns the tasks by name."""
        rules = self.core.rules
        parts = self.client, self.contracts, rules.coordinator, self.core.state, self.sender
        answers = SettlementAnswers(*parts, rules.limits, self.clock, self.archive)
        found = {
            "demands": DemandAnswers(*parts, rules.limits, self.clock).run(),
            "settlements": answers.run(),
        }
        if self.claims_for_all:
            found["claims"] = BatchClaims(*parts, rules.limits, self.clock).run()
        return found
