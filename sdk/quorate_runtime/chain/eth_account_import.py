"""Imports eth-account without eth-keyfile, whose curve arithmetic takes a third of web3's import.

web3 imports eth-account, and eth-account imports eth-keyfile for `Account.encrypt` and
`Account.decrypt`. eth-keyfile computes tables of the curve BLS12-381 at import, which takes 0.4
seconds of CPU in every program that calls the chain. Our keystore does not use it.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

_PACKAGE, _MODULE = "eth_keyfile", "eth_keyfile.keyfile"
_FUNCTIONS = ("create_keyfile_json", "decode_keyfile_json")


def import_eth_account() -> None:
    """Imports eth-account, so that eth-keyfile is imported only if one of its functions is called.

    Call it before the first import of web3. It does nothing if either package is loaded already.
    """
    if "eth_account" in sys.modules or _PACKAGE in sys.modules:
        return
    package, module = ModuleType(_PACKAGE), ModuleType(_MODULE)
    vars(package).update({name: _load_later(name) for name in _FUNCTIONS})
    vars(module)["KDFType"] = str  # only annotations name it
    sys.modules.update({_PACKAGE: package, _MODULE: module})
    try:
        import_module("eth_account")
    except ImportError:
        # Not re-raised: another version needs more of eth-keyfile, so web3 imports all of it.
        pass
    finally:
        del sys.modules[_PACKAGE], sys.modules[_MODULE]


def _load_later(name: str) -> Callable[..., Any]:
    """Returns a function that imports eth-keyfile and calls its function of this name."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(_PACKAGE), name)(*arguments, **options)

    return call
