"""What callers of the court give again: filing, jury and ballots of one case, from its events."""

from collections.abc import Iterable
from dataclasses import dataclass

from quorate_contracts import court_facts
from quorate_contracts.deploy import Contracts
from quorate_contracts.events import Event
from quorate_contracts.generated import court
from quorate_contracts.log_search import newest_logs
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Address, BlockNumber, Hash32
from quorate_runtime.chain.client import ChainClient


@dataclass(frozen=True, slots=True)
class CaseFile:
    """One case as its events tell it."""

    filing: court.Filing
    jury: tuple[Address, ...] = ()  # all that were drawn so far
    votes: tuple[court.Voted, ...] = ()
    reveals: tuple[court.Revealed, ...] = ()

    @property
    def jury_bytes(self) -> bytes:
        return court_facts.jury_bytes(self.jury)

    def ballots(self) -> list[court.Ballot]:
        execution = self.filing.execution
        opened = {
            court_facts.ballot(execution, it.juror, it.salt, it.digest): it for it in self.reveals
        }
        found = []
        for vote in self.votes:
            reveal = opened.get(vote.ballot)
            found.append(
                court.Ballot(ZERO_ADDRESS, court_facts.link(vote.juror, vote.ballot), ZERO_HASH)
                if reveal is None
                else court.Ballot(reveal.juror, reveal.salt, reveal.digest)
            )
        return found


def case_file_of(events: Iterable[Event], case_id: Hash32) -> CaseFile | None:
    """The oldest first. Several cases may have been opened over it, one after the other."""
    found: CaseFile | None = None
    for event in events:
        match event:
            case court.CaseOpened(filing=filing):
                found = CaseFile(filing) if court_facts.case_id(filing) == case_id else None
            case court.JuryDrawn(jury=jury) if found is not None:
                found = CaseFile(found.filing, jury, found.votes, found.reveals)
            case court.Voted() if found is not None:
                found = CaseFile(found.filing, found.jury, (*found.votes, event), found.reveals)
            case court.Revealed() if found is not None:
                found = CaseFile(found.filing, found.jury, found.votes, (*found.reveals, event))
            case _:
                pass
    return found


async def read_case_file(
    client: ChainClient, contracts: Contracts, execution: Hash32, case_id: Hash32
) -> CaseFile | None:
    """None if the node does not have the case's opening. Raises Unavailable."""
    head = (await client.head()).number
    topics = (None, execution)
    events: list[Event] = []
    place, start = contracts.court.address, BlockNumber(0)
    async for _, logs in newest_logs(client, contracts, place, topics, start, head):
        for log in logs:
            event = contracts.event(log.address, log.topics, log.data)
            if event is None:
                continue
            events.append(event)
            if isinstance(event, court.CaseOpened) and court_facts.case_id(event.filing) == case_id:
                return case_file_of(reversed(events), case_id)
    return None
