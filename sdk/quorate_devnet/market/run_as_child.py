"""`python -m quorate_devnet.market.run_as_child PARENT MODULE [ARGUMENT ...]`: runs a module
that dies with its parent.

The kernel sends SIGKILL when the parent ends in any way. This module detects a parent that ended
before the set-up.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Makes this process die with `parent`, which must be its parent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
