"""Prints what each known attack costs honest accounts, divided by what it costs its attackers.

    PYTHONPATH=tests python tests/bench/griefing.py [--json]

It plays each attack on a market in the EVM, under mainnet's limits. The last line is one JSON
object of factors, each at its worst gas price. The command fails if one is above 1.
"""

import argparse
import json
import sys

from contracts.griefing import ATTACKS, heading, row


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="griefing.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the last line only")
    options = parser.parse_args()
    lines, factors = [heading()], {}
    for name, attack in ATTACKS.items():
        damage = attack()
        lines.append(row(name, damage))
        factors[name] = round(damage.factor(), 3)
    if not options.json:
        print("\n".join(lines))
    print(json.dumps({"griefing": factors, "worst": max(factors.values())}))
    return 1 if max(factors.values()) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
