"""`quorate serve`: runs a service on rented machines, behind one address."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.base.errors import CancelledError, UsageError
from quorate.cli.context import Context, JsonFlag, context_of, emit, note, run_async
from quorate.cli.jobs import confirm
from quorate.cli.network_flags import SECRETS, NetworkFlags, with_network
from quorate.cli.service_plan import show_service
from quorate.client.wanting_services import put_want
from quorate.job.job import Job
from quorate.serving.service_file import Service, load_service
from quorate_protocol.values import replace
from quorate_runtime.process.settings_flags import with_flags

if TYPE_CHECKING:
    import aiohttp

    from quorate.serving.key_book import Alert

ALERT_SECONDS = 10.0
LEAVE_SECONDS = 1.0
MISSING = "pip install 'quorate[serve]'"


@with_flags(NetworkFlags, names=SECRETS)
def serve(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="File of the service (YAML, `type: service`).")],
    listen: Annotated[
        str, typer.Option(help="Address and port at which it answers.")
    ] = "127.0.0.1:8080",
    *,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM), for HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Rent without asking.")] = False,
    json: JsonFlag = False,
    **typed: Any,
) -> None:
    """Runs a service until it is interrupted; then its machines end too.

    A changed file is an update: the old replicas answer until enough new ones are ready. After a
    crash the next start finds the machines again.
    """
    service = load_service(file)
    host, port = _address(listen)
    tls = _tls(tls_cert, tls_key)
    if json and not yes:
        raise UsageError("--json cannot ask, so add --yes (see `quorate plan` for the cost first)")
    try:
        import asyncssh  # noqa: F401
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UsageError(f"serve: {error.name} is not installed; {MISSING}") from error
    flags = NetworkFlags(**typed)

    def with_secrets(job: Job) -> Job:
        """Sealed by a key of its own for each replica."""
        return with_network(job, replace(flags, egress=list(job.egress)))

    with_secrets(service.stable.job)  # a missing file is told now
    context, address = context_of(ctx), (host, port)
    run_async(_serve(context, service, file, address, tls, yes, json, with_secrets))


async def _serve(
    context: Context,
    service: Service,
    file: Path,
    address: tuple[str, int],
    tls: ssl.SSLContext | None,
    yes: bool,
    is_json: bool,
    prepare: Callable[[Job], Job],
) -> None:
    import aiohttp
    from aiohttp import web

    from quorate.serving.control import Control
    from quorate.serving.gateway import Gateway
    from quorate.serving.key_book import KeyBook
    from quorate.serving.rented_machines import RentedMachines
    from quorate.serving.replicas import Replicas
    from quorate_runtime.http.listener import Listener, OpenConnections
    from quorate_runtime.http.listener_limits import ListenerLimits
    from quorate_runtime.process.shutdown import serve_until_signal

    async with AsyncExitStack() as stack:
        market = await stack.enter_async_context(context.market())
        await market.attach()
        machines = RentedMachines(market, service.name, service.port, prepare)
        if not is_json and not (yes and machines.left()):  # those of an earlier run cannot wait
            await show_service(market, service, prepare)
        question = f"Rent up to {service.scale.most} machines?"
        if not (yes or await asyncio.to_thread(confirm, question)):
            raise CancelledError("nothing is rented")
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=0),
            )
        )
        keys, replicas = KeyBook(context.home_in_use()), Replicas()
        tasks = set[asyncio.Task[None]]()
        stack.callback(keys.close)
        control = Control(
            service,
            machines,
            replicas,
            session,
            load=_changes(file),
            tell=note,
            on_want=partial(put_want, context.home_in_use(), service.name),
        )

        def alert(found: "Alert") -> None:
            task = asyncio.create_task(_alert(session, found))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        gateway = Gateway(
            name=service.name,
            keys=keys,
            replicas=replicas,
            revisions=control.revisions,
            session=session,
            prices=service.prices,
            wait_seconds=service.wait_seconds,
            on_alert=alert,
        )
        runner = web.AppRunner(gateway.app(), access_log=None, shutdown_timeout=2.0)
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        limits = ListenerLimits(address_connections_max=4096, read_bytes_per_second=64.0)
        await Listener(runner, *address, OpenConnections(limits), tls).start()
        host, port = runner.addresses[0][:2]
        url = f"{'https' if tls else 'http'}://{host}:{port}"
        if is_json:
            emit({"service": service.name, "url": url, "revision": service.stable.digest})
        else:
            note(f"service {service.name} answers at {url}/v1; keys: `quorate keys create NAME`")
        await serve_until_signal(control.run(), partial(asyncio.sleep, 0), LEAVE_SECONDS)
        note("its machines end now; a second interrupt leaves them")
        await control.stop_all()


def _changes(file: Path) -> Callable[[], Service | None]:
    """Reads the file again when it has changed. A wrong one changes nothing, and is told."""
    read_at = file.stat().st_mtime_ns

    def read() -> Service | None:
        nonlocal read_at
        try:
            at = file.stat().st_mtime_ns
            if at == read_at:
                return None
            read_at = at
            return load_service(file)
        except (OSError, UsageError) as error:
            note(f"{file}: {error}; the service goes on as it is")
            return None

    return read


async def _alert(session: "aiohttp.ClientSession", found: "Alert") -> None:
    import aiohttp

    told = {
        "key": found.key,
        "percent": found.percent,
        "spentMicroUsd": int(found.spent),
        "budgetMicroUsd": int(found.budget),
    }
    note(f"key {found.key} has spent {found.percent} % of its budget")
    if not found.webhook:
        return
    try:
        timeout = aiohttp.ClientTimeout(total=ALERT_SECONDS)
        async with session.post(found.webhook, json=told, timeout=timeout) as answer:
            if answer.status >= 400:
                note(f"webhook of key {found.key}: it answered {answer.status}")
    except (aiohttp.ClientError, TimeoutError) as error:
        note(f"webhook of key {found.key}: {error}")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and int(port) < 65_536):
        raise UsageError(f"--listen: {text[:64]!r}; write HOST:PORT, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError("--tls-cert: HTTPS needs --tls-cert and --tls-key, both")
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        made.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--tls-cert: {cert} and {key} do not work: {error}") from error
    return made
