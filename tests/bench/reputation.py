"""Runs jobs on a devnet, and compares every provider's reputation with the public log's.

    PYTHONPATH=tests python tests/bench/reputation.py --json [--jobs 300] [--providers 6]

One process runs the devnet with no-op jobs and saves the coordinator's log. A second process has
that file alone. Prints one JSON line: `equal` says whether its numbers are the coordinator's own
for every provider, to the digit.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from quorate import Job, Market
from quorate.images import build_python_image
from quorate_devnet.market.config import DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import running
from quorate_node.base.config import TransportChoice

OUTSTANDING = 24
TRIES_MAX = 20
ANSWER_BYTES_MAX = 1 << 20


async def run_jobs(market: Market, image: Path, count: int) -> int:
    """Runs so many jobs, each another one, and returns how many were accepted."""
    accepted, turns = 0, asyncio.Semaphore(OUTSTANDING)

    async def one(number: int) -> None:
        nonlocal accepted
        async with turns:
            command = ["python3", "-c", f"print({number})"]
            job = Job(image=image, command=command, max_price="5", max_duration="30s")
            result = await (await market.submit(job)).result()
            accepted += len(result.providers) > 1

    await one(0)  # uploads the image
    await asyncio.gather(*(one(number) for number in range(1, count)))
    return accepted


def command(folder: Path, *words: str) -> dict[str, object]:
    """Runs `quorate reputation` in a process of its own that knows no profile, and returns its
    document.
    """
    program = str(Path(sys.executable).with_name("quorate"))
    environment = {"PATH": os.environ["PATH"], "QUORATE_HOME": str(folder / "nobody")}
    done = subprocess.run(
        [program, "reputation", *words, "--json"], env=environment, capture_output=True, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def said_by(url: str, provider: str) -> object:
    """Returns the reputation that the coordinator serves of a provider."""
    with urllib.request.urlopen(f"{url}/v1/providers/{provider}", timeout=30) as answer:
        return json.loads(answer.read(ANSWER_BYTES_MAX))["reputation"]


def compare(url: str, folder: Path) -> dict[str, object]:
    """Saves the log, folds it in another process, and asks the coordinator. Tries again while the
    log grows.
    """
    file = folder / "log.jsonl"
    for _ in range(TRIES_MAX):
        asked = command(folder, "--url", url, "--save", str(file))
        alone = command(folder, "--log", str(file))["logs"][0]
        said = {provider: said_by(url, provider) for provider in alone["providers"]}
        after = command(folder, "--url", url)["logs"][0]
        if after["lines"] == alone["lines"]:
            return {
                "providers": len(said),
                "lines": alone["lines"],
                "equal": asked["equal"] is True and said == alone["providers"],
            }
    return {"providers": 0, "lines": 0, "equal": False}


async def measure(jobs: int, providers: int) -> dict[str, object]:
    """Runs the jobs and returns the figures."""
    with tempfile.TemporaryDirectory(prefix="quorate-reputation-") as path:
        folder = Path(path)
        image = build_python_image(folder / "image.tar", ()).path
        config = DevnetConfig(
            folder / "devnet",
            providers,
            clients=1,
            slots=4,
            executor=ExecutorChoice.NOOP,
            transport=TransportChoice.WEBSOCKET,
        )
        async with running(config) as devnet, Market(devnet.profiles[0]) as market:
            accepted = await run_jobs(market, image, jobs)
            url = devnet.profiles[0].coordinator_url
            found = await asyncio.to_thread(compare, url, folder)
    return {"jobs": jobs, "accepted": accepted, **found}


def main() -> int:
    """Prints the figures; 1 if the numbers differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--providers", type=int, default=6)
    options = parser.parse_args()
    figures = asyncio.run(measure(options.jobs, options.providers))
    lines = "\n".join(f"{name}: {value}" for name, value in figures.items())
    print(json.dumps(figures) if options.json else lines)
    return 0 if figures["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
