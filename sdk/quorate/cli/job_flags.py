"""The flags of `quorate run` and `quorate image check`, and the job that they describe."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from quorate.base.errors import UsageError
from quorate.job.job import IPFS_GATEWAY, Job
from quorate.job.source_names import default_mount, is_source
from quorate_protocol.messages.order_terms import NAME_DEFAULT
from quorate_runtime.process.settings_flags import Option

PRICE_MISSING = (
    "--max-price is missing; give the most you pay per hour, such as --max-price 0.50 "
    "(see `quorate offers`)"
)


class JobFlags(Struct, frozen=True):
    """The flags of `quorate run`. `quorate image check` has those of CHECKED."""

    entrypoint: Annotated[str | None, Option("Instead of the image's ENTRYPOINT; '' for none.")] = (
        None
    )
    max_price: Annotated[str, Option("Highest price in USD per hour, such as 0.50.")] = ""
    budget: Annotated[
        str | None, Option("Most USD for the whole run; default: the worst case.")
    ] = None
    gpu: Annotated[str | None, Option('GPUs, such as "H100:2" or "24GB..:1".')] = None
    min_compute_capability: Annotated[
        str | None, Option('Least compute capability of the GPUs, such as "8.9".')
    ] = None
    cpu: Annotated[str | None, Option("Cores.")] = None
    memory: Annotated[str | None, Option('Memory, such as "8GB".')] = None
    disk: Annotated[
        str | None, Option('Space for outputs, and as much for /scratch and /tmp, such as "20GB".')
    ] = None
    outputs: Annotated[str | None, Option('Space for outputs, such as "20GB".', "--outputs")] = None
    tmp: Annotated[
        str | None, Option('Space for /scratch (HOME) and /tmp, such as "20GB".', "--tmp")
    ] = None
    shm: Annotated[str | None, Option('Space for /dev/shm, such as "1GB".', "--shm")] = None
    max_duration: Annotated[
        str | None,
        Option('Longest run time; default: "15m", of a rental "30d".', "--max-duration --ttl"),
    ] = None
    start_within: Annotated[
        str | None, Option('How long it may wait for a provider, such as "10m".')
    ] = None
    file: Annotated[
        list[str] | None,
        Option(
            "Python program to run with the image's python3; the words after -- are its "
            "arguments. Repeat it for files and folders that lie beside it."
        ),
    ] = None
    requirements: Annotated[
        Path | None,
        Option(
            "Requirements file; its wheels are chosen here and sent along.", "--requirements -r"
        ),
    ] = None
    workdir: Annotated[
        Path | None,
        Option(
            "Folder to send along and to start in; .quorateignore or .gitignore name what stays."
        ),
    ] = None
    python: Annotated[
        str, Option('The image\'s Python, such as "3.12", if the image does not say it.')
    ] = ""
    build: Annotated[
        Path | None,
        Option("Dockerfile, or its folder, that the local engine builds; it replaces IMAGE."),
    ] = None
    sweep: Annotated[
        list[str] | None,
        Option(
            "KEY=VALUE,VALUE,...: one run for each value, as a variable and for {KEY} in the "
            "command. Repeat it for every combination."
        ),
    ] = None
    seeds: Annotated[
        int, Option("So many runs of each combination, with seed 0, 1, ... as {seed} and variable.")
    ] = 0
    inputs: Annotated[
        list[str] | None,
        Option(
            "NAME=PATH, NAME=CID, or a source with or without NAME=: hf://org/model[@revision], "
            "https://host/file, s3://bucket/key; mounted at /inputs/NAME. Repeatable.",
            "--input -i",
        ),
    ] = None
    s3_endpoint: Annotated[
        str, Option("S3-compatible store of s3:// inputs; default: AWS_ENDPOINT_URL, or Amazon's.")
    ] = ""
    env: Annotated[list[str] | None, Option("NAME=value.", "--env -e")] = None
    name: Annotated[str, Option("Name of the run.")] = NAME_DEFAULT
    verify: Annotated[
        str,
        Option(
            "Verification tier: lean, standard, strict or critical; quorum-2, two equal results; "
            "or unverified, one result that nobody checks."
        ),
    ] = "standard"
    speed: Annotated[
        str, Option("fast, with --verify quorum-2: start both executions at once.")
    ] = ""
    compare: Annotated[
        str, Option("How results are compared: exact, numeric or text, within --tolerance.")
    ] = "exact"
    include: Annotated[
        list[str] | None, Option("Pattern of output files that numeric and text compare.")
    ] = None
    tolerance: Annotated[str, Option('How far results may be apart, such as "0.001".')] = "0"
    output: Annotated[Path | None, Option("New directory for the output.", "--output -o")] = None
    pool: Annotated[
        str, Option("Only this pool of machines: a name or id from `quorate pools`.")
    ] = ""
    attestation: Annotated[
        str, Option("L1: only a run slot whose GPU (or CPU) was challenged.")
    ] = ""
    determinism: Annotated[
        str, Option("What is pinned so that bits repeat: torch, jax, vllm or none.")
    ] = ""
    ipfs: Annotated[
        bool, Option("Upload nothing: image and inputs are in IPFS already.", "--ipfs")
    ] = False
    ipfs_gateway: Annotated[
        str, Option("IPFS gateway that tells the sizes of inputs named by CID.")
    ] = IPFS_GATEWAY
    gateway: Annotated[
        list[str] | None, Option("IPFS gateway that providers ask first. Repeatable.")
    ] = None
    public: Annotated[
        bool, Option("Let anybody read run, logs and output once it is final.", "--public")
    ] = False
    accept_unverified: Annotated[
        bool, Option("Accept a single unverified execution if there are too few owners.")
    ] = False
    escrow: Annotated[
        bool, Option("Hold the budget on chain, and pay when two owners agree.", "--escrow")
    ] = False


SHELL = frozenset("|&;<>$`*?~\n")
CHECKED = (
    *("file", "requirements", "workdir", "python", "build", "inputs", "env"),
    *("cpu", "memory", "disk", "outputs", "tmp", "shm", "max_duration", "determinism"),
    *("compare", "include", "tolerance"),
    *("max_price", "gpu", "min_compute_capability", "pool"),
)


def job_of(flags: JobFlags, image: str, words: list[str], max_price: str) -> Job:
    """Returns the job of a command line. With --build there is no image, so what stands in its
    place is the first word.
    """
    if not max_price:
        raise UsageError(PRICE_MISSING)
    if flags.build is not None and image:
        image, words = "", [image, *words]
    if len(words) == 1 and flags.entrypoint is None and not flags.file:
        check_command(words[0])
    names = ("gpu", "min_compute_capability", "cpu", "memory", "disk", "outputs", "tmp", "shm")
    resources = {name: getattr(flags, name) for name in names}
    return Job(
        image=Path(image) if Path(image).is_file() else image,
        build=flags.build,
        file=tuple(flags.file or ()),
        requirements=flags.requirements or (),
        workdir=flags.workdir,
        python=flags.python,
        args=tuple(words) if flags.file else (),
        command=() if flags.file else tuple(words),
        sweep=parse_sweeps(flags.sweep or ()),
        seeds=flags.seeds,
        entrypoint=None if flags.entrypoint is None else tuple(shlex.split(flags.entrypoint)),
        name=flags.name,
        inputs=parse_inputs(flags.inputs or []),
        env=dict(parse_pair(item, "--env") for item in flags.env or []),
        resources={name: value for name, value in resources.items() if value is not None},
        max_duration=flags.max_duration,
        start_within=flags.start_within,
        max_price=max_price,
        budget=flags.budget,
        verify=flags.verify,
        speed=flags.speed,
        compare=flags.compare,
        include=tuple(flags.include or ()),
        tolerance=flags.tolerance,
        accept_unverified=flags.accept_unverified,
        escrow=flags.escrow,
        outputs=flags.output,
        pool=flags.pool,
        attestation=flags.attestation,
        determinism=flags.determinism,
        source="ipfs" if flags.ipfs else "",
        ipfs_gateway=flags.ipfs_gateway,
        s3_endpoint=flags.s3_endpoint,
        gateways=tuple(flags.gateway or ()),
        public=flags.public,
    )


def check_command(word: str) -> None:
    """Raises UsageError for a whole command line in one word, which no image has as a program."""
    if " " not in word.strip():
        return
    try:
        words = shlex.split(word)
    except ValueError:
        words = []
    is_plain = words and not SHELL & set(word)
    line = shlex.join(words) if is_plain else f"sh -c {shlex.quote(word)}"
    raise UsageError(
        f"command: {word[:60]!r} is one word, and the image has no program of that name; write its "
        f"words apart: -- {line}"
    )


def parse_sweeps(given: Sequence[str]) -> dict[str, list[str]]:
    """Parses the values of --sweep. UsageError for one without values or a key given twice."""
    found: dict[str, list[str]] = {}
    for item in given:
        key, equals, values = item.partition("=")
        if not equals or not key or not values:
            raise UsageError(f"--sweep: {item[:80]!r} must have the form KEY=VALUE,VALUE,...")
        if key in found:
            raise UsageError(f"--sweep: {key} is given twice; put its values into one list")
        found[key] = values.split(",")
    return found


def parse_inputs(pairs: list[str]) -> dict[str, str | Path]:
    """Parses the values of --input. UsageError names the one that is wrong."""
    found: dict[str, str | Path] = {}
    for item in pairs:
        if is_source(item):
            name, value = default_mount(item, "--input"), item
        else:
            name, value = parse_pair(item, "--input")
        mount = name if name.startswith("/") else f"/inputs/{name}"
        if mount in found:
            raise UsageError(f"--input: {mount} is given twice")
        if not value:  # an empty path would mean the current folder, and all of it would be sent
            raise UsageError(f"--input: {item[:80]!r} has no value; write NAME=PATH or NAME=CID")
        path = Path(value).expanduser()
        is_path = not is_source(value) and (path.exists() or "/" in value)
        found[mount] = path if is_path else value
    return found


def parse_pair(text: str, option: str) -> tuple[str, str]:
    """Parses NAME=value. UsageError names the option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{option}: {text[:80]!r} must have the form NAME=value")
    return name, value
