"""`python -m quorate_devnet.processes.child PARENT MODULE [ARGUMENT ...]`: runs a module as a
program that dies with its parent.

The kernel sends SIGKILL when the parent ends, however it ends; a parent that was gone before
that could be asked for is noticed.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """From now on this process does not outlive `parent`, which must be its parent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
