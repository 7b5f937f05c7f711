"""Explains an unknown key of a job file: its translation, "not offered yet", or the nearest known
key.
"""

from collections.abc import Iterable
from difflib import get_close_matches

SKYPILOT: dict[str, str] = {
    "accelerators": 'resources.gpu, such as gpu: "H100:2"',
    "use_spot": "spot_policy: spot (not offered yet)",
    "any_of": "one resources.gpu; alternatives are not offered",
    "ordered": "one resources.gpu; alternatives are not offered",
    "max_hourly_cost": "max_price (USD per slot-hour, at the top level)",
    "disk_size": "resources.disk",
    "cpus": "resources.cpu",
    "instance_type": "resources.gpu and resources.memory; machines are matched by their hardware",
    "cloud": "nothing: any provider whose offer fits may run it",
    "region": "nothing: regions are not offered yet",
    "zone": "nothing: regions are not offered yet",
    "image_id": "image (a CID, name@sha256:... or a local archive), at the top level",
    "autostop": "max_duration",
    "job_recovery": "retry (not offered yet); the coordinator replaces a lost execution by itself",
    "envs": "env",
    "run": "commands (for the image's shell) or command (a list of words)",
    "setup": "requirements, or an image with what setup installs; jobs have no network",
    "num_nodes": "nodes (not offered yet)",
    "file_mounts": "inputs: [{path, mount}]",
    "service": "type: service (not offered yet)",
    "storage_mounts": "inputs: [{cid, mount}]",
}
"""Keys of SkyPilot's task files, at any level -> what does the same here."""

NOT_YET = frozenset(
    {
        "files",
        "secrets",
        "registry_auth",
        "ports",
        "nodes",
        "priority",
        "tags",
        "schedule",
        "regions",
        "spot_policy",
        "retry",
        "utilization_policy",
        "gang",
        "volumes",
    }
)
"""Planned keys that are not built yet. Refusing them is better than ignoring them silently."""


def explain_unknown(key: str, path: str, known: Iterable[str]) -> str:
    """Returns one sentence for a refused key. `path` is its location, "" at the top."""
    where = f"{path}.{key}" if path else key
    names = sorted(known)
    if not path and key in NOT_YET:
        return f"{where}: this key is not supported yet; leave it out"
    if key in SKYPILOT and key not in names:
        return f"{where}: this is a SkyPilot key; write {SKYPILOT[key]} instead"
    close = get_close_matches(key.lower(), names, n=1, cutoff=0.5)
    nearest = f"did you mean {close[0]!r}?" if close else f"known here are {', '.join(names)}"
    return f"{where}: unknown key; {nearest}"
