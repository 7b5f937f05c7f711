"""web3 takes more than a second to import, so it is imported at the first call of the chain."""

import json
import subprocess
import sys

import pytest

CLIENT = ("web3", "eth_account", "eth_abi", "eth_tester")
CHAIN = ("web3", "eth_account", "eth_tester")


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import quorate", CLIENT),
        ("from quorate import Market", CLIENT),
        ("import quorate.cli.main", CLIENT),
        ("import quorate_runtime.chain", CHAIN),
        ("import quorate_contracts.deploy", CHAIN),
    ],
)
def test_web3_is_not_imported_before_the_chain_is_called(
    statement: str, absent: tuple[str, ...]
) -> None:
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [name for name in absent if name in json.loads(done.stdout)] == []
