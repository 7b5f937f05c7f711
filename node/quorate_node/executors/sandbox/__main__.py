"""Starts the supervisor of one lease: `python -I -S __main__.py LEASE_FOLDER`.

Isolated Python has neither this package nor site-packages on its path. The folder that holds
`quorate_node` is appended, behind the standard library, so that only our own modules come from
it and no `.pth` file runs.
"""

import sys
from pathlib import Path


def main() -> None:
    sys.path.append(str(Path(__file__).parents[3]))
    from quorate_node.executors.sandbox.lease_run import detach, run_lease

    folder = Path(sys.argv[1])
    detach(folder)
    run_lease(folder)


if __name__ == "__main__":
    main()
