"""Tests that slow packages are imported only at their first use.

web3 takes more than a second, aiohttp and pydantic about half a second each. Each row names what a
statement may not load. No time is measured here, so a busy machine fails nothing.
"""

import json
import subprocess
import sys

import pytest

CHAIN = ("web3", "eth_account", "eth_tester", "eth_abi", "eth_utils", "pydantic")
EXTRAS = ("docker", "sqlalchemy", "numpy", "libp2p", "vyper")
# parsers of C, which pycryptodome loads
PARSERS = ("cffi", "pycparser", "Crypto.Hash", "Crypto.Cipher")
TERMINAL = ("typer", "rich", "yaml")
TESTS = ("pytest", "hypothesis")
MARKET = (*CHAIN, *EXTRAS, *PARSERS, *TERMINAL, *TESTS, "aiohttp")
CORE = ("asyncio", "ssl", "nacl", "coincurve", "msgspec", "dataclasses", "importlib.metadata")
PROGRAM = (*CHAIN, *EXTRAS, *PARSERS, *TESTS, "aiohttp", "prometheus_client", "rich.console")


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import quorate", (*MARKET, *CORE)),
        ("from quorate import Job, Market, Profile, Run, open_profile", MARKET),
        ("import quorate.cli.main", (*MARKET, *CORE)),
        ("import quorate.cli.app", PROGRAM),
        ("import quorate_node.cli.app", PROGRAM),
        ("import quorate_coordinator.cli.app", PROGRAM),
        ("import quorate_devnet.cli", PROGRAM),
        ("import quorate_contracts.chain_cli.cli", PROGRAM),
        ("import quorate_contracts.deploy", CHAIN),
        ("import quorate_runtime.chain", ("web3", "eth_account", "eth_tester", "eth_abi")),
    ],
)
def test_slow_packages_are_not_imported_before_they_are_used(
    statement: str, absent: tuple[str, ...]
) -> None:
    program = f"{statement}\nimport sys\nloaded = sorted(sys.modules)\nimport json\n"
    command = [sys.executable, "-c", program + "print(json.dumps(loaded))"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [name for name in absent if name in json.loads(done.stdout)] == []
