"""Programs that use up the kernel's limits of a user, and one that needs a little of each."""

SHARED = """
import array, ctypes, errno, fcntl, json, os, resource, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]
kept = []
def inotify():
    return call(294, 0)
def terminal():
    try:
        kept.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
        return fcntl.ioctl(kept[-1], 0x80045430, b"    ") and 0
    except OSError as error:
        return errno.errorcode[error.errno]
def requests():
    context = ctypes.c_ulong(0)
    return call(206, 8, ctypes.byref(context))
def queue():
    return call(240, b"q%d" % len(kept), os.O_CREAT | os.O_RDWR, 0o600, None)
def timer():
    return call(222, 1, None, ctypes.byref(ctypes.c_int(0)))
def pipe():
    kept.extend(os.pipe())
    try:
        return fcntl.fcntl(kept[-1], 1031, 1 << 20)
    except OSError as error:
        return errno.errorcode[error.errno]
def passed():
    one, two = socket.socketpair()
    kept.extend((one, two))
    held = array.array("i", [one.fileno()] * 200)
    try:
        return one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)])
    except OSError as error:
        return errno.errorcode[error.errno]
def locked():
    libc.mmap.restype = ctypes.c_void_p
    place = libc.mmap(None, 4096, 3, 34, -1, 0)
    return libc.mlock(ctypes.c_void_p(place), 4096) and errno.errorcode[ctypes.get_errno()]
LIMITS = dict(inotify=inotify, terminal=terminal, requests=requests, queue=queue, timer=timer,
              pipe=pipe, passed=passed, locked=locked)
"""

GREEDY = (
    "import os; TRIES = int(os.environ['TRIES'])"
    + SHARED
    + """
used = {}
for name, use in LIMITS.items():
    used[name] = 0
    for used[name] in range(TRIES):
        kept.append(name)
        try:
            if isinstance(use(), str):
                break
        except OSError:
            break
print(json.dumps(used), flush=True)
time.sleep(600)
"""
)

MODEST = (
    SHARED
    + """
found = {}
for name, use in LIMITS.items():
    results = [use() for _ in range(4)]
    found[name] = [result if isinstance(result, str) else "done" for result in results]
    if name == "pipe":
        found["capacity"] = [fcntl.fcntl(item, 1032) for item in os.pipe()]
open("/outputs/found", "w").write(json.dumps(found))
"""
)
