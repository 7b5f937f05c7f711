"""Measures how fast commands of `quorate` start, and counts messages that are too long.

    PYTHONPATH=tests python tests/bench/cli.py --json

`start_ms` is the median time from the start of the process until its first connection to the
coordinator (`ps`, `offers`), or until it ends (`help`). `ps` and `offers` run with a profile that
has a passphrase and read with its keys locked.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quorate.client.base.profile import create_profile
from support.cli_commands import without_json
from support.cli_messages import too_long

TRIES = 7
LIMIT_SECONDS = 30.0


def start_seconds(words: list[str], listener: socket.socket | None) -> float:
    """Returns the time until a command connects to `listener`, or without one until it ends."""
    program = str(Path(sys.executable).with_name("quorate"))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    began = time.perf_counter()
    with subprocess.Popen([program, *words], stdin=subprocess.DEVNULL, **quiet) as process:
        if listener is None:
            process.wait(LIMIT_SECONDS)
            return time.perf_counter() - began
        connection, _ = listener.accept()
        seconds = time.perf_counter() - began
        connection.close()
        process.kill()
        return seconds


def measure() -> dict[str, int]:
    """Returns the median start of each command in milliseconds."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_SECONDS)
        home = Path(folder) / "home"
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        create_profile(home, url, "a passphrase", "mainnet")
        lines = {
            "ps": (["ps", "--home", str(home)], server),
            "help": (["--help"], None),
            "offers": (["offers", "--home", str(home)], server),
        }
        found = {}
        for name, (words, listener) in lines.items():
            taken = [start_seconds(words, listener) for _ in range(TRIES + 1)][1:]
            found[name] = round(statistics.median(taken) * 1000)
        return found


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    as_json = parser.parse_args().json
    figures = {
        "start_ms": measure(),
        "messages_over_25_words": len(too_long()),
        "commands_without_json": len(without_json()),
    }
    print(json.dumps(figures) if as_json else "\n".join(f"{k}: {v}" for k, v in figures.items()))


if __name__ == "__main__":
    main()
