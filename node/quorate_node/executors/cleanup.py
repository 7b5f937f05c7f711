"""Removes everything that a daemon left behind, when it will not start again.

The devnet's cleanup process uses it after somebody killed its parent with SIGKILL. Blocking; needs
no event loop and no daemon.
"""

from pathlib import Path

import docker.errors

from quorate_node.executors.base import cgroups
from quorate_node.executors.base.hardened_profile import LABEL_LEASE, LABEL_OWNER
from quorate_node.executors.docker.engine_connection import connect
from quorate_node.executors.docker.lease_dirs import release_folder, remove_container
from quorate_node.executors.sandbox.supervised_leases import end_lease


def reap(owner: str, home: Path | None = None, engine_url: str | None = None) -> int:
    """Returns how many containers it removed; may be repeated, also by another process. Raises the
    SDK's error if the engine does not answer.
    """
    api = connect(engine_url)
    try:
        label = {"label": f"{LABEL_OWNER}={owner}"}
        found = api.containers(all=True, filters=label)
        for item in found:
            remove_container(api, item["Id"])
        for volume in api.volumes(filters=label)["Volumes"] or ():
            try:
                api.remove_volume(volume["Name"], force=True)
            except docker.errors.NotFound:
                pass  # another process removed it first
        for lease in {str(item["Labels"][LABEL_LEASE]) for item in found}:
            cgroups.remove_lease_groups(lease)
        if home is not None and home.is_dir():
            for folder in home.iterdir():
                release_folder(folder)
        return len(found)
    finally:
        api.close()


def reap_processes(home: Path) -> int:
    """Ends all leases of the process or bwrap executor of `home`; returns how many."""
    folders = list(home.iterdir()) if home.is_dir() else []
    for folder in folders:
        end_lease(folder)
    return len(folders)
