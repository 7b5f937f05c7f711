"""No-op tasks on Dask's distributed scheduler, one worker process per core on loopback.

Its web pages use any free port.
"""

import os

import dask
import drive
from distributed import Client, Future, LocalCluster


def noop() -> None:
    """Does nothing."""


def collect(future: Future) -> None:
    """Takes its result, so that the scheduler can forget it."""
    future.result()


def main() -> None:
    """The program."""
    told = drive.options()
    dask.config.set(
        {"distributed.admin.log-format": "%(message)s", "temporary-directory": told.folder}
    )
    cores = os.cpu_count() or 1
    with (
        LocalCluster(
            n_workers=cores,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=40,
        ) as cluster,
        Client(cluster) as client,
    ):
        # Not `pure`: Dask would compute one task and answer the others from it.
        drive.tell(
            drive.measure(lambda: client.submit(noop, pure=False), collect, told.count, told.calm)
        )


if __name__ == "__main__":
    main()
