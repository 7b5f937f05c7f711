"""What sandboxes need of machines, and what each is made of. `client` rents them."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quorate.base.errors import RefusedError
from quorate.job.job import Job
from quorate_protocol.refusals import MEANINGS, Code
from quorate_protocol.units import Amount

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection

DEFAULTS = {"name": "sandbox", "max_duration": "1h", "idle_stop": "10m"}
Source = str | Path | bytes


class Machine(Protocol):
    """One machine, for one sandbox: a rental. `id` names it, and no other machine ever."""

    @property
    def id(self) -> str: ...

    async def started(self) -> object:
        """Waits until it runs. Raises QuorateError if it ended before."""
        ...

    def connect(self) -> "AbstractAsyncContextManager[SSHClientConnection]": ...

    async def spent(self) -> Amount: ...

    async def why_over(self) -> str:
        """Returns "" while it goes on."""
        ...

    async def stop(self) -> None: ...


class Machines(Protocol):
    """Rents machines."""

    async def rent(self, job: Job) -> Machine: ...


@dataclass(frozen=True, slots=True)
class Template:
    """What a sandbox is made of. `files`: path in it -> local path, or bytes."""

    job: Job
    files: Mapping[str, Source] = field(default_factory=dict)


def template(
    image: str | Path, files: Mapping[str, Source] | None = None, **options: Any
) -> Template:
    """`options` are fields of `Job`. Raises UsageError that names the wrong one."""
    job = Job(image=image, type="dev-environment", **{**DEFAULTS, **options})
    return Template(job, files or {})


def over(name: str, why: str) -> RefusedError:
    code = Code.TOO_LATE
    detail = f"sandbox {name} is over: {' '.join(why.split())[:160]}"
    return RefusedError(code.value, MEANINGS[code].sentence, detail, "start another sandbox")
