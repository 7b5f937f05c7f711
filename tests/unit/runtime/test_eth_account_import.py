"""eth-account without eth-keyfile: what our programs import is smaller, and nothing is missing."""

import subprocess
import sys

PROGRAM = """
import sys
from quorate_runtime.chain.client import _import_provider
_import_provider()
assert "web3" in sys.modules and "py_ecc" not in sys.modules, "the curves are not loaded"
assert "eth_keyfile" not in sys.modules, "another import of eth-keyfile gets the real one"
from eth_account import Account
key = b"\\x11" * 32
kept = Account.encrypt(key, "secret", kdf="pbkdf2", iterations=2)
assert Account.decrypt(kept, "secret") == key and "py_ecc" in sys.modules
"""
CHANGED = """
import sys
from quorate_runtime.chain import eth_account_import
eth_account_import._FUNCTIONS = ()  # as in a version whose names we do not know
eth_account_import.import_eth_account()
from eth_account import Account
assert Account.decrypt(Account.encrypt(b"\\x11" * 32, "a", iterations=2), "a") == b"\\x11" * 32
"""


def ends_well(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_keystores_of_eth_account_work_though_its_curves_are_loaded_later() -> None:
    ends_well(PROGRAM)


def test_another_version_of_eth_account_is_imported_whole() -> None:
    ends_well(CHANGED)
