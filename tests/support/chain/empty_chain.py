"""An empty chain (anvil) and a beacon as programs of their own, as a new operator finds them."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorate_devnet.chain.accounts import dev_account

START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class EmptyChain:
    """Where chain and beacon answer, and the file of a key with coins."""

    chain_url: str
    beacon_url: str
    beacon_key: str
    key: Path


@contextmanager
def empty_chain(folder: Path) -> Iterator[EmptyChain]:
    """Runs both programs until the context ends. Needs anvil on PATH."""
    with ExitStack() as stack:
        chain = stack.enter_context(program(folder, "chain", "quorate_devnet.chain.anvil_process"))
        words = ("--port", "0", "--seed", "11" * 16)
        beacon = stack.enter_context(program(folder, "beacon", "quorate_devnet.beacon", *words))
        key = folder / "funded-key"
        key.touch(mode=0o600)
        key.write_text(dev_account(0).hex())
        facts = (
            ready_facts(folder / "chain.ready", chain),
            ready_facts(folder / "beacon.ready", beacon),
        )
        yield EmptyChain(facts[0]["url"], facts[1]["url"], facts[1]["public_key"], key)


@contextmanager
def program(
    folder: Path, name: str, module: str, *words: str
) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", module, *words, "--ready-file", str(folder / f"{name}.ready")]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)


def ready_facts(path: Path, process: "subprocess.Popen[bytes]") -> dict[str, str]:
    limit = time.monotonic() + START_SECONDS
    while not path.exists():
        assert process.poll() is None and time.monotonic() < limit, path.with_suffix(".log")
        time.sleep(0.05)
    found: dict[str, str] = json.loads(path.read_text())
    return found


def ask(chain_url: str, method: str, *params: object) -> object:
    """Returns the chain's answer to one JSON-RPC request."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    request = urllib.request.Request(
        chain_url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())["result"]
