"""Reads a job file: YAML to a `Job`.

Pydantic checks the file's shape, and `Job` turns units into exact integers. Every error is a
`UsageError` that names the field. Unknown keys are errors.
"""

import shlex
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quorate.base.errors import UsageError
from quorate.job.job import IPFS_GATEWAY, SERVICE, Job
from quorate.job.source_names import default_mount, is_source
from quorate.job.yaml_reader import load_yaml

# Explains an unknown key of a job file: its translation, "not offered yet", or the nearest known
# key.

ELSEWHERE: dict[str, str] = {
    "secrets": "--secret NAME=FILE on the command line, for a machine that you rent",
    "registry_auth": "--registry-login on the command line, for a machine that you rent",
    "spot_policy": "spot: true, for a machine that you rent",
    "accelerators": 'resources.gpu, such as gpu: "H100:2"',
    "use_spot": "spot: true, for a machine that you rent",
    "any_of": "one resources.gpu; alternatives are not offered",
    "ordered": "one resources.gpu; alternatives are not offered",
    "max_hourly_cost": "max_price (USD per slot-hour, at the top level)",
    "disk_size": "resources.disk",
    "cpus": "resources.cpu",
    "instance_type": "resources.gpu and resources.memory; machines are matched by their hardware",
    "cloud": "nothing: any provider whose offer fits may run it",
    "region": "nothing: regions are not offered yet",
    "zone": "nothing: regions are not offered yet",
    "image_id": "image (a CID, name@sha256:... or a local archive), at the top level",
    "autostop": "max_duration",
    "job_recovery": "retry (not offered yet); the coordinator replaces a lost execution by itself",
    "envs": "env",
    "run": "commands (for the image's shell) or command (a list of words)",
    "setup": "requirements, or an image with what setup installs; jobs have no network",
    "num_nodes": "nodes (not offered yet)",
    "file_mounts": "inputs: [{path, mount}]",
    "storage_mounts": "inputs: [{cid, mount}]",
}
"""Keys of other programs' job files, at any level -> what does the same here."""

NOT_YET = frozenset(
    {
        "files",
        "ports",
        "nodes",
        "priority",
        "tags",
        "schedule",
        "regions",
        "retry",
        "utilization_policy",
        "gang",
        "volumes",
    }
)
"""Planned keys that are not built yet. Refusing them is better than ignoring them silently."""


def explain_unknown(key: str, path: str, known: Iterable[str]) -> str:
    """Returns one sentence for a refused key. `path` is its location, "" at the top."""
    where = f"{path}.{key}" if path else key
    names = sorted(known)
    if where == "service":
        return f"{where}: only a file with `type: service` has this key; write `quorate serve FILE`"
    if not path and key in NOT_YET:
        return f"{where}: this key is not supported yet; leave it out"
    if key in ELSEWHERE and key not in names:
        return f"{where}: this key is of another program; write {ELSEWHERE[key]} instead"
    close = get_close_matches(key.lower(), names, n=1, cutoff=0.5)
    nearest = f"did you mean {close[0]!r}?" if close else f"known here are {', '.join(names)}"
    return f"{where}: unknown key; {nearest}"


Text = str
Quantity = str | int
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)


class ResourcesModel(BaseModel):
    """The keys of `resources:`."""

    model_config = _STRICT
    gpu: Quantity | None = None
    cpu: Quantity | None = None
    memory: Text | None = None
    disk: Text | None = None
    outputs: Text | None = None
    tmp: Text | None = None
    shm: Text | None = None
    min_compute_capability: Quantity | None = None
    min_cuda: Quantity | None = None


class InputModel(BaseModel):
    """One entry of `inputs:`, with exactly one of cid, path and source."""

    model_config = _STRICT
    mount: Text | None = None
    cid: Text | None = None
    # An empty path would mean the job file's whole folder.
    path: Text | None = Field(default=None, min_length=1)
    size: Quantity | None = None
    source: Text | None = Field(default=None, min_length=1)
    sha256: Text | None = None


class VerifyModel(BaseModel):
    """The keys of `verify:`."""

    model_config = _STRICT
    tier: Literal["lean", "standard", "strict", "critical", "quorum-2", "unverified"] = "standard"
    compare: Text = "exact"
    include: list[Text] = Field(default_factory=list)
    tolerance: Quantity = 0
    accept_unverified: bool = False
    accept_unwitnessed: bool = False
    max_executions: int = Field(default=7, ge=1, le=7)


