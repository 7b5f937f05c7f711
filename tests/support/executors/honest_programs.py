"""Honest programs, each a few lines, whose results all sandboxes should give alike."""

PRELUDE = """
import array, ctypes, errno, fcntl, glob, grp, json, mmap, os, platform, pwd, resource, select
import shutil, signal, socket, stat, struct, subprocess, sys, tempfile, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(work, *arguments):
    try:
        work(*arguments)
        return "done"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
def mode(path):
    found = os.lstat(path)
    return [oct(found.st_mode), found.st_uid, found.st_gid]
def listen(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as made:
        made.bind(address)
        if kind == socket.SOCK_STREAM:
            made.listen()
def talk(family, address):
    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        with socket.socket(family) as one:
            one.connect(server.getsockname())
            two, peer = server.accept()
            with two:
                one.sendall(b"x")
                return [two.recv(1).decode(), peer[0]]
def child(work):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return os.waitpid(pid, 0)[1]
def orphan():
    read, write = os.pipe()
    def middle():
        if not os.fork():
            while os.getppid() == middle_pid[0]: time.sleep(0.01)
            os.write(write, b"1" if os.getppid() == 1 else b"0")
            os._exit(0)
    def start():
        middle_pid[0] = os.getpid()
        middle()
    middle_pid = [0]
    child(start)
    return os.read(read, 1).decode()
def write(path, content=b"x"):
    with open(path, "wb") as file:
        file.write(content)
def limit(name):
    return resource.getrlimit(getattr(resource, "RLIMIT_" + name))
def status(name):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return lines.get(name, "none").strip()
def resolved(host, family=0):
    found = socket.getaddrinfo(host, 80, family, socket.SOCK_STREAM)
    return sorted({item[4][0] for item in found})
def tried(work, *arguments):
    try:
        return work(*arguments)
    except OSError as error:
        return type(error).__name__ + str(error.errno)
def dgram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        one.sendto(b"x", one.getsockname())
        return one.recvfrom(10)[0].decode()
def abstract():
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("\\0name")
        return "done"
def run(words, **options):
    return subprocess.run(words, capture_output=True, **options)
def hard():
    write("/scratch/first"); os.link("/scratch/first", "/scratch/second")
    return os.stat("/scratch/second").st_nlink
def sparse():
    os.truncate(os.open("/scratch/sparse", os.O_CREAT | os.O_RDWR), 1 << 22)
    return [os.stat("/scratch/sparse").st_size, os.stat("/scratch/sparse").st_blocks]
def xattr(folder):
    write(folder + "/x"); os.setxattr(folder + "/x", "user.a", b"b")
    return os.getxattr(folder + "/x", "user.a").decode()
def anonymous():
    os.close(os.open("/scratch", os.O_TMPFILE | os.O_RDWR, 0o600))
def shared():
    import multiprocessing
    return multiprocessing.get_context("fork").Semaphore(2).get_value()
def mapped():
    from multiprocessing import shared_memory
    made = shared_memory.SharedMemory(create=True, size=4096)
    made.buf[0] = 7; seen = made.buf[0]; made.close(); made.unlink()
    return seen
def run_copy(folder):
    shutil.copy("/usr/local/bin/python3", folder + "/copy")
    return run([folder + "/copy", "-c", ""], env={"PYTHONHOME": "/usr/local"}).returncode
def threads():
    seen = []
    made = [threading.Thread(target=seen.append, args=(n,)) for n in range(20)]
    [item.start() for item in made]; [item.join() for item in made]
    return len(seen)
"""

