"""Runs the whole fuzzing: `python -m fuzz.campaign [--effort N] [pytest's options]`.

tests/ must be on the path. Hypothesis and schemathesis run by pytest, and atheris runs over every
target on a second core. The last line on stdout is one JSON object. `untyped` counts what ended
neither in an answer nor in a typed refusal, `missed` names what was to be tried and was not. The
exit status is 0 if both are empty. `requests` and `routes` of the API are counted by who asked.
`cpu_seconds` says more than `seconds` on a machine that other programs use.
"""

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fuzz.api_parties import WHO
from fuzz.guided import run
from fuzz.guided_targets import TARGETS
from quorate_coordinator.api.openapi import document

ROOT = Path(__file__).parents[2]
CODEC_INPUTS_MIN, CODEC_EFFORT = 20_000, 10  # at this effort and above; below it in proportion
ROUTES = sum(len(methods) for methods in document("")["paths"].values())
GUIDED_RUNS = 1_000  # per target and unit of effort
GUIDED_SECONDS = 12.0


def by_pytest(effort: int, options: list[str]) -> dict[str, int]:
    """Counts of the Hypothesis and schemathesis tests."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/fuzz",
            "tests/unit/protocol/test_codec_fuzz.py",
            *options,
        ]
        environment = {
            **os.environ,
            "QUORATE_FUZZ": str(effort),
            "QUORATE_FUZZ_COUNTS": str(counts),
        }
        done = subprocess.run(command, check=False, cwd=ROOT, env=environment, stdout=sys.stderr)
        if not counts.exists():
            raise SystemExit(f"pytest ended with {done.returncode} before it counted anything")
        found: dict[str, int] = json.loads(counts.read_text())
        return found


def by_atheris(effort: int) -> tuple[dict[str, int], int]:
    """Inputs by target, and how many failed. Every unit of effort starts with another seed."""
    inputs: dict[str, int] = {}
    untyped = 0
    for target in TARGETS:
        found = run(target, GUIDED_RUNS * effort, GUIDED_SECONDS * effort, seed=effort)
        inputs[target] = int(str(found["inputs"]))
        untyped += int(str(found["untyped"]))
        print(f"{target}: {inputs[target]} inputs", file=sys.stderr, flush=True)
    return inputs, untyped


def missed(told: dict[str, Any], effort: int) -> list[str]:
    """What a campaign should have tried and did not, each as a sentence."""
    wanted = CODEC_INPUTS_MIN * min(effort, CODEC_EFFORT) // CODEC_EFFORT
    found = (
        [f"codec inputs: {told['codec_inputs']} of {wanted}"]
        if told["codec_inputs"] < wanted
        else []
    )
    asked = ((who, told["routes"].get(who, 0)) for who in WHO)
    return found + [
        f"routes asked as {who}: {count} of {ROUTES}" for who, count in asked if count < ROUTES
    ]


def by_who(counts: dict[str, int], what: str) -> dict[str, int]:
    """Separates "<what> as <who>" in the counts."""
    return {
        name.removeprefix(f"{what} as "): counts.pop(name)
        for name in sorted(counts)
        if name.startswith(f"{what} as ")
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--effort", type=int, default=10)
    chosen, options = parser.parse_known_args()
    begun = time.monotonic()
    guided: dict[str, int] | str = "skipped: atheris is not installed"
    more = 0
    with ThreadPoolExecutor(1) as beside:
        found = (
            beside.submit(by_atheris, chosen.effort)
            if importlib.util.find_spec("atheris")
            else None
        )
        counts = by_pytest(chosen.effort, options)
        if found is not None:
            guided, more = found.result()
    untyped = counts.pop("failed") + more
    codec_inputs = counts.pop("codec_inputs", 0) + (
        guided["codec"] if isinstance(guided, dict) else 0
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = {
        "seconds": round(time.monotonic() - begun),
        "cpu_seconds": round(used.ru_utime + used.ru_stime),
    }
    asked = {what: by_who(counts, what) for what in ("requests", "routes")}
    told: dict[str, Any] = {"codec_inputs": codec_inputs, **asked, **counts, "guided": guided}
    lacking = missed(told, chosen.effort)
    print(json.dumps({**told, "untyped": untyped, "missed": lacking, **took}))
    return 1 if untyped or lacking else 0


if __name__ == "__main__":
    raise SystemExit(main())
