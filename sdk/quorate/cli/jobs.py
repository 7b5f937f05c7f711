"""Commands that turn a job into a run: apply, run, plan, validate."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from quorate.base.errors import CancelledError, UsageError
from quorate.base.exit_codes import ExitCode
from quorate.cli import attach, rental_start
from quorate.cli.context import Context, JsonFlag, context_of, emit, note, run_async
from quorate.cli.destinations import check_destination, check_writable, lacking_room
from quorate.cli.job_flags import JobFlags, job_of
from quorate.cli.rendering import spec_json
from quorate.cli.sweep_runs import plan_first, run_array, summary
from quorate.client.market import Market, Plan
from quorate.client.run import Run
from quorate.images.image_python import ImagePython
from quorate.job.job import ANY_IMAGE, Job
from quorate.job.jobfile import is_service, load_tree, parse_tree
from quorate.job.packing import PackedJob, is_path, pack
from quorate.job.source_names import is_source
from quorate.job.sweep import element_job, elements
from quorate.programs.entrypoint import with_archives_entrypoint
from quorate.programs.preparation import Preparer
from quorate_content.images.image_names import parse_tagged
from quorate_runtime.process.settings_flags import with_flags

File = Annotated[Path, typer.Option("--file", "-f", help="Path of the job file (YAML).")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Submit without asking.")]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Return as soon as the order is accepted.")
]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Shows the plan, and orders nothing.")]

_NO_DIGEST = "sha256:" + "0" * 64
NOT_ORDERED = "nothing was ordered, and nothing is paid"

ImageName = Annotated[
    str, typer.Argument(help="CID, name:tag, name@sha256:..., or path of a docker archive.")
]
Command = Annotated[
    list[str] | None,
    typer.Argument(help="After `--`: the command, or arguments of the image's ENTRYPOINT."),
]


def apply(
    ctx: typer.Context,
    file: File,
    yes: Yes = False,
    detach: Detach = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="New directory for the output; wins over the file's."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Shows what a job file would cost, asks, submits it, and waits for the checked result."""
    if json and not yes:
        raise UsageError("--json cannot ask, so add --yes (see `quorate plan` for the cost first)")
    tree = load_tree(file)
    if is_service(tree):
        raise UsageError(f"type: a service has a gateway; run it by `quorate serve {file}`")
    job = parse_tree(tree, file.parent)
    job = job if output is None else replace(job, outputs=output)
    run_async(submit_job(context_of(ctx), job, yes, detach, json))


@with_flags(JobFlags)
def run(
    ctx: typer.Context,
    image: ImageName = "",
    command: Command = None,
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    json: JsonFlag = False,
    **typed: Any,
) -> None:
    """Runs a command in an image: quorate run IMAGE --max-price 0.50 -- python -c 'print(1)'."""
    flags = JobFlags(**typed)
    job = job_of(flags, image, list(command or []), flags.max_price)
    start(context_of(ctx), job, yes, dry_run, detach, json)


def start(
    context: Context, job: Job, yes: bool, dry_run: bool, detach: bool, is_json: bool
) -> None:
    """Orders the job of a command line, which asks only at a terminal. A dry run exits as its order
    would be refused.
    """
    if dry_run:
        if not run_async(plan_job(context, job, is_json)):
            raise typer.Exit(int(ExitCode.REFUSED))
        return
    agrees = yes or is_json or not sys.stdin.isatty()
    run_async(submit_job(context, job, agrees, detach, is_json))


def plan(ctx: typer.Context, file: File, json: JsonFlag = False) -> None:
    """Shows which offers a job file would meet and what it would cost; uploads and signs
    nothing.
    """
    tree = load_tree(file)
    if not is_service(tree):
        run_async(plan_job(context_of(ctx), parse_tree(tree, file.parent), json))
        return
    from quorate.cli.service_plan import plan_service
    from quorate.serving.service_file import service_of

    run_async(plan_service(context_of(ctx), service_of(tree, file.parent), json))


async def plan_job(context: Context, job: Job, is_json: bool) -> bool:
    """Returns whether an offer fits."""
    async with context.market() as market:
        if not job.is_array:
            plan = await market.plan(job)
            attach.show_plan(job, plan, is_json)
            return not plan.view.nearest
        elements = await market.array(job)
        known = sum(element.entry is not None for element in elements)
        first = await plan_first(market, elements)
        note(summary(first, len(elements), known))
        note("the plan of the first one:")
        attach.show_plan(elements[0].job, first, is_json)
        return not first.view.nearest


def validate(file: File, json: JsonFlag = False) -> None:
    """Checks a job file and the local files it names, without network."""
    tree = load_tree(file)
    if is_service(tree):
        from quorate.serving.service_file import service_of

        job, *others = service_of(tree, file.parent).jobs()
    else:
        job, others = parse_tree(tree, file.parent), []
    packed, is_final = pack_without_network(job)
    for other in others:
        pack_without_network(other)
    spec, cid = (spec_json(packed.spec), packed.spec.cid()) if is_final else (None, None)
    if json:
        emit({"valid": True, "spec": spec, "specCid": cid, "uploadBytes": packed.upload_bytes})
    else:
        typer.echo(f"{file}: valid" + (f"; spec {cid}" if cid else ""))