class JobFileModel(BaseModel):
    """The keys of the whole file."""

    model_config = _STRICT
    type: Literal["task", "batch", "dev-environment", "service"] = "task"
    name: Text = "job"
    image: Text = ""
    build: Text | None = Field(default=None, min_length=1)
    command: list[Quantity] | Text | None = None
    commands: list[Text] | None = None
    working_dir: Text = "/"
    sandbox: Text = ""
    pool: Text = ""
    attestation: Text = ""
    determinism: Text = ""
    env: dict[str, str | int | bool] | list[Text] = Field(default_factory=dict)
    inputs: list[InputModel] = Field(default_factory=list)
    outputs: Text | None = None
    resources: ResourcesModel = ResourcesModel()
    max_duration: Quantity | None = None
    start_within: Quantity | None = None
    max_price: Quantity
    budget: Quantity | None = None
    # `for` is a word of Python.
    ahead: Quantity = Field(default="10m", alias="for")
    idle_stop: Quantity = "30m"
    access: list[Text] = Field(default_factory=list)
    home: Text = ""
    verify: VerifyModel = VerifyModel()
    speed: Literal["", "fast"] = ""
    source: Text = ""
    ipfs_gateway: Text = IPFS_GATEWAY
    s3_endpoint: Text = ""
    gateways: list[Text] = Field(default_factory=list)
    escrow: bool = False
    public: bool = False
    file: Text | list[Text] = ""
    args: list[Quantity] = Field(default_factory=list)
    entrypoint: list[Quantity] | Text | None = None
    workdir: Text | None = Field(default=None, min_length=1)
    requirements: Text | list[Text] = ""
    python: Text = ""
    sweep: dict[str, list[Quantity]] = Field(default_factory=dict)
    seeds: int = 0
    spot: bool = False
    egress: list[Text] = Field(default_factory=list)


FILE_BYTES_MAX = 512 * 1024
_MODELS: dict[str, type[BaseModel]] = {
    "": JobFileModel,
    "resources": ResourcesModel,
    "inputs": InputModel,
    "verify": VerifyModel,
}


def load_job(path: Path) -> Job:
    """Reads a job file. Relative paths in it start at the file's folder."""
    return parse_tree(load_tree(path), path.parent)


