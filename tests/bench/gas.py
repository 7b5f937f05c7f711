"""Measures the gas of what people pay for on chain, and the sizes of the contracts.

    PYTHONPATH=tests python tests/bench/gas.py --json [--chain evm|anvil|both]
    PYTHONPATH=tests python tests/bench/gas.py --write docs/performance.md

`evm` is the contract tests' machine (py-evm). `anvil` has the newest rules and the cap of 16.8
million gas a transaction. The state is steady: rings are full, accounts have been paid before, and
the chain remembers the clients' sessions. Ends with 1 if a figure is above its goal.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from bench.anvil_machine import running_anvil
from contracts.epoch_leaves import OWNERS
from contracts.evm import Evm
from contracts.fault_evidence import other_commit
from contracts.market import BOSS, CLASS, Market, deployed_on, key, peopled_on
from contracts.test_gas_per_job import EPOCHS_PER_CLAIM, SCENARIOS, Scenario, Season
from contracts.trial import TRUTH, Trial
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import UnixSeconds

GOALS = {"epoch_1k_per_job": 300, "epoch_10k_per_job": 90}
CODE_BYTES_GOAL = 23_576
BEGIN, END = "<!-- gas: tests/bench/gas.py -->\n", "<!-- end of gas -->"
MEANING = {
    "epoch_1k_per_job": "a job of 1,000 in an epoch, 50 providers, 10 vouchers",
    "epoch_10k_per_job": "a job of 10,000 in an epoch, 200 providers, 20 vouchers",
    "post_min": "an epoch without vouchers",
    "claim": "a claim, 51 leaves",
    "case_open": "opening of a case over two executions",
    "case_jury7_total": "the whole case, seven jurors, votes and reveals in batches",
    "drand_proof": "proof of one beacon round, part of every case",
    "equivocation": "two Commits for one assignment",
    "register": "registration of a provider",
}
Figures = dict[str, float]


def epochs_per_job(world: Market, scenario: Scenario) -> Figures:
    """One post an epoch, and one claim of all providers in 24 epochs."""
    season = Season.opened(scenario.providers, scenario.vouchers, world)
    season.post(scenario.vouchers)
    season.fill_ring()
    season.claim_all()
    post = season.post(scenario.vouchers)
    claims = season.claim_all()
    per_job = (post + claims / EPOCHS_PER_CLAIM) / scenario.jobs
    found: Figures = {f"epoch_{scenario.jobs // 1_000}k_per_job": per_job}
    if scenario is SCENARIOS[0]:
        found["post_min"] = season.post(0)
        world.evm.travel(DEVNET.challenge_window)
        found["claim"] = season.claim(season.owners[3])
    return found


def court(world: Market) -> Figures:
    """A whole case of two executions before seven jurors, with the beacon's proof."""
    trial = Trial.opened(world, OWNERS[0], [key("client0"), key("client1")])
    proof = world.prove(trial.now.round)
    trial.draw()
    votes = [TRUTH[:2]] * len(trial.jurors)
    assert len(votes) == 7, "seven jurors"
    trial.vote(votes)
    trial.reveal(votes)
    trial.decide()
    whole = sum(trial.gas.values()) + proof
    return {"case_open": trial.gas["open"], "case_jury7_total": whole, "drand_proof": proof}


def equivocation(world: Market) -> Figures:
    """Two Commits for one assignment."""
    now = UnixSeconds(world.evm.now)
    made = world.execution(OWNERS[0], key("client0"), accept_by=now)
    run, other = made.shown.run, other_commit(world, made)
    call = world.contracts.faults.equivocation(run.assignment, run.commit, other)
    return {"equivocation": world.evm.send(BOSS.address, call).gas}


def deployment(world: Market) -> Figures:
    """Registration and announcement, beside the sizes of all contracts."""
    c, evm = world.contracts, world.evm
    owner = world.fund(key("owner40")).address
    register = c.stakes.register(key("op").address, key("pay").address, CLASS, CLASS, CLASS)
    return {"register": evm.send(owner, register).gas}


