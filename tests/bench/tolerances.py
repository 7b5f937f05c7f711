"""How many wrong results colluders get accepted where results agree within a tolerance.

30 owners, of whom 6 return the same false result each time, and 300 jobs under `numeric`, 30 at a
time, so that each owner is primary alike. Honest results lie within half of the tolerance of the
true one, the false one far outside. The coordinator is the product's own core under the rule of
large markets, with owners that have no record yet.

`wrong` counts accepted outputs that are further from the truth than the tolerance. `wrong_at_most`
is the share of jobs in which, of the seven owners that a job can meet, so many collude as newcomers
need to be believed (risk ≤ ε, PROTOCOL 5.32).

`PYTHONPATH=tests python tests/bench/tolerances.py` prints one JSON line.
"""

import argparse
import json
from fractions import Fraction
from math import comb
from random import Random

from quorate_protocol.limits import DEVNET, EXECUTIONS_MAX, MAINNET, TIERS
from quorate_protocol.rules.trust_record import Trust
from quorate_protocol.units import PPM_ONE, Amount, Outcome, VerifyTier
from quorate_protocol.values import replace
from support.markets.noisy_market import NUMERIC, NoisyMarket

OWNERS, COLLUDING, JOBS = 30, 6, 300
FALSE = 1_000_000  # ppb from the truth
TOLERANCE = NUMERIC.tolerance_ppm * 1_000  # ppb


class Crowd(NoisyMarket):
    """A market of the adaptive rule."""

    def __init__(self, places: list[int]) -> None:
        super().__init__(*places)
        limits = replace(DEVNET, name="mainnet", max_hold=MAINNET.max_hold)
        self.core.rules = replace(self.core.rules, limits=limits)
        self.core._check = None  # the fund is given money
        with self.core.state.transaction():
            self.context().change_own(fund=Amount(10**9))


def needed() -> int:
    """How many newcomers must agree before they are believed."""
    suspicion, risk, count = Fraction(Trust().suspicion_ppm(), PPM_ONE), Fraction(1, 10), 0
    while risk * suspicion**count > Fraction(TIERS[VerifyTier.STANDARD].epsilon, PPM_ONE):
        count += 1
    return count


def measure(
    jobs: int = JOBS, owners: int = OWNERS, colluding: int = COLLUDING
) -> dict[str, object]:
    chance = Random(1)
    places = [FALSE] * colluding
    places += [chance.randint(0, TOLERANCE // 2) for _ in range(owners - colluding)]
    chance.shuffle(places)
    market = Crowd(places)
    wrong = undecided = executions = faulted = 0
    for start in range(0, jobs, owners):
        numbers = range(start + 1, min(jobs, start + owners) + 1)
        names = [market.order(0, nonce, compare=NUMERIC) for nonce in numbers]
        market.until_decided(*names, seconds=2_000)
        for name in names:
            said, job = market.verdict(name), market.job(name)
            executions += sum(len(batch.members) for batch in job.batches)
            faulted += len(said.faulted)
            undecided += said.outcome is not Outcome.ACCEPTED
            wrong += said.outcome is Outcome.ACCEPTED and market.place(said.group[0]) == FALSE
    most = min(colluding, EXECUTIONS_MAX)
    lucky = sum(
        comb(colluding, count) * comb(owners - colluding, EXECUTIONS_MAX - count)
        for count in range(needed(), most + 1)
    )
    return {
        "owners": owners,
        "colluding": colluding,
        "jobs": jobs,
        "wrong": wrong,
        "wrong_share": wrong / jobs,
        "wrong_at_most": round(lucky / comb(owners, EXECUTIONS_MAX), 4),
        "undecided": undecided,
        "executions_per_job": executions / jobs,
        "faulted": faulted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="tolerances.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the same: one JSON line")
    parser.add_argument("--jobs", type=int, default=JOBS)
    print(json.dumps(measure(parser.parse_args().jobs)))


if __name__ == "__main__":
    main()
