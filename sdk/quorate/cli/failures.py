"""Says why a program failed, and which flag would help."""

import signal

from quorate_protocol.units import EXIT_MEMORY_KILL, EXIT_SIGNAL_BASE, EXIT_TIMEOUT

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # exit codes of a shell

HINTS = (
    (
        "outputs refused: ",
        "its output is empty; if its files were too large, ask for more with --outputs",
    ),
    (
        "No space left on device",
        "a disk was full; ask for more with --disk, or --outputs, --tmp and --shm",
    ),
    (
        "Disk quota exceeded",
        "a disk was full; ask for more with --disk, or --outputs, --tmp and --shm",
    ),
    ("CUDA out of memory", 'the GPU had too little memory; ask for more, such as --gpu "24GB..:1"'),
    ("MemoryError", "it had too little memory; ask for more with --memory"),
    ("Cannot allocate memory", "it had too little memory; ask for more with --memory"),
    ("DefaultCPUAllocator: can't allocate", "it had too little memory; ask for more with --memory"),
    (
        "No module named",
        "no such module is there; add a package with --requirements (-r), your own with --file",
    ),
    ("name resolution", "jobs have no network; send what it needs as --input (-i)"),
    ("Network is unreachable", "jobs have no network; send what it needs as --input (-i)"),
    (
        "cannot open shared object file",
        "the image lacks a library; see `quorate image build --help`",
    ),
    ("Read-only file system", "it may write to /outputs, /scratch and /tmp only"),
)
"""Words in the last lines of a log -> what they mean."""


def why_failed(status: int, end: str) -> str:
    """Returns the cause and what would help, or "" if the log says all there is to say. `end` is
    the end of the program's log.
    """
    if status == EXIT_TIMEOUT:
        return "it ran for max_duration, so its files are dropped; ask for more with --max-duration"
    if status == EXIT_MEMORY_KILL:
        return "it used too much memory, so its files are dropped; ask for more with --memory"
    found = [(end.rfind(words), means) for words, means in HINTS if words in end]
    if found:
        return max(found)[1]
    if status == NOT_FOUND:
        return "the image has no such program, or a script's interpreter is missing"
    if status == NOT_EXECUTABLE:
        return "the program is no executable file; run a script by its interpreter"
    if status == EXIT_SIGNAL_BASE + signal.SIGKILL:
        return "it was killed, often because it used too much memory; try more --memory"
    if status >= EXIT_SIGNAL_BASE:
        return f"it was ended by {_signal_name(status - EXIT_SIGNAL_BASE)}"
    return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
