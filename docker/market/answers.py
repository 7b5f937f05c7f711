"""Health of chain and beacon: `answers.py URL [METHOD]` asks by GET, or by JSON-RPC when a method is named. Exit 1 without an answer."""

import json
import sys
import urllib.request

URL, METHODS = sys.argv[1], sys.argv[2:]
CALL = json.dumps({"jsonrpc": "2.0", "id": 1, "method": METHODS[0], "params": []}).encode() if METHODS else None

try:
    with urllib.request.urlopen(urllib.request.Request(URL, CALL, {"Content-Type": "application/json"}), timeout=5) as response:
        tree = json.load(response)
except (OSError, ValueError) as error:
    sys.exit(f"{URL}: {error}")
if "error" in tree:
    sys.exit(f"{URL}: {tree['error']}")
