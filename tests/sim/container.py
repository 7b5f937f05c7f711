"""A container of the simulator."""

from dataclasses import dataclass

from quorate_protocol.messages.job_spec import JobSpec


@dataclass(slots=True)
class Container:
    """One task on the machine. It runs until `ends_ms`, even if the daemon dies."""

    spec: JobSpec
    started_ms: int
    ends_ms: int
    gpus: tuple[str, ...] = ()
    is_stopped: bool = False
    has_lost_gpu: bool = False  # so its output is wrong
