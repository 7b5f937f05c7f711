"""Measures the gas of settlement per job: one post per epoch, and one claim of each provider in 24
epochs.

The state is steady: the ring has been filled once, the chain remembers the sessions, and the
accounts have claimed before. All costs are included: held and final credits, receipts roots,
distinct payout addresses, and the coordinator's fee as a leaf.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pytest

from contracts.market import BOSS, COORDINATOR, POSTER, Key, Market, key, market
from quorate_contracts.bindings.epochs import SignedVoucher
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.rules.epoch_tree import Leaf, build, prove
from quorate_protocol.units import ZERO_HASH, Amount

C = COORDINATOR.address
EPOCHS_PER_CLAIM = 24
RING = 256


@dataclass(frozen=True)
class Scenario:
    """One row of the gas table in docs/performance.md: the contents of an epoch, and the goal per
    job.
    """

    jobs: int
    providers: int
    vouchers: int
    goal: int


SCENARIOS = (Scenario(1_000, 50, 10, 300), Scenario(10_000, 200, 20, 90))


@dataclass(frozen=True)
class Measured:
    """Gas of the transactions of one scenario."""

    post: int
    claims: int  # one claim for the credits of all providers
    single_claim: int  # the most expensive of three claims by a single provider

    def per_job(self, scenario: Scenario) -> float:
        return (self.post + self.claims / EPOCHS_PER_CLAIM) / scenario.jobs

    def per_job_by_single_claims(self, scenario: Scenario) -> float:
        return (
            self.post + scenario.providers * self.single_claim / EPOCHS_PER_CLAIM
        ) / scenario.jobs


def _leaves(world: Market, owners: Sequence[Key], number: int) -> list[Leaf]:
    index = world.evm.ask(world.contracts.stakes.index_of(owners[0].address))
    credits = [
        Leaf(
            index + i,
            owner.address,
            Amount(12_345 * number + i),
            Amount(6_789 + i),
            keccak256(b"receipts %d of %d" % (number, i)),
        )
        for i, owner in enumerate(owners)
    ]
    return [Leaf(1, C, Amount(3_333 * number), Amount(999), ZERO_HASH), *credits]


@dataclass
class Season:
    """A market that posts one epoch after another."""

    world: Market
    owners: list[Key]
    clients: list[Key]
    expires: int
    number: int = 0  # of the newest epoch
    paid: int = 0  # epochs with vouchers

    @classmethod
    def opened(cls, providers: int, clients: int, on: Market | None = None) -> "Season":
        world = on or market()
        for number in range(providers):
            world.provider(number, slots=0)
        keys = [world.client(number) for number in range(clients)]
        return cls(
            world,
            [key(f"owner{number}") for number in range(providers)],
            keys,
            world.evm.now + 86_400,
        )

    def signed(self, client: Key) -> SignedVoucher:
        return self.world.voucher(client, (self.paid + 1) * USD // 4, expires=self.expires)

    def post(self, vouchers: int) -> int:
        """Posts the next epoch once the previous one is final; returns the gas."""
        epochs, evm = self.world.contracts.epochs, self.world.evm
        evm.travel(DEVNET.challenge_window)
        listed = [self.signed(client) for client in self.clients[:vouchers]]
        known = {
            client.address: evm.ask(epochs.session(C, client.address)) for client in self.clients
        }
        self.number += 1
        self.paid += 1
        call = epochs.post(
            C, self.number, build(_leaves(self.world, self.owners, self.paid)), listed, known
        )
        return evm.send(POSTER.address, call).gas

    def fill_ring(self) -> None:
        """Posts the newest root again and again, so that no later epoch takes a fresh place."""
        root = build(_leaves(self.world, self.owners, self.paid))
        self.world.evm.travel(DEVNET.challenge_window)
        for _ in range(RING):
            self.number += 1
            self.world.evm.travel(1)
            call = self.world.contracts.epochs.post(C, self.number, root, [])
            self.world.evm.send(POSTER.address, call)

    def claim_all(self) -> int:
        evm = self.world.evm
        evm.travel(DEVNET.challenge_window)
        calls = self.world.contracts.epochs.claim_all(
            C, self.number, _leaves(self.world, self.owners, self.paid)
        )
        return sum(evm.send(BOSS.address, call).gas for call in calls)

    def claim(self, owner: Key) -> int:
        proven = prove(_leaves(self.world, self.owners, self.paid), owner.address)
        return self.world.evm.send(
            BOSS.address, self.world.contracts.epochs.claim(C, self.number, *proven)
        ).gas


@lru_cache(maxsize=2)
def _measured(scenario: Scenario) -> Measured:
    season = Season.opened(scenario.providers, scenario.vouchers)
    season.post(scenario.vouchers)
    season.fill_ring()
    season.claim_all()
    post = season.post(scenario.vouchers)
    alone = Season(
        season.world.fork(),
        season.owners,
        season.clients,
        season.expires,
        season.number,
        season.paid,
    )
    claims = season.claim_all()
    alone.world.evm.travel(DEVNET.challenge_window)
    places = (0, scenario.providers // 2, scenario.providers - 1)
    return Measured(post, claims, max(alone.claim(season.owners[place]) for place in places))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: f"{scenario.jobs} jobs")
def test_an_epoch_costs_no_more_per_job_than_the_design_says(scenario: Scenario) -> None:
    found = _measured(scenario)
    print(
        f"\n{scenario.jobs} jobs, {scenario.providers} providers, {scenario.vouchers} vouchers: "
        f"post {found.post}, all claims together"
        f" {found.claims}, a single claim {found.single_claim}; per job "
        f"{found.per_job(scenario):.1f} (goal {scenario.goal}),"
        f" {found.per_job_by_single_claims(scenario):.1f} if every provider claims by itself"
    )
    assert found.per_job(scenario) <= scenario.goal
    assert scenario.providers * found.single_claim > found.claims  # a common claim must be cheaper
