"""Commands that turn a job into a run: apply, run, plan, validate."""

import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from quorate.base.errors import CancelledError, UsageError
from quorate.cli import attach
from quorate.cli.code_options import (
    Build,
    Files,
    PythonVersion,
    Requirements,
    Workdir,
    code_fields,
    pack_without_network,
)
from quorate.cli.context import Context, JsonFlag, context_of, emit, note, run_async
from quorate.cli.rendering import spec_json
from quorate.cli.sweep_runs import plan_first, run_array
from quorate.job.job import Job
from quorate.job.jobfile import load_job

PANEL = "Job arrays"
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        help="KEY=VALUE,VALUE,...: one run for each value, as a variable and for {KEY} in the "
        "command. Repeat it for every combination.",
        rich_help_panel=PANEL,
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        help="So many runs of each combination, with seed 0, 1, ... as {seed} and variable.",
        rich_help_panel=PANEL,
    ),
]


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


File = Annotated[Path, typer.Option("--file", "-f", help="Path of the job file (YAML).")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Submit without asking.")]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Return as soon as the order is accepted.")
]
Tier = Annotated[str, typer.Option(help="Verification tier: lean, standard, strict or critical.")]
ClassOption = Annotated[
    str, typer.Option(help="Only this class of machines: a name or id from `quorate classes`.")
]
AttestationOption = Annotated[
    str, typer.Option(help="L1: only a run slot whose GPU (or CPU) was challenged.")
]
GpuOption = Annotated[str | None, typer.Option(help='GPUs, such as "H100:2" or "24GB..:1".')]
CapabilityOption = Annotated[
    str | None, typer.Option(help='Least compute capability of the GPUs, such as "8.9".')
]

PRICE_MISSING = (
    "--max-price is missing; give the most you pay per hour, such as --max-price 0.50 "
    "(see `quorate offers`)"
)

IPFS_GATEWAY = "http://127.0.0.1:8080"
FromIpfs = Annotated[
    bool, typer.Option("--ipfs", help="Upload nothing: image and inputs are in IPFS already.")
]
IpfsGateway = Annotated[
    str, typer.Option(help="IPFS gateway that tells the sizes of inputs named by CID.")
]
NewFolder = Annotated[
    Path | None, typer.Option("--output", "-o", help="New directory for the output.")
]
Gateways = Annotated[
    list[str] | None,
    typer.Option("--gateway", help="IPFS gateway that providers ask first. Repeatable."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", help="NAME=PATH or NAME=CID; mounted at /inputs/NAME. Repeatable."
    ),
]
Variables = Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=value.")]
Public = Annotated[
    bool, typer.Option("--public", help="Let anybody read run, logs and output once it is final.")
]
Escrow = Annotated[
    bool, typer.Option("--escrow", help="Hold the budget on chain, and pay when two owners agree.")
]
AcceptUnverified = Annotated[
    bool, typer.Option(help="Accept a single unverified execution if there are too few owners.")
]

ImageName = Annotated[
    str, typer.Argument(help="CID, name:tag, name@sha256:..., or path of a docker archive.")
]
Entrypoint = Annotated[
    str | None, typer.Option(help="Instead of the image's ENTRYPOINT; '' for none.")
]
Command = Annotated[
    list[str] | None,
    typer.Argument(help="After `--`: the command, or arguments of the image's ENTRYPOINT."),
]
MaxPrice = Annotated[str, typer.Option(help="Highest price in USD per hour, such as 0.50.")]
Budget = Annotated[
    str | None, typer.Option(help="Most USD for the whole run; default: the worst case.")
]
Cores = Annotated[str | None, typer.Option(help="Cores.")]
Memory = Annotated[str | None, typer.Option(help='Memory, such as "8GB".')]
Disk = Annotated[str | None, typer.Option(help='Space for outputs, such as "1GB".')]
MaxDuration = Annotated[
    str, typer.Option("--max-duration", "--ttl", help='Longest run time, such as "15m".')
]
StartWithin = Annotated[
    str | None,
    typer.Option("--start-within", help='How long it may wait for a provider, such as "10m".'),
]


def apply(
    ctx: typer.Context, file: File, yes: Yes = False, detach: Detach = False, json: JsonFlag = False
) -> None:
    """Shows what a job file would cost, asks, submits it, and waits for the checked result."""
    if json and not yes:
        raise UsageError("--json cannot ask, so add --yes (see `quorate plan` for the cost first)")
    run_async(_submit(context_of(ctx), load_job(file), yes, detach, json))