PARTS: tuple[tuple[bool, Callable[[Market], Figures]], ...] = (
    (False, lambda world: epochs_per_job(world, SCENARIOS[0])),
    (False, lambda world: epochs_per_job(world, SCENARIOS[1])),
    (True, court),
    (True, equivocation),
    (True, deployment),
)


def measured(machine: Callable[[], Evm]) -> Figures:
    """All figures on one kind of machine; each part has a fresh deployment."""
    found: Figures = {}
    for is_peopled, part in PARTS:
        world = deployed_on(machine(), DEVNET)
        if is_peopled:
            world = peopled_on(world, 9)
        found |= {name: round(gas, 1) for name, gas in part(world).items()}
    return found


def on_anvil(program: str) -> Figures:
    """All figures on anvil, by one process for each part."""
    import contextlib

    with contextlib.ExitStack() as stack:
        return measured(lambda: stack.enter_context(running_anvil(program)))


def sizes() -> dict[str, int]:
    """Bytes of each contract's code on the chain, immutables included."""
    machine = Evm.fresh()
    world = deployed_on(machine, DEVNET)
    names = world.contracts.deployment.names()
    return {name: len(machine.code(place)) for place, name in names.items()}


def too_large(figures: dict[str, Figures], code: dict[str, int]) -> list[str]:
    """The figures above their goals."""
    found = [
        f"{name} on {chain}: {values[name]} > {goal}"
        for chain, values in figures.items()
        for name, goal in GOALS.items()
        if values[name] > goal
    ]
    large = [name for name, size in code.items() if size > CODE_BYTES_GOAL]
    return found + [f"{name}: {code[name]} bytes > {CODE_BYTES_GOAL}" for name in large]


def table(figures: dict[str, Figures], code: dict[str, int]) -> str:
    """The figures as two Markdown tables: gas beside the goals, and bytes of code."""
    rows = ["| step | figure | gas on py-evm | gas on anvil | goal |", "|---|---|--:|--:|--:|"]
    for name, meaning in MEANING.items():
        measured = " | ".join(f"{figures[chain][name]:,.0f}" for chain in ("evm", "anvil"))
        goal = f"{GOALS[name]:,}" if name in GOALS else ""
        rows.append(f"| {meaning} | `{name}` | {measured} | {goal} |")
    rows += ["", "| contract | bytes on chain | goal |", "|---|--:|--:|"]
    rows += [f"| {name} | {size:,} | {CODE_BYTES_GOAL:,} |" for name, size in code.items()]
    return "\n".join(rows) + "\n"


def write(page: Path, figures: dict[str, Figures], code: dict[str, int]) -> None:
    """Replaces the tables of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"{page} has no place for the tables"
    page.write_text(before + BEGIN + table(figures, code) + END + after)


def main() -> int:
    """Prints the figures; 1 if one is above its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--chain", choices=("evm", "anvil", "both"), default="both")
    parser.add_argument("--write", type=Path, help="a page whose tables are replaced")
    options = parser.parse_args()
    figures: dict[str, Figures] = {}
    if options.chain != "anvil":
        figures["evm"] = measured(Evm.fresh)
    program = shutil.which("anvil")
    if options.chain != "evm":
        if program is None:
            print("anvil is not on PATH: its figures are left out", file=sys.stderr)
        else:
            figures["anvil"] = on_anvil(program)
    code = sizes()
    above = too_large(figures, code)
    if options.write:
        write(options.write, figures, code)
    if options.json:
        document = {"gas": figures, "bytes": code, "goals": GOALS, "above": above}
        print(json.dumps(document))
    else:
        for name in next(iter(figures.values()), {}):
            columns = "".join(f"{values[name]:>14,}" for values in figures.values())
            print(f"{name:24}{columns}   {GOALS.get(name, '')}")
        print("\n".join(f"{name:24}{size:>14,}" for name, size in code.items()))
        print("\n".join(above))
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
