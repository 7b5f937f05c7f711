"""Makes a recorded inventory of a report that somebody sent.

    make gpu-fixture REPORT=selftest.json NAME=two-l40s

The report is what `quorate node selftest --gpu --json` printed. The UUIDs of its GPUs are replaced,
because they name one person's hardware. Tests then run on the inventory as on the others.
"""

import json
import re
import sys
import uuid
from pathlib import Path

from quorate_protocol.codec import canonical
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.refusals import Refused
from support.gpu.recorded_inventories import FOLDER

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def record(report: Path, name: str, folder: Path = FOLDER) -> Path:
    """Writes `folder/NAME.json`. Raises SystemExit with what is wrong with the report."""
    if not _NAME.fullmatch(name):
        raise SystemExit(f"NAME={name}: write lower case words, such as two-l40s")
    try:
        tree = json.loads(report.read_text())["inventory"]
        found = canonical.from_json(GpuInventory, tree)
        found.validate()
    except (OSError, ValueError, KeyError, TypeError, Refused) as error:
        what = error.detail if isinstance(error, Refused) else str(error)
        raise SystemExit(
            f"{report} is no report of `node selftest --gpu --json`: {what}"
        ) from error
    if not found.devices:
        raise SystemExit(f"{report} has no GPU: its machine had none, or no driver")
    text = json.dumps(canonical.to_json(found), indent=1, sort_keys=True)
    path = folder / f"{name}.json"
    path.write_text(_UUID.sub(lambda match: _another(match, name), text) + "\n")
    return path


def _another(match: re.Match[str], name: str) -> str:
    made = uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{match[0]}")
    return f"{match[1]}-{made}"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("write: python -m support.gpu.record_inventory REPORT NAME")
    print(record(Path(sys.argv[1]), sys.argv[2]))
