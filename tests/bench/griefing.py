"""Prints what each known act costs honest accounts, divided by what it costs its authors.

    PYTHONPATH=tests python tests/bench/griefing.py [--json]

It plays each act on a market in the EVM, at gas prices of 0, 1 and 5 gwei (2,500 USD a coin). The
last line is one JSON object: how many acts, the worst ratio at each price, and those that no rule
stops, each with its bound in USD (docs/trust.md). The command fails if another ratio is above 1 at
1 or 5 gwei.
"""

import argparse
import json
import sys

from contracts import griefing_jobs, griefing_money, test_court_griefing
from contracts.griefing import GWEI, Act
from quorate_protocol.limits import USD

ACTS = griefing_money.ACTS | griefing_jobs.ACTS | test_court_griefing.ACTS
ADMITTED = (
    griefing_money.ADMITTED
    | griefing_jobs.ADMITTED
    | {
        name: (test_court_griefing.BOUND, play)
        for name, (_, play) in test_court_griefing.ADMITTED.items()
    }
)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="griefing.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the last line only")
    options = parser.parse_args()
    acts = {name: play() for name, play in ACTS.items()}
    admitted = {name: play() for name, (_, play) in ADMITTED.items()}
    if not options.json:
        print(f"{'loss by cost at':44}", "  ".join(f"{gwei} gwei" for gwei in GWEI))
        print("\n".join(_row(name, act) for name, act in (acts | admitted).items()))
    worst = {f"worst_{gwei}gwei": _worst(acts, gwei) for gwei in GWEI}
    bounds = {
        name: {"loses_usd": round(admitted[name].loss(1), 2), "bound_usd": bound / USD}
        for name, (bound, _) in ADMITTED.items()
    }
    print(json.dumps({"attacks": len(acts | admitted), **worst, "admitted": bounds}))
    return 1 if max(worst["worst_1gwei"], worst["worst_5gwei"]) > 1 else 0


def _worst(acts: dict[str, Act], gwei: int) -> float:
    return round(max(act.ratio(gwei) for act in acts.values()), 2)


def _row(name: str, act: Act) -> str:
    return f"{name:44} " + "  ".join(f"{act.ratio(gwei):6.2f}" for gwei in GWEI)


if __name__ == "__main__":
    sys.exit(main())
