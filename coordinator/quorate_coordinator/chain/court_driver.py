"""Advances cases on chain: proves the beacon round, draws the jury, acts after deadlines, and opens
both commitments.

Anyone may do this; the coordinator does it for the cases whose evidence it has. Every transaction
has a purpose, so it repeats none after a restart.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from quorate_contracts import court_facts
from quorate_contracts.calls import transact, view
from quorate_contracts.court_facts import Phase, jury_hash
from quorate_contracts.deploy import Contracts
from quorate_contracts.encodings import round_proof
from quorate_contracts.events import Event
from quorate_contracts.generated import court
from quorate_contracts.generated.contract_calls import Call
from quorate_contracts.log_search import newest_logs
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model.accusations import Case
from quorate_protocol.limits import BY_NAME
from quorate_protocol.messages.ports import Beacon, Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Address, BlockNumber, Hash32, Round
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender, Unfunded

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
STEPS_MAX = 64


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


@dataclass(slots=True)
class CourtDriver:
    """Advances the cases whose evidence this coordinator has."""

    client: ChainClient
    contracts: Contracts
    core: CoordinatorCore
    sender: Sender
    beacon: Beacon
    clock: Clock
    steps: dict[Hash32, asyncio.Task[None]] = field(default_factory=dict)  # one for a case at most

    async def run(self) -> None:
        try:
            while True:
                await self.look()
                await self.clock.sleep(POLL_SECONDS)
        finally:
            for step in self.steps.values():
                step.cancel()
            await asyncio.gather(*self.steps.values(), return_exceptions=True)

    async def look(self) -> None:
        """At most one step in each case, the cheapest first: none waits for a slow or a dear
        one.
        """
        cases = self.core.state.cases.values()
        due = [case for case in cases if case.evidence is not None and case.is_convicted is None]
        for case in sorted(due, key=_most_pay):
            case_id = case.case_id
            if case_id and case_id not in self.steps and len(self.steps) < STEPS_MAX:
                self.steps[case_id] = asyncio.create_task(self._step(case, case_id))
        if self.steps:
            await asyncio.wait(self.steps.values(), timeout=POLL_SECONDS)
        for case_id in [case_id for case_id, step in self.steps.items() if step.done()]:
            self.steps.pop(case_id).result()

    async def _step(self, case: Case, case_id: Hash32) -> None:
        name = f"case 0x{case_id.hex()[:12]}"
        try:
            await self._move(case, case_id)
        except Unfunded as error:
            # not re-raised: the next look tries again
            log.warning("%s: the posting key needs coins for gas: %s", name, error)
        except Refused as refused:
            # Not re-raised: another sender was faster, or by the block's clock it is too early. The
            # next look decides.
            log.info("%s: %s", name, refused)
        except Unavailable as error:
            log.warning("%s waits for the chain: %s", name, error)

    async def _move(self, case: Case, case_id: Hash32) -> None:
        state = await view(self.client, self.contracts.court.case_of(case.execution))
        now = (await self.client.head()).time
        name = f"case-{case_id.hex()[:24]}"
        have_all_revealed = state.revealed.bit_count() == state.voted.bit_count()
        match state.phase:
            case Phase.DRAWING:
                await self._draw(case, case_id, state, now)
            case Phase.VOTING if now > state.when:
                case_file = await self._case_file(case, case_id)
                call = self.contracts.court.advance(case.execution, case_id, case_file.jury_bytes)
                await transact(self.sender, f"{name}-advance-{state.when}", call)
            case Phase.REVEALING if now > state.when or have_all_revealed:
                # A juror that voted and does not reveal does not delay the case: the others'
                # answers decide.
                case_file = await self._case_file(case, case_id)
                await transact(self.sender, f"{name}-decide", self._decision(case, case_file))
            case _:
                pass

    def _decision(self, case: Case, case_file: CaseFile) -> Call:
        assert case.evidence is not None, "only such cases are moved"
        openings = [
            court.Opening(reveal.exit_status, reveal.output_digest, reveal.salt)
            for reveal in case.evidence.reveals
        ]
        jury = jury_hash(case_file.jury)
        return self.contracts.court.decide(case_file.filing, jury, case_file.ballots(), openings)

    async def _case_file(self, case: Case, case_id: Hash32) -> CaseFile:
        parts = self.client, self.contracts, case.execution, case_id
        found = await read_case_file(*parts)
        if found is None:
            raise Unavailable("the chain node does not give the logs of the case", POLL_SECONDS)
        return found

    async def _draw(self, case: Case, case_id: Hash32, state: court.CaseOf, now: int) -> None:
        number, name = Round(state.when), f"case-{case_id.hex()[:24]}"
        found = await self.beacon.round(number)
        if found is None:
            if now > self._missing_from(number):
                case_file = await self._case_file(case, case_id)
                call = self.contracts.court.advance(case.execution, case_id, case_file.jury_bytes)
                await transact(self.sender, f"{name}-advance-round-{number}", call)
            return
        if await view(self.client, self.contracts.beacon.randomness(number)) == bytes(32):
            call = self.contracts.beacon.submit(number, round_proof(found))
            await transact(self.sender, f"beacon-{number}", call)
        case_file = await self._case_file(case, case_id)
        call = self.contracts.court.draw(case_file.filing, case_file.jury_bytes)
        await transact(self.sender, f"{name}-draw-{number}-{state.tries}", call)

    def _missing_from(self, number: Round) -> int:
        """In Unix seconds."""
        deployment = self.contracts.deployment
        info = deployment.beacon_info()
        return (
            info.genesis_time
            + (number - 1) * info.period
            + BY_NAME[deployment.limits].jury_beacon_missing
        )


def _most_pay(case: Case) -> int:
    """In amount units times an hour."""
    assert case.evidence is not None, "only such cases are moved"
    assignment = case.evidence.run.assignment.message
    return assignment.price_per_hour * assignment.max_duration


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
