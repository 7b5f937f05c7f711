"""`Job`: one job in plain Python values. Touches neither disk nor network; `packing` turns it into
a spec.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.base.errors import UsageError
from quorate.job.field_types import check_types
from quorate.job.pool import parse_pool
from quorate.job.quantities import (
    TEXT_MAX,
    Money,
    parse_amount,
    parse_cores,
    parse_duration,
    parse_price,
    parse_size,
    parse_tolerance,
)
from quorate.job.source_names import hub_variables, is_source, parse_source
from quorate.job.sweep import check_sweep
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.limits import EXECUTIONS_MAX, EXECUTIONS_VERIFIED
from quorate_protocol.messages import order_terms
from quorate_protocol.messages.determinism import profile_of
from quorate_protocol.messages.job_spec import (
    ALL_FILES,
    COMPARATORS,
    DURATION_MAX,
    MIB,
    Compare,
    EnvVar,
    GpuRequest,
    Input,
    JobSpec,
    Resources,
    validate,
)
from quorate_protocol.messages.order_terms import NAME_DEFAULT, OrderTerms
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import quotes
from quorate_protocol.units import (
    ZERO_HASH,
    Amount,
    Hash32,
    JobKind,
    Price,
    Seconds,
    Small,
    VerifyTier,
)
from quorate_protocol.values import replace

if TYPE_CHECKING:
    from quorate.rentals.secrets import OrderSecrets

_CAPABILITY = re.compile(r"([1-9][0-9]?)(?:\.([0-9]))?", re.ASCII)
_MODEL = re.compile(r"[A-Za-z][A-Za-z0-9 ._-]{0,63}")


def parse_gpu(value: str | int, field: str) -> GpuRequest:
    """Parses a GPU request. An empty model means any GPU with that much memory; only a lower bound
    can be given.
    """
    text = str(value).strip()
    if isinstance(value, bool) or not text:
        raise UsageError(f'{field}: write a GPU such as "H100:2", "24GB..:1" or 1')
    if text.isascii() and text.isdecimal():
        return GpuRequest(_count(text, field), "", 0)
    head, _, count_text = text.partition(":")
    count = _count(count_text, field) if ":" in text else 1
    if head[:1].isdecimal():
        low, _, high = head.partition("..")
        if high:
            raise UsageError(
                f"{field}: an upper bound of GPU memory is not supported; write {low}..:{count}"
            )
        vram = parse_size(low, field)
        return GpuRequest(count, "", vram)
    if not _MODEL.fullmatch(head):
        raise UsageError(
            f'{field}: {text[:TEXT_MAX]!r} is not a GPU; write it such as "H100:2" or "24GB..:1"'
        )
    return GpuRequest(count, head, 0)


def parse_capability(value: str | int, field: str) -> int:
    """Parses a compute capability or version such as "8.9". Returns ten times the number."""
    match = _CAPABILITY.fullmatch(str(value).strip())
    if isinstance(value, bool) or match is None:
        raise UsageError(f'{field}: write a compute capability or CUDA version such as "8.9" or 9')
    return int(match[1]) * 10 + int(match[2] or 0)


def _count(text: str, field: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= 64):
        raise UsageError(f"{field}: {text[:TEXT_MAX]!r} is not a number of GPUs; write 1 to 64")
    return int(text)


FEE_BPS_DEFAULT = 1_000
IPFS_GATEWAY = "http://127.0.0.1:8080"  # of a Kubo on this machine
SOURCES = ("", "ipfs")
ATTESTATION_LEVELS = {"": Small(0), "L0": Small(0), "L1": Small(1)}
TIERS = {
    tier.name.lower(): tier
    for tier in (VerifyTier.LEAN, VerifyTier.STANDARD, VerifyTier.STRICT, VerifyTier.CRITICAL)
} | {"quorum-2": VerifyTier.QUORUM_2, "unverified": VerifyTier.NONE}
FAST = "fast"
SPEEDS = ("", FAST)
COMPARED = {item.name.lower(): item for item in COMPARATORS}
SERVICE = "service"
TYPES = {"task": JobKind.TASK, "dev-environment": JobKind.DEV_ENVIRONMENT, SERVICE: JobKind.SERVICE}
TASK_SECONDS = 15 * 60
_SHM = 64 * MIB
ANY_IMAGE = document_cid(b"")  # stands for an image and inputs that are not read yet
_PYTHON = re.compile(r"3\.\d{1,2}", re.ASCII)
RESOURCE_KEYS = frozenset(
    {
        *("gpu", "min_compute_capability", "min_cuda", "cpu", "memory"),
        *("disk", "outputs", "tmp", "shm"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    image: CID of a docker archive, `name@sha256:digest`, `name:tag`, or the path of a local
    archive, which is uploaded if the store lacks it. A name is looked up in the local engine
    first. build: instead of an image, a Dockerfile or its folder, which the local engine builds.

    command: words (argv), or one string for the image's shell; empty runs the image's own command.

    file: a local Python program, then files and folders that lie beside it; the job runs it with
    the image's python3 and the words of `args`.

    workdir: a local folder that becomes an input and the working folder, without what its
    .quorateignore or .gitignore names.

    requirements: a requirements file, or requirement lines in a list. pip resolves them here to
    wheels for the image's Python. python: that Python, such as "3.12", if the image does not say.

    inputs: mount below /inputs -> local path, CID, or source: hf://org/model[@revision],
    https://host/file[#sha256=...], s3://bucket/key. Providers fetch a source themselves. A hub's
    repository below /inputs/hf is laid out so that `from_pretrained("org/model")` finds it.
    `input_sizes` bounds inputs given by CID.

    s3_endpoint: the S3-compatible store of s3:// sources, such as https://s3.example.

    resources: `gpu`, `min_compute_capability`, `min_cuda`, `cpu`, `memory`, `outputs` (most bytes
    below /outputs), `tmp` (of /scratch, where HOME is, and /tmp), `disk` (both of them), `shm` (of
    /dev/shm), or a `Resources`.

    pool: only this pool of machines (`quorate pools`), by name or id; "" is any pool with
    many established owners.

    attestation: "L1" asks for a run slot whose GPU (or CPU) verifiers have challenged; "" for any.

    sandbox: the required isolation (docker-runc, docker-runsc, bwrap); "" is the provider's choice.

    determinism: the profile that pins what decides bits: torch, jax, vllm or none; "" is torch with
    GPUs and none without.

    compare: exact; or numeric or text, by which results up to `tolerance` apart agree, such as
    "0.001". `include` has the patterns of the output files that then count, all by default.

    source: "ipfs" uploads nothing: image and inputs are in IPFS already, local paths only give
    their CIDs, and sizes come from root blocks read from `ipfs_gateway` or `gateways`.

    gateways: IPFS gateways that have image and inputs. Providers and jurors ask these first.

    escrow: the budget is put into an escrow of the order's own, out of the account's balance. Two
    owners with one result are then paid on chain, and no voucher is signed.

    public: anybody may read the run, its logs, receipt, spec and output once it is final. Without
    it they are private to this account, its executors and its jurors.

    verify: lean, standard, strict or critical; or quorum-2: two equal results, in any market; or
    unverified: one owner's result, which nobody checks, in any market.

    speed: "fast" with verify quorum-2 draws two owners by the beacon and starts both at once, so a
    verified result takes the time of one run. Drawn owners run it at their own price.

    entrypoint: words before `command`. None: the image's own, as docker does; () is none.

    sweep, seeds: values of variables; `Market.map` submits every combination with every seed, and
    `budget` is then for all of them together.

    type: task, or dev-environment: a machine to work on (`quorate rent`), paid by the minute. It
    has no result. Without a command it only waits. Or service: a server (`quorate serve`).

    ahead: how long a rental is paid for when it is ordered; vouchers extend it. idle_stop: it ends
    after so long without use; "0" is never. access: public SSH keys that may connect, beside this
    profile's own. home: a local folder, or the name of a kept one (`quorate stop --keep`), which
    it finds in /home.

    spot: a rental may run where its owner ends it within 30 s in need of the machine; cheaper.

    egress: hosts that a rental may reach, such as "huggingface.co", "*.hf.co", or "*" for every
    public one. secrets: what `quorate.rentals.secrets.read_secrets` read; for one rental.

    max_price: US dollars per run slot and hour. budget: US dollars for everything;
    the default is the worst case at that price. max_duration: seconds, or text such as "2h"; by
    default 15 minutes, and 30 days for a rental.

    start_within: a job that waits for a provider ends unpaid after so long; by default 10 minutes,
    an hour for the elements of a sweep, and more for image and inputs above 5.6 GB.

    Raises UsageError that names the wrong field.
    """

    image: str | Path = ""
    max_price: Money
    command: Sequence[str] | str = ()
    name: str = NAME_DEFAULT
    inputs: Mapping[str, str | Path] = field(default_factory=dict)
    input_sizes: Mapping[str, str | int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = "/"
    sandbox: str = ""
    attestation: str = ""
    determinism: str = ""
    compare: str = "exact"
    include: Sequence[str] = ()
    tolerance: Money = 0
    pool: str = ""
    resources: Mapping[str, str | int] | Resources = field(default_factory=dict)
    type: str = "task"
    ahead: str | int = "10m"
    idle_stop: str | int = "30m"
    access: Sequence[str] = ()
    home: str | Path = ""
    max_duration: str | int | None = None
    start_within: str | int | None = None
    budget: Money | None = None
    verify: str = "standard"
    speed: str = ""
    max_executions: int = EXECUTIONS_MAX
    max_fee_bps: int = FEE_BPS_DEFAULT
    accept_unverified: bool = False
    accept_unwitnessed: bool = False
    escrow: bool = False
    outputs: Path | None = None
    source: str = ""
    ipfs_gateway: str = IPFS_GATEWAY
    s3_endpoint: str = ""
    gateways: Sequence[str] = ()
    public: bool = False
    file: str | Path | Sequence[str | Path] = ()
    args: Sequence[str] = ()
    entrypoint: Sequence[str] | None = None
    workdir: str | Path | None = None
    requirements: str | Path | Sequence[str] = ()
    python: str = ""
    build: str | Path | None = None
    sweep: Mapping[str, Sequence[str | int]] = field(default_factory=dict)
    seeds: int = 0
    egress: Sequence[str] = ()
    spot: bool = False
    secrets: "OrderSecrets | None" = None

    def __post_init__(self) -> None:
        """Parses every quantity once, so that an existing job is well formed apart from its
        files.
        """
        check_types(self)
        self.price()
        self.seconds()
        self.start_seconds()
        self.tier()
        self.limits()
        self.host()
        self.attestation_level()
        if self.budget is not None:
            self.budget_amount()
        if self.source not in SOURCES:
            raise UsageError(
                f'source: {str(self.source)[:64]!r}; write "ipfs", or leave it out to upload'
            )
        if not 1 <= self.max_executions <= EXECUTIONS_MAX:
            raise UsageError(f"max_executions: {self.max_executions} must be 1 to {EXECUTIONS_MAX}")
        if self.max_executions < EXECUTIONS_VERIFIED and not self.may_be_unverified:
            raise UsageError(
                f"max_executions: {self.max_executions} must be at least {EXECUTIONS_VERIFIED}, "
                "because a third execution decides when two differ; or accept_unverified"
            )
        if self.escrow and self.may_be_unverified:
            raise UsageError(
                "escrow: an order with an escrow of its own is paid when two owners agree; leave "
                "accept_unverified and verify: unverified out"
            )
        self._check_type()
        self._check_sources()
        self._check_local_code()
        check_sweep(self.sweep, self.seeds, self.env)
        self._check_spec()

    def _check_spec(self) -> None:
        """Checks by the spec's rules what needs neither the image nor a local file.

        So nobody waits for an image or an upload first.
        """
        spec = JobSpec(
            kind=self.kind(),
            image=ANY_IMAGE,
            image_bytes=1,
            argv=self.argv(),
            shell=self.shell(),
            env=self.variables(),
            working_dir=self.working_dir,
            inputs=tuple(Input(ANY_IMAGE, mount, 1) for mount in sorted(self.inputs)),
            resources=self.limits(),
            max_duration=self.seconds(),
            compare=self.comparison(),
            sandbox=self.sandbox,
            attestation_level=self.attestation_level(),
            gateways=tuple(self.gateways),
            determinism=self.profile(),
            egress=tuple(sorted(self.egress)),
            spot=self.spot,
            seal_key=ZERO_HASH if self.secrets is None else self.secrets.seal_key,
            access=tuple(self.access),
            idle_stop=self.idle_seconds(),
        )
        try:
            validate(spec)
            order_terms.validate(OrderTerms(self.name))
        except Refused as refused:
            raise UsageError(f"job: {refused.detail}") from refused

    def _check_type(self) -> None:
        if self.type not in TYPES:
            raise UsageError(
                f"type: {str(self.type)[:64]!r} is not offered; write {', '.join(TYPES)}"
            )
        self.ahead_seconds()
        if not self.is_rental:
            if self.home:
                raise UsageError("home: only a rental keeps its /home; leave it out")
            return
        tasks = ("file", "args", "requirements", "sweep", "seeds", "escrow", "speed", "outputs")
        for name in tasks:
            if getattr(self, name):
                raise UsageError(f"{name}: a {self.type} has no result; leave it out")
        is_exact = self.comparison() == Compare()
        if not is_exact or self.verify not in ("standard", "unverified"):
            name = "verify" if is_exact else "compare"
            raise UsageError(f"{name}: a {self.type} has no result to verify; leave it out")

    def _check_sources(self) -> None:
        named = {mount: str(value) for mount, value in self.inputs.items() if is_source(value)}
        for mount, value in named.items():
            parse_source(value, f"inputs.{mount}")
            if mount in self.input_sizes:
                raise UsageError(f"inputs.{mount}: a source says its size itself; leave size out")
        if self.s3_endpoint and not self.s3_endpoint.startswith(("http://", "https://")):
            raise UsageError(f"s3_endpoint: {self.s3_endpoint[:64]!r}; write https://s3.example")
        if named and self.escrow:
            raise UsageError(
                "escrow: an order with an escrow of its own takes no input from a source "
                f"({next(iter(named.values()))[:80]}); give a local path, or leave escrow out"
            )
        if named and self.source:
            raise UsageError(
                "source: with ipfs nothing is uploaded, and the list of a source's files is; "
                "leave source out, and name gateways instead"
            )

    def _check_local_code(self) -> None:
        if (self.build is None) == (self.image == ""):
            raise UsageError(
                "image: give an image, or build (a Dockerfile or its folder), and not both"
            )
        if self.file and self.command:
            raise UsageError(
                "command: with file the job runs that program; write its words as args"
            )
        if self.args and not self.file:
            raise UsageError(
                "args: they are the words of a program that file names; file is missing"
            )
        if self.python and not _PYTHON.fullmatch(self.python):
            raise UsageError(f'python: {str(self.python)[:64]!r}; write a version such as "3.12"')
        if self.source and self.has_local_code:
            raise UsageError(
                "source: with ipfs nothing is uploaded, so file, workdir and requirements are not "
                "possible; put the code into IPFS and name it in inputs"
            )

    @property
    def is_array(self) -> bool:
        """Returns whether the job has several elements."""
        return bool(self.sweep or self.seeds)

    @property
    def has_command(self) -> bool:
        """Returns whether the job itself says what to run."""
        return bool(self.command or self.entrypoint or self.file or self.is_rental)

    @property
    def is_rental(self) -> bool:
        """Returns whether it is a machine for a time, without a result."""
        return self.kind().is_rental

    def kind(self) -> JobKind:
        """Returns the kind of its spec."""
        return TYPES.get(self.type, JobKind.TASK)

    def ahead_seconds(self) -> Seconds:
        """Returns for how many seconds a rental is paid when it is ordered."""
        return parse_duration(self.ahead, "for")

    def idle_seconds(self) -> Seconds:
        """Returns after how many seconds without use a rental ends; 0 is never."""
        if not self.is_rental or self.type == SERVICE or str(self.idle_stop) == "0":
            return Seconds(0)
        return parse_duration(self.idle_stop, "idle_stop")

    @property
    def has_local_code(self) -> bool:
        """Returns whether files of this machine must become inputs first."""
        return bool(self.file or self.requirements) or self.workdir is not None

    def files(self) -> tuple[Path, ...]:
        """Returns the program and what lies beside it, or ()."""
        given = [self.file] if isinstance(self.file, str | Path) else list(self.file)
        return tuple(Path(item).expanduser() for item in given if item != "")

    @property
    def is_in_ipfs(self) -> bool:
        """Returns whether the sizes of CIDs come from root blocks at IPFS gateways."""
        return bool(self.source or self.gateways)

    def price(self) -> Price:
        """Returns the highest price per hour in millionths of a dollar."""
        return parse_price(self.max_price, "max_price")

    def budget_amount(self) -> Amount | None:
        """Returns the budget in millionths of a dollar, or None for the worst case."""
        return None if self.budget is None else parse_amount(self.budget, "budget")

    def seconds(self) -> Seconds:
        """Returns the longest run time in seconds."""
        if self.max_duration is None:
            return Seconds(DURATION_MAX if self.is_rental else TASK_SECONDS)
        return parse_duration(self.max_duration, "max_duration")

    def start_seconds(self, fetched: int = 0) -> Seconds:
        """Returns how long it may wait for a provider that fetches so many bytes, in seconds."""
        if self.start_within is None:
            return quotes.start_within_default(fetched)
        return parse_duration(self.start_within, "start_within")

    def tier(self) -> VerifyTier:
        """Returns the verification tier."""
        if self.is_rental:
            return VerifyTier.NONE
        if self.verify not in TIERS:
            raise UsageError(
                f"verify: {str(self.verify)[:64]!r} is not offered; choose one of "
                f"{', '.join(TIERS)}"
            )
        if self.speed not in SPEEDS:
            raise UsageError(f"speed: {str(self.speed)[:64]!r}; write {FAST}, or leave it out")
        if self.speed and self.verify != "quorum-2":
            raise UsageError(
                f"speed: {FAST} starts two executions at once, so it needs verify: quorum-2, not "
                f"{self.verify}"
            )
        return VerifyTier.QUORUM_2_FAST if self.speed else TIERS[self.verify]

    @property
    def is_unverified(self) -> bool:
        """Returns whether one owner runs it, and nobody checks the result."""
        return self.tier() is VerifyTier.NONE

    @property
    def may_be_unverified(self) -> bool:
        """Returns whether its order accepts a result that nobody checks."""
        return self.accept_unverified or self.is_unverified

    def host(self) -> Hash32:
        """Returns the id of the pool, or zero for any."""
        return parse_pool(self.pool)

    def attestation_level(self) -> Small:
        """Returns the least attestation level of the run slot."""
        if self.attestation not in ATTESTATION_LEVELS:
            raise UsageError(
                f"attestation: {str(self.attestation)[:64]!r}; write L1 for a run slot whose GPU "
                "was challenged, or leave it out"
            )
        return ATTESTATION_LEVELS[self.attestation]

    def comparison(self) -> Compare:
        """Returns how results are compared."""
        comparator = COMPARED.get(self.compare)
        if comparator is None:
            raise UsageError(
                f"compare: {str(self.compare)[:64]!r}; choose one of {', '.join(COMPARED)}"
            )
        tolerance = parse_tolerance(self.tolerance, "tolerance")
        return Compare(comparator, tuple(self.include) or ALL_FILES, tolerance)

    def profile(self) -> str:
        """Returns the determinism profile as a spec names it: "" for the default."""
        default = profile_of("", needs_gpu=self.limits().gpu is not None)
        return "" if self.determinism == default.name else self.determinism

    def argv(self) -> tuple[str, ...]:
        """Returns the command's words, or () if it is a shell line."""
        return () if isinstance(self.command, str) else tuple(self.command)

    def shell(self) -> str:
        """Returns the command line for the image's shell, or "" if the command is words."""
        return self.command if isinstance(self.command, str) else ""

    def variables(self) -> tuple[EnvVar, ...]:
        """Returns the environment sorted by name, as the spec requires."""
        given = {**hub_variables(self.inputs), **self.env}
        return tuple(EnvVar(name, value) for name, value in sorted(given.items()))

    def limits(self) -> Resources:
        """Returns the resources of one execution."""
        if isinstance(self.resources, Resources):
            return self.resources
        return parse_resources(self.resources)


def parse_resources(given: Mapping[str, str | int]) -> Resources:
    """Parses the job file's resources. Those not given keep the protocol's default."""
    unknown = sorted(given.keys() - RESOURCE_KEYS)
    if "shm_size" in given:
        raise UsageError("resources.shm_size: this key is called shm now")
    if unknown:
        raise UsageError(
            f"resources.{unknown[0]}: unknown key; known are {', '.join(sorted(RESOURCE_KEYS))}"
        )
    default = Resources()
    memory = _size(given, "memory", default.memory_bytes)
    output = _size(given, "disk", default.output_bytes)
    scratch = _size(given, "disk", default.scratch_bytes)
    return Resources(
        cpu_millis=parse_cores(given["cpu"], "resources.cpu")
        if "cpu" in given
        else default.cpu_millis,
        memory_bytes=memory,
        shm_bytes=_size(given, "shm", min(_SHM, memory)),
        scratch_bytes=_size(given, "tmp", scratch),
        output_bytes=_size(given, "outputs", output),
        gpu=_gpu(given),
    )


def _gpu(given: Mapping[str, str | int]) -> GpuRequest | None:
    fields = ("min_compute_capability", "min_cuda")
    if "gpu" not in given:
        for field in fields:
            if field in given:
                raise UsageError(f'resources.{field}: it needs a gpu, such as gpu: "1"')
        return None
    capability, cuda = (
        parse_capability(given[field], f"resources.{field}") if field in given else 0
        for field in fields
    )
    request = parse_gpu(given["gpu"], "resources.gpu")
    return replace(request, compute_capability_min=capability, cuda_min=cuda)


def _size(given: Mapping[str, str | int], key: str, default: int) -> int:
    if key not in given:
        return default
    value = given[key]
    # dstack writes a lower bound as "64GB..". An execution gets exactly what it asks for, so both
    # mean the same.
    return parse_size(
        value.removesuffix("..") if isinstance(value, str) else value, f"resources.{key}"
    )
