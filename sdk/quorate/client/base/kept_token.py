"""Keeps the newest bearer token in the profile, so that reading needs no key for a day.

A token lets its holder read this account's runs, logs and outputs for 23 hours. It cannot order,
pay or sign. The file has mode 0600.
"""

import json
from pathlib import Path

from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_protocol.units import Address
from quorate_runtime.files import write_atomic

FILE = "token.json"
FILE_BYTES_MAX = 4096
NONE = ("", 0.0)


def kept_token(home: Path, client: Address, identity: CoordinatorIdentity) -> tuple[str, float]:
    """Returns the kept token of an account at a coordinator, and when it expires (Unix seconds)."""
    try:
        with (home / FILE).open("rb") as file:
            tree = json.loads(file.read(FILE_BYTES_MAX))
        if tree["for"] != _whose(client, identity):
            return NONE
        return str(tree["token"]), float(tree["expires"])
    except (OSError, ValueError, KeyError, TypeError):
        return NONE  # not re-raised: without a token one is signed


def keep_token(
    home: Path, client: Address, identity: CoordinatorIdentity, token: tuple[str, float]
) -> None:
    """Writes the token for later commands. A folder that cannot be written keeps none."""
    tree = {"for": _whose(client, identity), "token": token[0], "expires": token[1]}
    try:
        write_atomic(home / FILE, json.dumps(tree).encode(), 0o600)
    except OSError:
        return  # not re-raised: the next command signs a token of its own


def _whose(client: Address, identity: CoordinatorIdentity) -> str:
    return f"{identity.chain_id}.{identity.coordinator.hex()}.{client.hex()}"
