"""Tests how long a second client waits when the first takes all slots that it can get.

The wait is counted in steps and in placements of the real matching queue.
"""

import pytest

from quorate_coordinator.core.jobs import orders
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect, Send
from quorate_coordinator.core.model.entities import Decided, Matching
from quorate_protocol.messages import frames
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, BlockNumber, Hash32, Price, UnixSeconds
from support.markets.scripted_market import Market, Party
from support.refusals import refuses

FLOOD = 300


class CrowdedMarket(Market):
    """A market that records which job gets each slot. A run takes one beat, so slots are scarce."""

    ran_ms = 0

    def __init__(self, *parties: Party) -> None:
        self.given: list[Hash32] = []
        self.at_work: list[tuple[Party, Assignment, JobSpec]] = []
        super().__init__(*parties)
        plenty = tuple(self.escrow.lock(client.address, 10**12) for client in self.clients)
        self.send(
            ev.ChainAdvanced(BlockNumber(6), Hash32(b"\x06" * 32), UnixSeconds(self.at), plenty)
        )

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.frame, frames.AssignmentSent):
            self.given.append(
                next(
                    lease.job_id
                    for lease in self.core.state.leases.values()
                    if effect.key == f"assign-{lease.assignment_hash.hex()}"
                )
            )
        super()._perform(effect)

    def _run(self, party: Party, assignment: Assignment, spec: JobSpec) -> None:
        self.at_work.append((party, assignment, spec))

    def beat(self) -> None:
        """Ends the runs of the last beat, then acts like `Market.beat`."""
        ended, self.at_work = self.at_work, []
        for party, assignment, spec in ended:
            super()._run(party, assignment, spec)
        super().beat()

    def flood(self, first: int, count: int, **changes: object) -> list[Hash32]:
        """Orders up to `count` jobs of client 0; returns the jobs that the coordinator accepted."""
        taken = []
        for nonce in range(first, first + count):
            try:
                taken.append(self.order(0, nonce, budget=Amount(20_000), **changes))
            except Refused as refused:
                assert refused.code is Code.BUSY, refused
        return taken


def is_placed(market: Market, job_id: Hash32) -> bool:
    return not isinstance(market.job(job_id).phase, Matching)


@pytest.mark.parametrize("prices", ["one lane", "a lane each"])
def test_second_client_gets_the_next_free_slot(prices: str) -> None:
    """The client with the fewest running executions comes first. The number of jobs and lanes of
    the other client does not matter.
    """
    market = CrowdedMarket(*(Party(number) for number in range(3)))
    for nonce in range(FLOOD):
        market.flood(
            1 + nonce,
            1,
            max_price_per_hour=Price(200_000 + (nonce if prices == "a lane each" else 0)),
        )
    assert len(market.core.state.live) == FLOOD and len(market.given) == 3, (
        "every slot is taken, and 297 wait"
    )
    mine = market.order(1, 1)
    before = len(market.given)
    beats = 0
    while not is_placed(market, mine):
        beats += 1
        assert beats <= 20, "placed by then"
        market.beat()
    ahead = market.given[before : market.given.index(mine)]
    # Meanwhile other jobs get only second executions and the slots that were free in the
    # very step before.
    assert len(ahead) <= 6, f"{len(ahead)} placements of the flood came first"
    market.until_decided(mine)
    waiting = sum(isinstance(job.phase, Matching) for job in market.core.state.jobs.values())
    assert waiting > FLOOD * 3 // 4, "it did not wait for the flood to be over"


def test_two_clients_share_the_slots_evenly_from_then_on() -> None:
    market = CrowdedMarket(*(Party(number) for number in range(4)))
    market.flood(1, FLOOD)
    mine = [market.order(1, nonce, budget=Amount(20_000)) for nonce in range(1, 31)]
    before = len(market.given)
    for _ in range(200):
        if all(isinstance(market.job(job_id).phase, Decided) for job_id in mine):
            break
        market.beat()
    else:
        raise AssertionError("the second client's thirty jobs are not decided")
    given = market.given[before:]
    share = sum(job_id in mine for job_id in given) / len(given)
    assert 0.4 <= share <= 0.75, f"{share:.2f} of all slots"


def test_waiting_jobs_of_one_client_are_bounded_and_other_clients_can_still_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orders, "JOBS_PER_CLIENT_MAX", 50)
    market = CrowdedMarket(*(Party(number) for number in range(3)))
    assert len(market.flood(1, 80)) == 50
    with refuses(Code.BUSY, "wait"):
        market.order(0, 1_000)
    market.until_decided(market.order(1, 1))
