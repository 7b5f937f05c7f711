"""The chain node that the coordinator named last, which the profile keeps.

So a client reaches its money while the coordinator is away.
"""

import json
import os
from pathlib import Path

CHAIN_FILE = "chain.json"
FILE_BYTES_MAX = 4096


def remember_chain_url(home: Path, url: str) -> None:
    """Stores the URL of a chain node if it is a new one."""
    if not url or stored_chain_url(home) == url:
        return
    draft = home / f"{CHAIN_FILE}.{os.getpid()}.new"
    try:
        draft.write_text(json.dumps({"chainUrl": url, "version": 1}) + "\n")
        os.replace(draft, home / CHAIN_FILE)
    except OSError:
        # Not re-raised: `--chain-url` names a node too, and most commands need none.
        draft.unlink(missing_ok=True)


def stored_chain_url(home: Path) -> str:
    """Returns the stored URL, or "" if there is none."""
    try:
        tree = json.loads((home / CHAIN_FILE).read_bytes()[:FILE_BYTES_MAX])
    except (OSError, ValueError):
        return ""  # not re-raised: the coordinator names the node again
    url = tree.get("chainUrl", "") if isinstance(tree, dict) else ""
    return url if isinstance(url, str) else ""
