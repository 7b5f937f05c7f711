"""No-op tasks on Ray: one local node, one worker process per core, no dashboard, no statistics."""

import os

import drive
import ray


@ray.remote
def noop() -> None:
    """Does nothing."""


def main() -> None:
    """The program."""
    told = drive.options()
    cores = os.cpu_count() or 1
    ray.init(
        num_cpus=cores,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=256 << 20,
        _node_ip_address="127.0.0.1",
        _temp_dir=told.folder,
    )
    try:
        drive.tell(drive.measure(noop.remote, ray.get, told.count, told.calm))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