def load_tree(path: Path) -> Any:
    """Reads what a job file, or the file of a service, holds."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; give a job file, such as examples/hello.yaml"
        ) from error
    return load_yaml(data)


def is_service(tree: Any) -> bool:
    return isinstance(tree, dict) and tree.get("type") == SERVICE


def parse_job(data: bytes, folder: Path) -> Job:
    """Parses the bytes of a job file. Relative paths start at `folder`."""
    return parse_tree(load_yaml(data), folder)


def parse_tree(tree: Any, folder: Path) -> Job:
    """Parses what a job file holds. Relative paths start at `folder`."""
    if not isinstance(tree, dict):
        raise UsageError(
            "job file: it must be a mapping with at least image, command and max_price"
        )
    if isinstance(tree.get("inputs"), list):
        # A source may stand alone, because it needs no mount.
        tree["inputs"] = [{"source": item} if is_source(item) else item for item in tree["inputs"]]
    if isinstance(tree.get("verify"), str):
        tree = tree | {"verify": {"tier": tree["verify"]}}
    try:
        model = JobFileModel.model_validate(tree)
    except ValidationError as error:
        raise UsageError("\n".join(_sentences(error))) from error
    return _job(model, folder)


def _sentences(error: ValidationError) -> list[str]:
    problems = error.errors(include_url=False)
    # A misspelt key also makes the right key missing; the misspelling must be reported first.
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    sentences = [
        _sentence(problem["type"], problem["loc"], problem["msg"], problem.get("input"))
        for problem in problems[:8]
    ]
    return list(dict.fromkeys(sentences))


def _sentence(kind: str, loc: tuple[int | str, ...], message: str, given: Any) -> str:
    # Pydantic adds the branch of a union to the location, but users know only the names in their
    # file.
    names = [str(part) for part in loc]
    if kind == "extra_forbidden":
        known = _MODELS[names[0] if len(names) > 1 else ""].model_fields
        return explain_unknown(names[-1], ".".join(names[:-1]), known)
    plain = [
        name
        for name in names
        if not name.startswith(("list[", "dict[")) and name not in ("str", "int", "bool")
    ]
    where = ".".join(plain) or "job file"
    if kind == "missing":
        return f"{where}: this key is missing"
    if where == "inputs" and kind == "list_type":
        return "inputs: write a list, such as [{path: ./table.csv, mount: /inputs/table.csv}]"
    if kind == "model_type":
        return (
            f"{where}: write a mapping of {', '.join(_MODELS[plain[0]].model_fields)}, not "
            f"{str(given)[:64]!r}"
        )
    return f"{where}: {message[:1].lower() + message[1:]}, not {str(given)[:64]!r}"


def _words(given: list[str | int] | str | None) -> tuple[str, ...] | None:
    """Returns the words of a list, or of a text as a shell would split it."""
    if isinstance(given, str):
        try:
            return tuple(shlex.split(given))
        except ValueError as error:
            raise UsageError(f"entrypoint: {given[:64]!r}: {error}; write a list") from error
    return None if given is None else tuple(str(word) for word in given)


def _job(model: JobFileModel, folder: Path) -> Job:
    resources = {
        key: value for key, value in model.resources.model_dump().items() if value is not None
    }
    return Job(
        image=_image(model.image, folder),
        build=None if model.build is None else folder / model.build,
        command=_command(model),
        name=model.name,
        inputs=dict(_input(item, folder) for item in _distinct(model.inputs)),
        input_sizes={_mount(item): item.size for item in model.inputs if item.size is not None},
        env=_env(model.env),
        working_dir=model.working_dir,
        sandbox=model.sandbox,
        pool=model.pool,
        attestation=model.attestation,
        determinism=model.determinism,
        resources=resources,
        type="task" if model.type == "batch" else model.type,
        ahead=model.ahead,
        idle_stop=model.idle_stop,
        access=tuple(model.access),
        home=folder / model.home if model.home.startswith((".", "/")) else model.home,
        max_duration=model.max_duration,
        start_within=model.start_within,
        max_price=model.max_price,
        budget=model.budget,
        verify=model.verify.tier,
        speed=model.speed,
        compare=model.verify.compare,
        include=tuple(model.verify.include),
        tolerance=model.verify.tolerance,
        max_executions=model.verify.max_executions,
        accept_unverified=model.verify.accept_unverified,
        accept_unwitnessed=model.verify.accept_unwitnessed,
        outputs=folder / model.outputs if model.outputs else None,
        source=model.source,
        ipfs_gateway=model.ipfs_gateway,
        s3_endpoint=model.s3_endpoint,
        gateways=tuple(model.gateways),
        escrow=model.escrow,
        public=model.public,
        file=_paths(model.file, folder),
        args=tuple(str(word) for word in model.args),
        entrypoint=_words(model.entrypoint),
        workdir=None if model.workdir is None else folder / model.workdir,
        requirements=_requirements(model.requirements, folder),
        python=model.python,
        sweep=model.sweep,
        seeds=model.seeds,
        egress=tuple(model.egress),
        spot=model.spot,
    )


def _paths(given: str | list[str], folder: Path) -> tuple[Path, ...]:
    return tuple(folder / name for name in ([given] if isinstance(given, str) else given) if name)


def _requirements(given: str | list[str], folder: Path) -> Path | tuple[str, ...]:
    if isinstance(given, list):
        return tuple(given)
    return folder / given if given else ()


def _command(model: JobFileModel) -> str | tuple[str, ...]:
    if model.command is not None and model.commands is not None:
        raise UsageError(
            "command: give either command (words) or commands (lines for the shell), not both"
        )
    if model.commands is not None:
        return "\n".join(["set -e", *model.commands])
    if isinstance(model.command, list):
        return tuple(str(word) for word in model.command)
    return model.command or ()


def _image(text: str, folder: Path) -> str | Path:
    local = folder / text
    if not text:
        return ""
    return (
        local if text.endswith(".tar") or text.startswith((".", "/")) or local.is_file() else text
    )


def _mount(item: InputModel) -> str:
    if item.mount:
        return item.mount
    if item.source is not None:
        return default_mount(_source(item.source), "inputs.source")
    if item.path is None:
        raise UsageError("inputs.mount: give the mount, such as /inputs/scene.json")
    return f"/inputs/{Path(item.path).name}"


def _source(text: str) -> str:
    if not is_source(text):
        raise UsageError(
            f"inputs.source: {text[:80]!r}; write hf://org/model, https://host/file or "
            "s3://bucket/key, and a local file as {path: ./name}"
        )
    return text


def _distinct(items: list[InputModel]) -> list[InputModel]:
    mounts = [_mount(item) for item in items]
    twice = sorted({mount for mount in mounts if mounts.count(mount) > 1})
    if twice:
        raise UsageError(f"inputs.mount: {twice[0]} is given twice")
    return items


def _input(item: InputModel, folder: Path) -> tuple[str, str | Path]:
    if [item.cid, item.path, item.source].count(None) != 2:
        raise UsageError(f"inputs: {_mount(item)}: give exactly one of cid, path and source")
    if item.sha256 is not None:
        if item.source is None or not item.source.startswith("http"):
            raise UsageError(f"inputs: {_mount(item)}: sha256 is the hash of an https source")
        return _mount(item), f"{item.source}#sha256={item.sha256}"
    if item.source is not None:
        return _mount(item), _source(item.source)
    return _mount(item), item.cid if item.cid is not None else folder / str(item.path)


def _env(env: dict[str, str | int | bool] | list[str]) -> dict[str, str]:
    if isinstance(env, dict):
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in env.items()
        }
    pairs: dict[str, str] = {}
    for line in env:
        name, equals, value = line.partition("=")
        if not equals:
            raise UsageError(f"env: {line[:64]!r} must have the form NAME=value")
        if name in pairs:
            raise UsageError(f"env: {name[:64]} is given twice")
        pairs[name] = value
    return pairs
