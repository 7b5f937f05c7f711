"""`python -m quorate_runtime.probe URL [METHOD]`: exit 0 when the URL answers well, else 1 with
what it said. For container health checks.

By GET, or by JSON-RPC when a method is named. The standard library alone: a check that runs
every few seconds on every container must not import a whole daemon, as `quorate node health`
does.
"""

import json
import sys
import urllib.error
import urllib.request

SECONDS = 8
BYTES_MAX = 64 * 1024


def problem(url: str, method: str = "") -> str:
    """ "" when all is well, else what is wrong."""
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
        # Not re-raised: this is the finding, and its body names the cause.
        return f"{url}: {error.code} {error.read(BYTES_MAX).decode(errors='replace')}"
    except (OSError, ValueError) as error:
        return f"{url}: {error}"  # not re-raised: this is the finding
    return f"{url}: {tree['error']}" if isinstance(tree, dict) and "error" in tree else ""


if __name__ == "__main__":
    sys.exit(problem(*sys.argv[1:3]) or 0)
