"""Commands that use a rental: shell, cp, forward, jupyter, ssh-config, stream.

Each runs OpenSSH's own program, whose ProxyCommand is `quorate stream`. That one also lets the
rental go on, so plain `ssh` does too.
"""

import contextlib
import secrets
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from quorate import rentals
from quorate.base.errors import ProfileError, QuorateError, UnavailableError, UsageError
from quorate.cli import openssh
from quorate.cli import stream as streams
from quorate.cli.context import Context, JsonFlag, context_of, emit, note, run_async
from quorate.cli.failures import NOT_FOUND
from quorate.cli.rent import RentalName
from quorate.cli.rental_start import prepare
from quorate.client.rental import Rental
from quorate.rentals.ssh_files import SshFiles

JUPYTER_PORT = 8888
JUPYTER_SECONDS = 60.0
JUPYTER = Path(rentals.__file__).with_name("start_jupyter.sh")


def _prepared(context: Context, name: str) -> Rental:
    async def work() -> Rental:
        async with context.market() as market:
            rental = await market.rental(name)
            if rental.lacks_secrets():
                note("it waits for its secrets: this sends them, and waits for the machine")
                await rental.started()
            await prepare(context, market, rental)
            return rental

    return run_async(work())


def shell(
    ctx: typer.Context,
    name: RentalName,
    command: Annotated[
        list[str] | None, typer.Argument(help="After `--`: a command instead of a shell.")
    ] = None,
) -> int:
    """Opens a shell in a rental, or runs a command in it."""
    rental = _prepared(context_of(ctx), name)
    words = openssh.words_of(rental, "ssh", rental.host.alias, *(command or []))
    status = openssh.call(rental, words)
    if status == NOT_FOUND:
        note("127: the image has no such program; without /bin/sh it can run none")
    return status


def cp(
    ctx: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FROM... TO", help="Paths; of a rental as NAME:/home/file."),
    ],
) -> int:
    """Copies files and folders into a rental, or out of it."""
    named = [item.partition(":")[0] for item in paths if _is_remote(item)]
    if len(paths) < 2 or not named or len(set(named)) > 1:
        raise UsageError("cp: name one rental, such as `quorate cp data.csv NAME:/home/`")
    rental = _prepared(context_of(ctx), named[0])
    alias = rental.host.alias
    words = [
        f"{alias}:{item.partition(':')[2]}" if _is_remote(item) else _local(item) for item in paths
    ]
    openssh.need("scp")
    return openssh.call(rental, openssh.words_of(rental, "scp", "-r", *words))


def _is_remote(item: str) -> bool:
    name, colon, _ = item.partition(":")
    return bool(colon and name) and "/" not in name and not Path(item).exists()


def _local(item: str) -> str:
    """scp must not read a local name as an option or as a host."""
    return item if item.startswith("/") else f"./{item}"


def forward(
    ctx: typer.Context,
    name: RentalName,
    ports: Annotated[
        list[str], typer.Argument(metavar="PORT[:LOCAL]...", help="Such as 8888 or 8888:9000.")
    ],
) -> int:
    """Makes ports of a rental's programs reachable on this machine, until Ctrl-C."""
    pairs = [_ports(item) for item in ports]
    for remote, local in pairs:
        _must_be_free(local, f"{remote}:{_other(local)}")
    rental = _prepared(context_of(ctx), name)
    words = openssh.words_of(rental, "ssh", "-N", "-o", "ExitOnForwardFailure=yes")
    for remote, local in pairs:
        words += ["-L", f"127.0.0.1:{local}:127.0.0.1:{remote}"]
        note(f"http://127.0.0.1:{local} is port {remote} of {name}; Ctrl-C ends it")
    return openssh.call(rental, [*words, rental.host.alias])


def _ports(text: str) -> tuple[int, int]:
    remote, colon, local = text.partition(":")
    numbers = [remote, local if colon else remote]
    if not all(item.isascii() and item.isdecimal() and len(item) <= 5 for item in numbers):
        raise UsageError(f"port: {text[:40]!r} is no port; write 8888, or 8888:9000")
    found = int(numbers[0]), int(numbers[1])
    if not all(1 <= item <= 65_535 for item in found):
        raise UsageError(f"port: {text[:40]!r} must be 1 to 65535")
    return found


