"""What to say about a key that the job file does not have: a translation, "not offered yet", or
the nearest known key.
"""

from collections.abc import Iterable
from difflib import get_close_matches

SKYPILOT: dict[str, str] = {
    "accelerators": 'resources.gpu, such as gpu: "H100:2"',
    "use_spot": "spot_policy: spot (not offered yet)",
    "any_of": "one resources.gpu; alternatives are not offered",
    "ordered": "one resources.gpu; alternatives are not offered",
    "max_hourly_cost": "max_price (USD per GPU-hour, at the top level)",
    "disk_size": "resources.disk",
    "cpus": "resources.cpu",
    "instance_type": "resources.gpu and resources.memory; machines are matched by what they have",
    "cloud": "nothing: any provider whose offer fits may run it",
    "region": "nothing: regions are not offered yet",
    "zone": "nothing: regions are not offered yet",
    "image_id": "image (a CID, name@sha256:... or a local archive), at the top level",
    "autostop": "max_duration",
    "job_recovery": "retry (not offered yet); a lost execution is matched anew without being asked",
    "envs": "env",
    "run": "commands (for the image's shell) or command (a list of words)",
    "setup": "an image that holds what setup installs (quorate image build); jobs have no network",
    "workdir": "inputs, such as {path: ., mount: /inputs/work}",
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
"""Keys of DESIGN §13 whose behaviour is not built yet. Ignoring one silently would be worse than refusing it."""


def explain_unknown(key: str, path: str, known: Iterable[str]) -> str:
    """One sentence for a refused key; `path` is where it stands, "" at the top."""
    where = f"{path}.{key}" if path else key
    names = sorted(known)
    if not path and key in NOT_YET:
        return f"{where}: known, but not offered yet; leave it out"
    if key in SKYPILOT and key not in names:
        return f"{where}: a SkyPilot key; write here {SKYPILOT[key]}"
    close = get_close_matches(key.lower(), names, n=1, cutoff=0.5)
    nearest = f"did you mean {close[0]!r}?" if close else f"known here are {', '.join(names)}"
    return f"{where}: unknown key; {nearest}"
