"""Measures the gas of cases and faults on py-evm, with the bytes of calldata.

    PYTHONPATH=tests python tests/bench/gas_court_next.py --json

A case is sent as daemons send it: each vote and each reveal is a transaction of its own. It ends
with a conviction. In the steady market every account has a balance, and one case failed before.
Ends with 1 if a figure is above its goal.
"""

import argparse
import json
import sys

from contracts_next.court_trial import CONVICTED, RIGHT, Trial
from contracts_next.court_world import CourtWorld, peopled_court
from contracts_next.test_faults_next import acks, two_commits
from contracts_next.world import Sent
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET

OWNERS = 24
GOALS = {"jury7_as_sent": 1_000_000}
CODE_BYTES_GOAL = 23_576
STEPS = ("open", "draw", "vote", "reveal", "decide")
Figures = dict[str, dict[str, float]]


def figure(*sent: Sent) -> dict[str, float]:
    """Gas and calldata of one transaction, as the mean of several."""
    count = len(sent)
    gas, size = sum(each.gas for each in sent), sum(len(each.data) for each in sent)
    return {"gas": round(gas / count), "calldata": round(size / count)}


def case(world: CourtWorld, accused: str) -> Trial:
    """A whole case that convicts."""
    trial = Trial(world, world.evidence(accused))
    trial.open()
    assert trial.judged().outcome == CONVICTED and len(trial.jury) == 7
    return trial


def whole(trial: Trial) -> dict[str, float]:
    """All transactions of a case but the proof of its round."""
    sent = [each for step in STEPS for each in trial.sent[step]]
    data = sum(len(each.data) for each in sent)
    return {"gas": sum(each.gas for each in sent), "calldata": data, "transactions": len(sent)}


def cases(world: CourtWorld) -> Figures:
    """A case of the steady market by step, at once, and with fresh balances."""
    first = Trial(world, world.evidence("owner2"))
    first.open()
    first.judged([RIGHT] * 3 + [keccak256(b"other")] * 4)
    fresh, batched = world.fork(), world.fork()
    trial = case(world, "owner0")
    found: Figures = {"jury7_as_sent": whole(trial)}
    for owner in fresh.owners.values():
        fresh.send(owner, fresh.escrow, "withdraw", fresh.balance(owner))
    found["jury7_as_sent_fresh"] = whole(case(fresh, "owner0"))
    together = Trial(batched, batched.evidence("owner0"))
    together.open()
    views = dict.fromkeys(together.draw(), RIGHT)
    together.vote(views, at_once=True)
    together.reveal(views, at_once=True)
    together.decide()
    found["jury7_at_once"] = whole(together)
    for step in STEPS:
        found[f"case_{step}" if step == "open" else step] = figure(*trial.sent[step])
    found["beacon_submit"] = figure(*trial.sent["beacon"])
    return found


def faults(world: CourtWorld) -> Figures:
    """Two Commits and two Acks, the first fault of each account."""
    pairs = {
        "equivocation": two_commits(world),
        "two_acks": acks(world, b"a", world.now, world.now),
    }
    return {
        kind: figure(world.send("accuser", world.faults, kind, *made))
        for kind, made in pairs.items()
    }


def sizes(world: CourtWorld) -> dict[str, int]:
    """Bytes of each contract on chain."""
    return {name: len(world.evm.code(each.address)) for name, each in world.contracts.items()}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="gas_court_next.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON only")
    options = parser.parse_args()
    world = peopled_court(DEVNET, OWNERS)
    found, code = cases(world.fork()) | faults(world.fork()), sizes(world)
    if not options.json:
        told = found | {name: {"bytes": size} for name, size in code.items()}
        for name, values in told.items():
            print(f"{name:22}", "  ".join(f"{kind} {value:,}" for kind, value in values.items()))
    print(json.dumps({"gas": found, "code_bytes": code}))
    above = [name for name, goal in GOALS.items() if found[name]["gas"] > goal]
    above += [name for name, size in code.items() if size > CODE_BYTES_GOAL]
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