PROGRAMS = {
    # names and users
    "host name": "socket.gethostname()",
    "full name": "socket.getfqdn()",
    "node of uname": "platform.node()",
    "/etc/hosts": "open('/etc/hosts').read()",
    "/etc/hostname": "open('/etc/hostname').read()",
    "/etc/resolv.conf": "open('/etc/resolv.conf').read()",
    "localhost": "tried(resolved, 'localhost')",
    "localhost v4": "tried(resolved, 'localhost', socket.AF_INET)",
    "localhost v6": "tried(resolved, 'localhost', socket.AF_INET6)",
    "ip6-localhost": "tried(resolved, 'ip6-localhost')",
    "own name": "tried(resolved, 'job')",
    "unknown name": "tried(resolved, 'nowhere.invalid')",
    "user": "[os.getuid(), os.geteuid(), os.getgid(), os.getegid()]",
    "groups": "sorted(set(os.getgroups()) - {65534})",
    "machine": "[platform.system(), platform.machine()]",
    "domain": "os.uname().sysname + open('/proc/sys/kernel/domainname').read()",
    # network
    "v4 loopback": "tried(talk, socket.AF_INET, '127.0.0.1')",
    "v6 loopback": "tried(talk, socket.AF_INET6, '::1')",
    "other loopback": "tried(talk, socket.AF_INET, '127.0.0.9')",
    "any v4": "attempt(listen, socket.AF_INET, ('0.0.0.0', 0))",
    "any v6": "attempt(listen, socket.AF_INET6, ('::', 0))",
    "port 80": "attempt(listen, socket.AF_INET, ('127.0.0.1', 80))",
    "port 80 v6": "attempt(listen, socket.AF_INET6, ('::1', 80))",
    "port 1": "attempt(listen, socket.AF_INET, ('127.0.0.1', 1), socket.SOCK_DGRAM)",
    "datagrams": "tried(dgram)",
    "abstract socket": "tried(abstract)",
    "interfaces": "[name for _, name in socket.if_nameindex()]",
    "outside": "tried(lambda: socket.create_connection(('192.0.2.1', 80), 2).close())",
    "outside v6": "tried(lambda: socket.create_connection(('2001:db8::1', 80), 2).close())",
    "raw socket": "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
    "closed port": "tried(lambda: socket.create_connection(('127.0.0.1', 9), 2).close())",
    # processes
    "child's exit": "os.waitstatus_to_exitcode(child(lambda: os._exit(7)))",
    "killed child": "os.waitstatus_to_exitcode(child(lambda: os.kill(os.getpid(), 9)))",
    "aborted child": "[status := child(os.abort), os.WCOREDUMP(status)]",
    "faulted child": "os.waitstatus_to_exitcode(child(lambda: ctypes.string_at(0)))",
    "terminated child": "os.waitstatus_to_exitcode(child(lambda: os.kill(os.getpid(), 15)))",
    "orphan's parent": "orphan()",
    "unknown child": "attempt(os.wait)",
    "kill the first": "attempt(os.kill, 1, 0)",
    "kill an absent": "attempt(os.kill, 30000, 0)",
    "kill all": "child(lambda: [signal.signal(15, signal.SIG_IGN), os.kill(0, 0)])",
    "parent is first": "os.getppid() == 1",
    "leads no session": "os.getsid(0) == os.getpid()",
    "signals ignored": "[n for n in range(1, 65) if n not in (9, 19, 32, 33) and"
    " signal.getsignal(n) == signal.SIG_IGN]",
    "signals blocked": "sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    "missing program": "tried(run, ['/nowhere'])",
    "not a program": "tried(run, ['/etc/hosts'])",
    "threads": "threads()",
    "niceness": "[os.nice(0), attempt(os.nice, -5)]",
    "own niceness": "os.getpriority(os.PRIO_PROCESS, 0)",
    "scheduler": "os.sched_getscheduler(0)",
    "real time": "attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))",
    # rights
    "become root": "attempt(os.setuid, 0)",
    "set groups": "attempt(os.setgroups, [0])",
    "change root": "attempt(os.chroot, '/scratch')",
    "mount": "call(165, 0, 0, 0, 0, 0)",
    "unshare": "call(272, 0x10000000)",
    "trace": "call(101, 0, 0, 0, 0)",
    "capabilities": "[status(n) for n in ('CapPrm', 'CapEff', 'CapBnd')]",
    "personality": "call(135, 0x0040000)",
    "set clock": "attempt(time.clock_settime, time.CLOCK_REALTIME, 1.0)",
    "set host name": "attempt(socket.sethostname, 'x')",
    # limits
    "open files": "limit('NOFILE')",
    "core": "limit('CORE')",
    "stack": "limit('STACK')",
    "processes": "limit('NPROC')",
    "file size": "limit('FSIZE')",
    "address space": "limit('AS')",
    "data": "limit('DATA')",
    "locked memory": "limit('MEMLOCK')",
    "message queues": "limit('MSGQUEUE')",
    "pending signals": "limit('SIGPENDING')",
    "priority": "[limit('NICE'), limit('RTPRIO')]",
    "raise a limit": "attempt(resource.setrlimit, resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))",
    "umask": "os.umask(0o22)",
    # files
    "root's folders": "sorted(os.listdir('/'))",
    "root": "mode('/')",
    "/tmp": "mode('/tmp')",
    "/scratch": "mode('/scratch')",
    "/outputs": "mode('/outputs')",
    "/inputs": "mode('/inputs')",
    "/inputs/a": "mode('/inputs/a')",
    "/dev/shm": "mode('/dev/shm')",
    "/etc/hosts' mode": "mode('/etc/hosts')",
    "image's file": "mode('/usr/local/bin/python3')",
    "devices": "sorted(set(os.listdir('/dev')) - {'core'})",
    "write to root": "attempt(write, '/x')",
    "write to image": "attempt(write, '/etc/x')",
    "write to input": "attempt(write, '/inputs/a')",
    "new input": "attempt(write, '/inputs/x')",
    "give away": "write('/scratch/g') or attempt(os.chown, '/scratch/g', 0, 0)",
    "set-uid bit": "write('/scratch/s') or [attempt(os.chmod, '/scratch/s', 0o4755),"
    " oct(os.stat('/scratch/s').st_mode)]",
    "fifo": "attempt(os.mkfifo, '/scratch/fifo')",
    "device": "attempt(os.mknod, '/scratch/d', 0o060600, os.makedev(8, 0)) != 'done'",
    "hard link": "hard()",
    "sparse file": "sparse()",
    "unnamed file": "attempt(anonymous)",
    "attribute in /outputs": "tried(xattr, '/outputs')",
    "attribute in /scratch": "tried(xattr, '/scratch')",
    "run in /scratch": "tried(run_copy, '/scratch')",
    "run in /tmp": "tried(run_copy, '/tmp')",
    "long name": "attempt(write, '/scratch/' + 'n' * 256)",
    "rename": "write('/scratch/r') or tried(os.rename, '/scratch/r', '/tmp/r')",
    "directory as file": "attempt(write, '/scratch')",
    "lock": "attempt(lambda: fcntl.flock(os.open('/scratch', os.O_RDONLY), fcntl.LOCK_EX))",
    "whiteout": "[os.path.exists(p) for p in ('/gone/a', '/gone', '/kept/b', '/kept/new')]",
    "opaque folder": "sorted(os.listdir('/opaque'))",
    "list of capabilities": "sorted(os.listxattr('/capable'))",
    "file capability": "[run(['/capable', '-c', "
    '\'print(open("/proc/self/status").read().split("CapEff:")[1].split()[0])\'],'
    " env={'PYTHONHOME': '/usr/local'}).stdout.decode()]",
    "link in image": "[os.readlink('/alink'), open('/alink').read()]",
    "file of the user": "[mode('/mine'), open('/mine').read()]",
    "time of a file": "int(os.stat('/mine').st_mtime)",
    # kernel objects
    "standard input": "[stat.S_ISCHR(os.fstat(0).st_mode), os.read(0, 1).decode()]",
    "standard output": "[stat.S_ISFIFO(os.fstat(1).st_mode), os.isatty(1)]",
    "open descriptors": "sorted(map(int, os.listdir('/proc/self/fd')))[:3]",
    "terminal": "attempt(os.openpty)",
    "own terminal": "attempt(os.open, '/dev/tty', os.O_RDWR)",
    "pipe": "fcntl.fcntl(os.pipe()[0], 1032)",
    "semaphore": "shared()",
    "shared memory": "mapped()",
    "memory file": "os.write(os.memfd_create('x'), b'abc')",
    "system V memory": "libc.shmget(0, 4096, 0o1600) >= 0",
    "message queue": "call(240, b'q', os.O_CREAT | os.O_RDWR, 0o600, None)",
    "inotify": "call(294, 0)",
    "asynchronous I/O": "call(206, 8, ctypes.byref(ctypes.c_ulong(0)))",
    "ring": "call(425, 1, 0)",
    "event": "os.eventfd_read(os.eventfd(3))",
    "timer": "call(283, 1, 0)",
    "lock memory": "libc.mlock(ctypes.create_string_buffer(10), 10)",
    "user faults": "call(323, 0)",
    # the rest
    "folder": "os.getcwd()",
    "environment": "sorted(os.environ.items())",
    "page": "os.sysconf('SC_PAGE_SIZE')",
    "clock tick": "os.sysconf('SC_CLK_TCK')",
    "zone": "time.tzname",
    "encoding": "[sys.getfilesystemencoding(), sys.stdout.encoding]",
    "arguments": "open('/proc/self/cmdline').read().split('\\0')[:2]",
    "program": "os.readlink('/proc/self/exe')",
    "random": "len(os.urandom(8))",
    "no new privileges": "status('NoNewPrivs')",
    "score": "open('/proc/self/oom_score_adj').read().strip()",
    "control group": "open('/proc/self/cgroup').read().count('docker')",
    "kernel setting": "attempt(write, '/proc/sys/kernel/hostname')",
}
"""Name of each program and its expression; the value goes through JSON."""

MAIN = (
    PRELUDE
    + """
found = {}
for name, text in json.load(open("/inputs/programs")).items():
    read, end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        try:
            value = eval(text)
        except BaseException as error:
            value = f"{type(error).__name__}: {error}"
        os.write(end, json.dumps(value, default=str).encode())
        os._exit(0)
    os.close(end)
    parts = []
    while part := os.read(read, 65536):
        parts.append(part)
    os.close(read)
    os.waitpid(pid, 0)
    found[name] = b"".join(parts).decode()
open("/outputs/found", "w").write(json.dumps(found))
"""
)
