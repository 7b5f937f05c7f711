"""`quorate node selftest`: tries this machine's hardware, and prints a report to send."""

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from quorate_node.cli import options
from quorate_node.executors.selection import local_executors
from quorate_node.machine.nvml_probe import NvmlProbe
from quorate_node.status import gpu_selftest
from quorate_node.status.gpu_container import IMAGE
from quorate_node.status.gpu_selftest import Bench, Report, selftest
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.clock import SystemClock
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_USAGE, say_error


def selftest_command(
    gpu: Annotated[bool, typer.Option("--gpu", help="Try the GPUs of this machine")] = False,
    image: Annotated[
        str, typer.Option("--image", help="Image with Python and glibc: a name or an archive")
    ] = IMAGE,
    as_json: options.AsJson = False,
) -> None:
    """Try GPUs, driver, containers and kernels, and print a remedy for each failure. Exit 3 when
    something fails. Needs no provider and no account.
    """
    if not gpu:
        say_error("node", "selftest: say what to try: --gpu", EXIT_USAGE)
        raise typer.Exit(EXIT_USAGE)
    try:
        archive = gpu_selftest.check_image(image)
        with TemporaryDirectory() as folder:
            report = asyncio.run(selftest(_bench(Path(folder), image, archive)))
    except (Refused, Unavailable) as error:
        options.fail(error)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        for line in report_lines(report):
            typer.echo(line)
    if not report.is_good:
        failed = next(step for step in report.steps if not step.ok)
        typer.echo(f"node: selftest: {failed.name}: {failed.detail}", err=True)
        raise typer.Exit(EXIT_REFUSED)


def report_lines(report: Report) -> list[str]:
    """One line a step, and a remedy where it is another than the line above has."""
    lines: list[str] = []
    said = ""
    for step in report.steps:
        sign = "ok " if step.ok else "NO "
        lines.append(f"{sign} {step.name:12} {step.detail} ({step.seconds:.1f} s)")
        if step.remedy not in ("", said):
            lines.append(f"                 fix: {step.remedy}")
        said = step.remedy
    return lines


def _bench(folder: Path, image: str, archive: Path | None) -> Bench:
    async def named() -> Path | str:
        if archive is not None:
            return archive
        # Docker's SDK is imported only if it is used.
        from quorate_node.executors.docker.engine_connection import digest_name

        return await asyncio.to_thread(digest_name, image)

    # GPU jobs never run in gVisor (2.27).
    sandbox = Sandbox.DOCKER_RUNC.value
    return Bench(
        probe=NvmlProbe(),
        sandboxes=lambda: local_executors(folder / "leases", sandbox),
        clock=SystemClock(),
        image=named,
        folder=folder,
    )
