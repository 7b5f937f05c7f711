"""Cleaning up after a daemon that will not come back: everything that one owner label, or one
home folder, still holds.

For the devnet's reaper, which waits on a pipe and acts when its parent was killed with -9.
Blocking, no event loop, no daemon object.
"""

from pathlib import Path

import docker.errors

from quorate_node.executors import cgroups
from quorate_node.executors.bwrap.bwrap_executor import end_lease
from quorate_node.executors.docker.engine_connection import connect
from quorate_node.executors.docker.hardened_profile import LABEL_LEASE, LABEL_OWNER
from quorate_node.executors.docker.lease_dirs import release_folder, remove_container


def reap(owner: str, home: Path | None = None, engine_url: str | None = None) -> int:
    """Removes all containers and volumes labelled with `owner`, and the mounts and folders below
    `home`; returns how many containers.

    Safe to repeat, and while another reaper does the same. Raises the SDK's error when the
    engine is away.
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
                pass  # another reaper was faster
        for lease in {str(item["Labels"][LABEL_LEASE]) for item in found}:
            cgroups.remove_lease_groups(lease)
        if home is not None and home.is_dir():
            for folder in home.iterdir():
                release_folder(folder)
        return len(found)
    finally:
        api.close()


def reap_processes(home: Path) -> int:
    """Kills what the process or bwrap executor of `home` still runs, with its mounts and groups;
    returns how many leases.
    """
    folders = list(home.iterdir()) if home.is_dir() else []
    for folder in folders:
        end_lease(folder)
    return len(folders)
