"""Finds the open cases that concern one account, at the chain's newest block.

Who follows the court's logs hears of a case some blocks later.
"""

from dataclasses import dataclass, field

from quorate_contracts.calls import view
from quorate_contracts.court_facts import Phase
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.generated.court import CaseOf, CaseOpened, Filing
from quorate_contracts.log_search import newest_logs, topic_of
from quorate_protocol.limits import DAY
from quorate_protocol.units import Address, BlockNumber, Hash32, UnixSeconds
from quorate_runtime.chain.client import ChainClient

AGAIN = 64  # newest blocks that each look reads again, because a reorganisation may replace them
OLDEST_SECONDS = 16 * DAY  # no case lasts so long
NEXT = {
    Phase.DRAWING: "the beacon draws the jury",
    Phase.VOTING: "the jury repeats the execution",
    Phase.REVEALING: "the jury reveals its votes",
}
"""What happens next in a case that is open."""


@dataclass(frozen=True, slots=True)
class OpenCase:
    """One open case: what does not change of it, and its state."""

    filing: Filing
    state: CaseOf

    @property
    def phase(self) -> Phase:
        return Phase(self.state.phase)


@dataclass(slots=True)
class OpenCases:
    """The open cases in which `account` is the accuser or the accused.

    `found` is the newest answer, by the execution that is accused. A case ends at the latest 16
    days after its opening, so older logs are not read.
    """

    client: ChainClient
    contracts: Contracts
    account: Address
    found: dict[Hash32, OpenCase] = field(default_factory=dict)
    _filings: dict[Hash32, Filing] = field(default_factory=dict)
    _read: BlockNumber = BlockNumber(0)  # the last block that was read

    @classmethod
    def of(cls, client: ChainClient, contracts: Contracts, account: Address) -> "OpenCases":
        return cls(client, contracts, account)

    async def look(self) -> dict[Hash32, OpenCase]:
        """Asks the chain, and returns `found`. Raises Unavailable while it does not answer."""
        head = await self.client.head()
        oldest = UnixSeconds(max(0, head.time - OLDEST_SECONDS))
        await self._read_logs(head.number, oldest)
        self.found = {}
        for execution, filing in list(self._filings.items()):
            state = await view(self.client, self.contracts.court.case_of(execution))
            if state.phase in NEXT:
                self.found[execution] = OpenCase(filing, state)
            elif filing.opened_at < oldest:
                del self._filings[execution]
        return self.found

    async def _read_logs(self, head: BlockNumber, oldest: UnixSeconds) -> None:
        court, start = self.contracts.court.address, BlockNumber(max(0, self._read - AGAIN))
        topics = (topic_of("Court", CaseOpened),)
        seen: dict[Hash32, Filing] = {}
        async for first, logs in newest_logs(
            self.client, self.contracts, court, topics, start, head
        ):
            for log in logs:
                event = self.contracts.event(log.address, log.topics, log.data)
                if isinstance(event, CaseOpened) and self._concerns(event.filing):
                    seen.setdefault(event.execution, event.filing)
            block = await self.client.block(first)
            if block is not None and block.time < oldest:
                break
        self._filings |= seen
        self._read = head

    def _concerns(self, filing: Filing) -> bool:
        return self.account in (filing.accuser, filing.accused)


def due_at(deployment: Deployment, case: OpenCase) -> UnixSeconds:
    if case.phase is Phase.DRAWING:
        info = deployment.beacon_info()
        return UnixSeconds(info.genesis_time + (case.state.when - 1) * info.period)
    return UnixSeconds(case.state.when)
