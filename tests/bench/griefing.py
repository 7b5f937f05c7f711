"""Prints what each known attack costs honest accounts, divided by what it costs its attackers.

    PYTHONPATH=tests python tests/bench/griefing.py [--json]

It plays each attack on a market in the EVM, under mainnet's limits. The last line is one JSON
object of factors, each at its worst gas price; null if the attackers gain. `limits` are the attacks
that no rule stops (docs/trust.md). The command fails if another factor is above 1.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable

from contracts.griefing import ATTACKS, LIMITS, heading, row
from contracts.griefing_accounts import Damage


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="griefing.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the last line only")
    options = parser.parse_args()
    lines = [heading()]
    factors, limits = _played(ATTACKS, lines), _played(LIMITS, lines)
    if not options.json:
        print("\n".join(lines))
    worst = max(factor for factor in factors.values() if factor is not None)
    print(json.dumps({"griefing": factors, "worst": worst, "limits": limits}))
    return 1 if worst > 1 or None in factors.values() else 0


def _played(attacks: dict[str, Callable[[], Damage]], lines: list[str]) -> dict[str, float | None]:
    """Plays attacks, adds a line of the table for each, and returns their factors."""
    found: dict[str, float | None] = {}
    for name, attack in attacks.items():
        damage = attack()
        lines.append(row(name, damage))
        factor = damage.factor()
        found[name] = round(factor, 3) if math.isfinite(factor) else None
    return found


if __name__ == "__main__":
    sys.exit(main())
