"""Starts the SFTP server of a rental, within the rental's limits from its first import on.

Arguments: descriptors of the socket and of the container's first process in /proc, the user, the
name of the client's software, and the control groups to join.
"""

import sys
from pathlib import Path


def main() -> None:
    link, folder, user = map(int, sys.argv[1:4])
    for group in sys.argv[5:]:
        (Path(group) / "cgroup.procs").write_text("0")
    # A client may start many: the rental's own share of the processor reads these modules.
    from quorate_node.executors.docker import sftp_server

    sftp_server.run(link, folder, user, sys.argv[4])


if __name__ == "__main__":
    main()
