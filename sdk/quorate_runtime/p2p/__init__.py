"""Peers and gossip over libp2p. This module itself imports no part of libp2p.

Ask `available()` before you import another module of this package.
"""

import functools
import importlib

REMEDY = "apt-get install gcc python3-dev libgmp-dev && pip install 'quorate[p2p]'"


@functools.cache
def available() -> str:
    """Returns "" if libp2p can be used here, else the reason and the remedy in one sentence. The
    first call imports libp2p, which takes about a second.
    """
    try:
        importlib.import_module("quorate_runtime.p2p.host")
    except ImportError as error:
        # Absence is the answer here. One dependency of libp2p has no wheel.
        return f"libp2p cannot be imported ({error}); it needs a C compiler and GMP: {REMEDY}"
    return ""
