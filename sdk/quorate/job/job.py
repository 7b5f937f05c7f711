"""What a Python caller writes down: one job, in plain values. Nothing here touches disk or
network; `packing` turns it into a spec.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorate.errors import UsageError
from quorate.job.gpu_text import parse_gpu
from quorate.job.host_class import parse_host_class
from quorate.job.quantities import (
    Money,
    parse_amount,
    parse_cores,
    parse_duration,
    parse_price,
    parse_size,
)
from quorate_protocol.limits import EXECUTIONS_MAX
from quorate_protocol.messages.job_spec import MIB, EnvVar, Resources
from quorate_protocol.units import Amount, Hash32, Price, Seconds, VerifyTier

FEE_BPS_DEFAULT = 1_000
TIERS = {
    tier.name.lower(): tier
    for tier in (VerifyTier.LEAN, VerifyTier.STANDARD, VerifyTier.STRICT, VerifyTier.CRITICAL)
}
_SHM = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    image: CID of a docker archive, `name@sha256:digest`, or the path of a local archive
    (uploaded when the store lacks it). command: words (argv), or one string for the image's
    shell; empty runs the image's own command. inputs: mount -> local path (str or Path that
    exists) or CID; below /inputs. `input_sizes` bounds inputs named by CID. resources: `gpu`,
    `cpu`, `memory`, `disk` (output), `shm_size` as in the job file, or a ready `Resources`.
    host_class: only on this class of machines (`quorate classes`), by name or id; "" = any class
    of many owners of long standing. sandbox: what must stand between the job and the machine
    (docker-runc, docker-runsc, bwrap); "" = whatever the provider has. max_price: US dollars per
    GPU-hour (per slot-hour for CPUs); budget: caps everything, default the worst case at that
    price.
    """

    image: str | Path
    max_price: Money
    command: Sequence[str] | str = ()
    name: str = "job"
    inputs: Mapping[str, str | Path] = field(default_factory=dict)
    input_sizes: Mapping[str, str | int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = "/"
    sandbox: str = ""
    host_class: str = ""
    resources: Mapping[str, str | int] | Resources = field(default_factory=dict)
    max_duration: str | int = "15m"
    budget: Money | None = None
    verify: str = "standard"
    max_executions: int = EXECUTIONS_MAX
    max_fee_bps: int = FEE_BPS_DEFAULT
    accept_unverified: bool = False
    accept_unwitnessed: bool = False
    outputs: Path | None = None

    def __post_init__(self) -> None:
        """Reads every quantity once, so that a job that exists is well formed as far as can be
        told without looking at files.
        """
        self.price()
        self.seconds()
        self.tier()
        self.limits()
        self.host()
        if self.budget is not None:
            self.budget_amount()
        if not 1 <= self.max_executions <= EXECUTIONS_MAX:
            raise UsageError(f"max_executions: {self.max_executions} must be 1 to {EXECUTIONS_MAX}")

    def price(self) -> Price:
        """Millionths of a dollar per hour."""
        return parse_price(self.max_price, "max_price")

    def budget_amount(self) -> Amount | None:
        """Millionths of a dollar, None when the worst case decides."""
        return None if self.budget is None else parse_amount(self.budget, "budget")

    def seconds(self) -> Seconds:
        """Longest run time."""
        return parse_duration(self.max_duration, "max_duration")

    def tier(self) -> VerifyTier:
        """Verification tier."""
        if self.verify not in TIERS:
            raise UsageError(
                f"verify: {str(self.verify)[:64]!r} is not offered; choose one of "
                f"{', '.join(TIERS)}"
            )
        return TIERS[self.verify]

    def host(self) -> Hash32:
        """Id of the host class, zero for any."""
        return parse_host_class(self.host_class)

    def argv(self) -> tuple[str, ...]:
        """Words, when the command is given as such."""
        return () if isinstance(self.command, str) else tuple(self.command)

    def shell(self) -> str:
        """Command line for the image's sh, "" when the command is given in words."""
        return self.command if isinstance(self.command, str) else ""

    def variables(self) -> tuple[EnvVar, ...]:
        """Environment sorted by name, as the spec wants it."""
        return tuple(EnvVar(name, value) for name, value in sorted(self.env.items()))

    def limits(self) -> Resources:
        """Limits of one execution."""
        if isinstance(self.resources, Resources):
            return self.resources
        return parse_resources(self.resources)


def parse_resources(given: Mapping[str, str | int]) -> Resources:
    """Resources of the job file's words; whatever is not named keeps the protocol's default."""
    unknown = sorted(given.keys() - {"gpu", "cpu", "memory", "disk", "shm_size"})
    if unknown:
        raise UsageError(
            f"resources.{unknown[0]}: unknown; known are cpu, disk, gpu, memory, shm_size"
        )
    default = Resources()
    memory = _size(given, "memory", default.memory_bytes)
    return Resources(
        cpu_millis=parse_cores(given["cpu"], "resources.cpu")
        if "cpu" in given
        else default.cpu_millis,
        memory_bytes=memory,
        shm_bytes=_size(given, "shm_size", min(_SHM, memory)),
        scratch_bytes=default.scratch_bytes,
        output_bytes=_size(given, "disk", default.output_bytes),
        gpu=parse_gpu(given["gpu"], "resources.gpu") if "gpu" in given else None,
    )


def _size(given: Mapping[str, str | int], key: str, default: int) -> int:
    if key not in given:
        return default
    value = given[key]
    # "64GB.." is how dstack writes a lower bound; an execution gets exactly what it asks for, so
    # the two mean the same.
    return parse_size(
        value.removesuffix("..") if isinstance(value, str) else value, f"resources.{key}"
    )
