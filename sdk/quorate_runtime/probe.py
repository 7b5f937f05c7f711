"""Checks one URL, for container health checks: `python -m quorate_runtime.probe URL [METHOD]`.

Exits with 0 if the URL answers well, otherwise with 1 and the problem on stderr. It uses GET, or
JSON-RPC if a method is named.

It imports only the standard library. `quorate node health` imports a whole daemon, which costs too
much for a check that runs every few seconds in every container.
"""

import json
import sys
import urllib.error
import urllib.request

SECONDS = 8
BYTES_MAX = 64 * 1024


def problem(url: str, method: str = "") -> str:
    """Returns what is wrong with the URL, or "" if nothing is. With a JSON-RPC `method` it calls
    that method without parameters.
    """
    call = (
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": []}).encode()
        if method
        else None
    )
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, call, {"Content-Type": "application/json"}), timeout=SECONDS
        ) as response:
            tree = json.loads(response.read(BYTES_MAX))
    except urllib.error.HTTPError as error:
        # This is the problem to report, and its body names the cause.
        return f"{url}: {error.code} {error.read(BYTES_MAX).decode(errors='replace')}"
    except (OSError, ValueError) as error:
        return f"{url}: {error}"
    return f"{url}: {tree['error']}" if isinstance(tree, dict) and "error" in tree else ""


if __name__ == "__main__":
    sys.exit(problem(*sys.argv[1:3]) or 0)