def _other(port: int) -> int:
    return port % 60_000 + 1_024


def _must_be_free(port: int, instead: str) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise UsageError(
            f"port: {port} of this machine cannot be used ({error.strerror}); name another one, "
            f"such as {instead}"
        ) from error


def jupyter(
    ctx: typer.Context,
    name: RentalName,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = (
        JUPYTER_PORT
    ),
    json: JsonFlag = False,
) -> None:
    """Starts Jupyter in a rental, forwards its port, and prints its address. It survives Ctrl-C."""
    _must_be_free(port, f"--port {_other(port)}")
    rental = _prepared(context_of(ctx), name)
    made = secrets.token_hex(24)  # one that begins with a dash would be an option of the shell
    try:
        words = f"/bin/sh -s {made} {JUPYTER_PORT}"
        token = openssh.output(rental, words, JUPYTER.read_bytes()).decode().split()[-1]
    except UsageError as error:
        if "no jupyter" not in str(error):
            raise
        raise UsageError(
            f"rental {name}: the image has no jupyter; `quorate shell {name} -- pip install "
            "jupyterlab` installs it where the rental has egress, or rent another image"
        ) from error
    ssh = openssh.words_of(rental, "ssh", "-N", "-o", "ExitOnForwardFailure=yes")
    ssh += ["-o", "LogLevel=ERROR"]  # it tries the port until Jupyter has opened it
    ssh += ["-L", f"127.0.0.1:{port}:127.0.0.1:{JUPYTER_PORT}", rental.host.alias]
    with _running(ssh) as forwarded:
        _await_jupyter(port, forwarded, name)
        url = f"http://127.0.0.1:{port}/?token={token}"
        emit({"url": url}) if json else typer.echo(url)
        note("Ctrl-C ends the forwarding; Jupyter goes on until the rental ends")
        with contextlib.suppress(KeyboardInterrupt):
            forwarded.wait()


@contextlib.contextmanager
def _running(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _await_jupyter(port: int, forwarded: subprocess.Popen[bytes], name: str) -> None:
    limit = time.monotonic() + JUPYTER_SECONDS
    while time.monotonic() < limit and forwarded.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=5).close()
            return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.5)
    raise UnavailableError(
        f"rental {name}: Jupyter does not answer; see `quorate shell {name} -- cat "
        "'$HOME/.quorate/jupyter.log'`"
    )


def ssh_config(
    ctx: typer.Context,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print it, and leave ~/.ssh/config as it is.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Writes the configuration by which plain ssh, scp and editors reach your rentals."""

    async def work() -> None:
        context = context_of(ctx)
        async with context.market() as market:
            for entry in market.open_rentals():
                rental = await market.rental(entry.job_id)
                with contextlib.suppress(QuorateError):  # it may not run yet
                    await rental.pin()
            hosts = openssh.write_config(context, market)
        files, user_config = SshFiles(context.home_in_use()), Path.home() / ".ssh" / "config"
        is_new = False if print_only else files.include_in(user_config)
        names = [host.alias for host in hosts]
        if json:
            emit({"config": str(files.config), "hosts": names, "included": not print_only})
        elif print_only:
            typer.echo(files.config.read_text(), nl=False)
        else:
            if is_new:
                note(f"{user_config} now includes {files.config}")
            for host in names:
                typer.echo(f"ssh {host}")
            if not names:
                note("you rent nothing now; `quorate rent` does")

    run_async(work())


def stream(ctx: typer.Context, name: RentalName) -> int:
    """Copies bytes between standard input and output and a rental; `ssh` uses it."""
    context = context_of(ctx)

    async def work() -> str:
        async with context.market() as market:
            rental = await market.rental(name)
            rental.session.token()  # the profile keeps it
            return rental.run.id

    status = streams.run(["stream", *context.profile_flags(), run_async(work())])
    if status is None:
        raise ProfileError(f"{context.home_in_use()}: no token can be kept in it; make it writable")
    return status
