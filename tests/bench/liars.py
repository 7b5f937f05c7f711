"""What a lying owner gains for each job, beside an honest one, by the product's audit rates.

It serves 24 jobs a day at 0.10 USD each under the tier `standard` (PROTOCOL §5), and all auditors
are honest. A lie saves the whole cost of running the job. A strike costs 5 % of the price, with
which it gets as many jobs as before (4.67).

`python tests/bench/liars.py` prints one JSON line; docs/performance.md has it as a table.
"""

import argparse
import json
import random

from quorate_protocol.limits import DAY, JURORS, MAINNET
from quorate_protocol.rules.audit_draw import CheatingIncentive, rate_ppm
from quorate_protocol.rules.trust_record import STRIKE_SECONDS, Trust, after_audit
from quorate_protocol.units import PPM_ONE, Amount, Label, UnixSeconds, VerifyTier

PAY = Amount(100_000)
JOBS = 100_000
JOBS_A_DAY = 24  # so a hold of 24 h has as many, and ends before 200 further jobs
BURNED = JURORS * (PAY + MAINNET.jury_gas_fee)
BUDGET = 20_000_000  # of the coordinator, in 30 d
FOLLOWING = 20  # held jobs that are executed again after a fault (5.57)


class Owner:
    """An owner that lies in a share of its jobs. `counts`: its clients have paid 5 USD of fees."""

    def __init__(self, share: float, counts: bool) -> None:
        self.share, self.counts, self.chance = share, counts, random.Random(24)
        self.trust, self.now, self.last_fault = Trust(passed=1_000), 0, -DAY * 90
        self.cases: list[int] = []
        self.held: list[tuple[int, bool]] = []  # when its hold began, and whether it is a lie
        self.earned, self.audits, self.lies, self.fined = 0, 0, 0, 0

    def rate(self) -> int:
        held = Amount(PAY * len(self.held))
        known = CheatingIncentive(PAY, MAINNET.slot_stake, held)
        return rate_ppm(Label.ADAPTIVE, VerifyTier.STANDARD, self.trust, known)

    def is_audited(self) -> bool:
        return self.chance.randrange(PPM_ONE) < self.rate()

    def serve(self) -> None:
        """Runs one job, or lies. Then holds end that are a day old."""
        self.now += DAY // JOBS_A_DAY
        self.trust = self.trust.at(UnixSeconds(self.now))
        lies = self.chance.random() < self.share
        self.lies += lies
        if self.is_audited():
            self.audit(lies)
        else:
            self.held.append((self.now, lies))
        while self.held and self.held[0][0] + DAY <= self.now:
            _, was_lie = self.held.pop(0)
            if self.is_audited():
                self.audit(was_lie)
            else:
                self.pay()

    def audit(self, lies: bool) -> None:
        self.audits += 1
        if not lies:
            self.trust = after_audit(self.trust, True, UnixSeconds(self.now))
            self.pay()
            return
        if self.counts:
            self.trust = after_audit(self.trust, False, UnixSeconds(self.now))
            self.cases = [at for at in self.cases if self.now < at + 30 * DAY]
            is_due = self.now - self.last_fault < STRIKE_SECONDS  # a fault of another client counts
            if is_due and BURNED * (len(self.cases) + 1) <= BUDGET:  # 5.157
                self.cases.append(self.now)
                self.fined += BURNED // 2  # 5.149
            self.last_fault = self.now
        for item in self.chance.sample(self.held, min(FOLLOWING, len(self.held))):
            if item in self.held:
                self.held.remove(item)
                self.audit(item[1])

    def pay(self) -> None:
        self.earned += PAY * (100 - 5 * len(self.trust.strikes)) // 100


def gain(share: float, counts: bool, cost: float, jobs: int = JOBS) -> tuple[float, float]:
    """Returns the gain of a job beside an honest owner's, and the audits of a job."""
    owner = Owner(share, counts)
    for _ in range(jobs):
        owner.serve()
    spent = (jobs - owner.lies) * PAY * cost
    honest = jobs * PAY * (1 - cost)
    return (owner.earned - owner.fined - spent - honest) / (jobs * PAY), owner.audits / jobs


def main() -> None:
    parser = argparse.ArgumentParser(prog="liars.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the same: one JSON line")
    parser.add_argument("--jobs", type=int, default=JOBS, help="of each owner")
    jobs = parser.parse_args().jobs
    rows = []
    for share in (1.0, 0.1, 0.01, 0.001):
        for counts in (True, False):
            found = {cost: gain(share, counts, cost, jobs) for cost in (0.3, 0.6, 0.9)}
            gains = {f"{cost:g}": round(100 * item[0], 2) for cost, item in found.items()}
            audited = round(100 * found[0.3][1])
            rows.append(
                {"lies_percent": 100 * share, "counts": counts, "audited_percent": audited}
                | {"gain_percent_by_cost": gains}
            )
    print(json.dumps({"jobs": jobs, "rows": rows}))


if __name__ == "__main__":
    main()