async def submit_job(context: Context, job: Job, yes: bool, detach: bool, is_json: bool) -> None:
    if job.is_array:
        if job.outputs is not None:
            check_writable(job.outputs)

        async def agrees() -> bool:
            return yes or await asyncio.to_thread(confirm, "Submit?")

        return await run_array(context, job, agrees, detach, is_json)
    check_destination(job.outputs)
    async with _opened(context) as market:
        if job.is_rental:
            await rental_start.check_name(market, job.name)
        handle = await _ordered(context, market, job, yes, is_json)
        if job.is_rental:
            return await rental_start.follow(context, market, handle, detach, is_json)
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
        await attach.follow(context, handle, job.outputs, is_json, is_live=True)


@asynccontextmanager
async def _opened(context: Context) -> AsyncIterator[Market]:
    """Says that nothing is ordered, if the user leaves before the market has answered."""
    is_open = False
    try:
        async with context.market() as market:
            is_open = True
            yield market
    except asyncio.CancelledError:
        if not is_open:
            note(NOT_ORDERED)
        raise


async def _ordered(context: Context, market: Market, job: Job, yes: bool, is_json: bool) -> Run:
    """Orders a job. If the user leaves meanwhile, it says whether the order is out."""
    known = {item.job_id for item in market.entries()}
    try:
        plan = await market.plan(job)
        if job.outputs is not None:
            lacking = lacking_room(job.outputs, plan.packed.spec.resources.output_bytes)
            if lacking:
                note(lacking)
        spec = plan.packed.spec.encode()
        for item in market.entries():
            if item.charged is None and item.spec == spec:
                again = context.command(f"attach 0x{item.job_id.hex()[:12]}")
                note(f"the same job is open already, and this is a second one: {again}")
        return await order(context, market, job, plan, yes, is_json)
    except asyncio.CancelledError:
        sent = [item for item in market.entries() if item.job_id not in known]
        if not sent:
            note(NOT_ORDERED)
        for item in sent:
            note(f"the order {item.name} may be out already, and then its run goes on")
            note(attach.goes_on(context, await market.run(item.job_id)))
        raise


async def order(
    context: Context, market: Market, job: Job, plan: Plan, yes: bool, is_json: bool
) -> Run:
    """Shows what a planned job would cost, asks unless `yes`, and submits it."""
    attach.check_plan(job, plan)
    if is_json:
        attach.show_owners(job, plan)
    else:
        attach.show_plan(job, plan, False)
    if not job.escrow:
        attach.check_funds(plan, await market.account(), context.command("deposit"))
    attach.suggest_escrow(job, plan)
    if not yes and not await asyncio.to_thread(confirm, attach.question(plan)):
        raise CancelledError("not submitted")
    with attach.progress(is_json) as report:
        return await market.submit(job, plan, report)


def confirm(question: str) -> bool:
    if not sys.stdin.isatty():
        note("there is no terminal to ask in; add --yes")
        return False
    return typer.confirm(question, err=True)


def pack_without_network(job: Job) -> tuple[PackedJob, bool]:
    """Returns the packed job, and whether its spec is what an order would have.

    No registry, engine or package index is asked, so that tags, builds and requirements stay open.
    """

    async def any_python(_image: str) -> ImagePython:
        return ImagePython(job.python or "3.12")

    tagged = None if is_path(job.image) else parse_tagged(str(job.image))
    if job.build is not None:
        note("build: submitting builds the image; only then the spec has a CID")
    elif tagged is not None:
        note(
            f"image: {tagged.name}:{tagged.tag} is a tag; submitting resolves it to a digest, "
            "and only then the spec has a CID"
        )
    if job.requirements:
        note("requirements: submitting resolves them; only then the spec has a CID")
    sources = [mount for mount, value in job.inputs.items() if is_source(value)]
    for mount in sources:
        note(f"inputs.{mount}: submitting asks the source; only then the spec has a CID")
    job = replace(job, inputs={**job.inputs, **dict.fromkeys(sources, ANY_IMAGE)})
    is_open = job.build is not None or tagged is not None or bool(job.requirements or sources)
    if job.build is not None or tagged is not None:
        job = replace(job, build=None, image=f"{tagged.name if tagged else 'built'}@{_NO_DIGEST}")
    job = with_archives_entrypoint(job)
    with TemporaryDirectory(prefix="quorate-") as folder:
        preparer = Preparer(Path(folder), note, any_python)
        prepared = run_async(preparer.prepare(replace(job, requirements=(), sweep={}, seeds=0)))
        if job.is_array:
            found = elements(job.sweep, job.seeds)
            note(f"sweep: {len(found)} runs; this is the spec of the first one")
            prepared = element_job(prepared, found[0], len(found))
        return pack(prepared, {}), not is_open
