"""What runs in the trio thread of a libp2p host. Importing this package imports libp2p.

The package `guard` replaces private parts of libp2p, so exactly one version of it is accepted.
"""

import importlib
import logging
import warnings
from importlib.metadata import version

LIBP2P_VERSION = "0.8.1"

if version("libp2p") != LIBP2P_VERSION:
    raise ImportError(
        f"libp2p is {version('libp2p')}, but {LIBP2P_VERSION} is needed: pip install 'quorate[p2p]'"
    )

with warnings.catch_warnings():
    # Its dependencies import modules that are deprecated.
    warnings.simplefilter("ignore")
    for name in ("libp2p.pubsub.gossipsub", "libp2p.network.auto_connector"):
        importlib.import_module(name)

# Strangers can make libp2p log as much as they like. What owners must know, this project logs.
logging.getLogger("libp2p").setLevel(logging.CRITICAL)
logging.getLogger("libp2p.network.auto_connector").setLevel(logging.NOTSET)  # it sets INFO