def run(
    ctx: typer.Context,
    image: ImageName = "",
    command: Command = None,
    entrypoint: Entrypoint = None,
    max_price: MaxPrice = "",
    budget: Budget = None,
    gpu: GpuOption = None,
    min_compute_capability: CapabilityOption = None,
    cpu: Cores = None,
    memory: Memory = None,
    disk: Disk = None,
    max_duration: MaxDuration = "15m",
    start_within: StartWithin = None,
    file: Files = None,
    requirements: Requirements = None,
    workdir: Workdir = None,
    python: PythonVersion = "",
    build: Build = None,
    sweep: Sweeps = None,
    seeds: Seeds = 0,
    inputs: Inputs = None,
    env: Variables = None,
    name: Annotated[str, typer.Option(help="Name of the run.")] = "job",
    verify: Tier = "standard",
    output: NewFolder = None,
    host_class: ClassOption = "",
    attestation: AttestationOption = "",
    ipfs: FromIpfs = False,
    ipfs_gateway: IpfsGateway = IPFS_GATEWAY,
    gateway: Gateways = None,
    public: Public = False,
    accept_unverified: AcceptUnverified = False,
    escrow: Escrow = False,
    yes: Yes = False,
    detach: Detach = False,
    json: JsonFlag = False,
) -> None:
    """Runs a command in an image: quorate run IMAGE --max-price 0.50 -- python -c 'print(1)'."""
    image, words = _image_and_words(image, command or [], build is not None, max_price)
    job = Job(
        image=Path(image) if Path(image).is_file() else image,
        build=build,
        **code_fields(file, requirements, workdir, python, words),
        sweep=parse_sweeps(sweep or ()),
        seeds=seeds,
        entrypoint=None if entrypoint is None else tuple(shlex.split(entrypoint)),
        name=name,
        inputs=parse_inputs(inputs or []),
        env=dict(parse_pair(item, "--env") for item in env or []),
        resources=_resources(gpu, min_compute_capability, cpu, memory, disk),
        max_duration=max_duration,
        start_within=start_within,
        max_price=max_price,
        budget=budget,
        verify=verify,
        accept_unverified=accept_unverified,
        escrow=escrow,
        outputs=output,
        host_class=host_class,
        attestation=attestation,
        source="ipfs" if ipfs else "",
        ipfs_gateway=ipfs_gateway,
        gateways=tuple(gateway or ()),
        public=public,
    )
    run_async(_submit(context_of(ctx), job, yes or json or not sys.stdin.isatty(), detach, json))


def _image_and_words(
    image: str, words: list[str], is_built: bool, max_price: str
) -> tuple[str, list[str]]:
    """Returns the image and the command's words. With --build there is no image, so what stands in
    its place is the first word. UsageError if the price is missing.
    """
    if not max_price:
        raise UsageError(PRICE_MISSING)
    return ("", [image, *words]) if is_built and image else (image, words)


def _resources(
    gpu: str | None, capability: str | None, cpu: str | None, memory: str | None, disk: str | None
) -> dict[str, str]:
    names = ("gpu", "min_compute_capability", "cpu", "memory", "disk")
    given = zip(names, (gpu, capability, cpu, memory, disk), strict=True)
    return {name: value for name, value in given if value is not None}


def plan(ctx: typer.Context, file: File, json: JsonFlag = False) -> None:
    """Shows which offers a job file would meet and what it would cost; uploads and signs
    nothing.
    """

    async def work() -> None:
        job = load_job(file)
        async with context_of(ctx).market() as market:
            if not job.is_array:
                return attach.show_plan(job, await market.plan(job), json)
            elements = await market.array(job)
            note(f"sweep: {len(elements)} runs; this is the plan of the first one")
            attach.show_plan(elements[0].job, await plan_first(market, elements), json)

    run_async(work())


def validate(file: File, json: JsonFlag = False) -> None:
    """Checks a job file and the local files it names, without network."""
    packed, is_final = pack_without_network(load_job(file))
    spec, cid = (spec_json(packed.spec), packed.spec.cid()) if is_final else (None, None)
    if json:
        emit({"valid": True, "spec": spec, "specCid": cid, "uploadBytes": packed.upload_bytes})
    else:
        typer.echo(f"{file}: valid" + (f"; spec {cid}" if cid else ""))


async def _submit(context: Context, job: Job, yes: bool, detach: bool, is_json: bool) -> None:
    if job.is_array:

        async def agrees() -> bool:
            return yes or await asyncio.to_thread(_confirm, "Submit?")

        return await run_array(context, job, agrees, detach, is_json)
    if job.outputs is not None and job.outputs.exists():
        raise UsageError(f"{job.outputs} already exists; give a new directory for the output")
    async with context.market() as market:
        plan = await market.plan(job)
        attach.check_plan(job, plan)
        if is_json:
            attach.show_owners(job, plan)
        else:
            attach.show_plan(job, plan, False)
        if not job.escrow:
            attach.check_funds(plan, await market.account(), context.command("deposit"))
        attach.suggest_escrow(job, plan)
        if not yes and not await asyncio.to_thread(_confirm, attach.question(plan)):
            raise CancelledError("not submitted")
        with attach.progress(is_json) as report:
            handle = await market.submit(job, plan, report)
        if detach:
            if is_json:
                emit({"jobId": handle.id, "name": handle.name})
            else:
                typer.echo(handle.id)
            return
        note(
            f"run {handle.id[:14]} ({handle.name}); it continues if you leave: "
            f"{context.command(f'get {handle.id[:14]}')}"
        )
        await attach.follow(context, handle, job.outputs, is_json)


def _confirm(question: str) -> bool:
    if not sys.stdin.isatty():
        note("there is no terminal to ask in; add --yes")
        return False
    return typer.confirm(question, err=True)


def parse_inputs(pairs: list[str]) -> dict[str, str | Path]:
    """Parses the values of --input. UsageError names the one that is wrong."""
    found: dict[str, str | Path] = {}
    for item in pairs:
        name, value = parse_pair(item, "--input")
        mount = name if name.startswith("/") else f"/inputs/{name}"
        if mount in found:
            raise UsageError(f"--input: {mount} is given twice")
        if not value:  # an empty path would mean the current folder, and all of it would be sent
            raise UsageError(f"--input: {item[:80]!r} has no value; write NAME=PATH or NAME=CID")
        path = Path(value).expanduser()
        found[mount] = path if path.exists() or "/" in value else value
    return found


def parse_pair(text: str, option: str) -> tuple[str, str]:
    """Parses NAME=value. UsageError names the option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{option}: {text[:80]!r} must have the form NAME=value")
    return name, value
