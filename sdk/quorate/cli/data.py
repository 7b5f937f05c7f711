"""`quorate data`: content by its CID on this machine, with IPFS gateways and a Kubo as neighbours.

The commands need no profile and no coordinator. All content is verified when it arrives.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
from aiohttp import ClientSession, web

from quorate.base.errors import UsageError, translated
from quorate.cli.attach import progress
from quorate.cli.context import JsonFlag, context_of, emit, note, run_async
from quorate.client.base.transfer import Progress
from quorate.job.quantities import parse_size
from quorate_content.dag.cid import Cid, typed_cid
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import gateway_source
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_content.transfer.kubo import Kubo
from quorate_content.transfer.root_size import root_size
from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.http.listener import Listener, OpenConnections, cannot_listen
from quorate_runtime.http.listener_limits import ListenerLimits

OWNER = "data"
GATEWAY = "http://127.0.0.1:8080"
GET_SECONDS = 7 * 86_400.0
KUBO_WAIT_SECONDS = 60
GIB = 1 << 30

data_app = typer.Typer(
    help="Add, fetch, keep and serve content by its CID.",
    no_args_is_help=True,
    add_completion=False,
)
Store = Annotated[
    Path | None, typer.Option("--store", help="Folder of the content; default: in the profile.")
]
CidText = Annotated[str, typer.Argument(metavar="CID", help="A CID, of version 0 or 1.")]


@data_app.command()
def add(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(help="File or folder.")],
    kubo: Annotated[
        str, typer.Option(help="RPC URL of a Kubo that imports, pins and announces it too.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of a new pin in the Kubo.")] = "",
    store: Store = None,
    json: JsonFlag = False,
) -> None:
    """Stores a file or folder, pins it and prints its CID."""

    async def work() -> None:
        if not path.exists():
            raise UsageError(f"{path} does not exist")
        async with _opened(ctx, store) as content:
            with progress(json) as report:
                stat = await content.put(
                    path.resolve(), OWNER, progress=lambda done: report("add", done, 0)
                )
                said = await _to_kubo(content, stat.cid, kubo, name, report) if kubo else None
            if json:
                emit({"cid": str(stat.cid), "size": stat.size, "kubo": said})
                return
            typer.echo(str(stat.cid))
            if said is not None:
                why = f"; not announced: {said['problem']}" if said["problem"] else ", announced"
                note(f"pinned in the Kubo at {kubo}{why}")

    run_async(work())


@data_app.command()
def get(
    ctx: typer.Context,
    cid: CidText,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New file or folder; default: none.")
    ] = None,
    gateway: Annotated[
        list[str] | None, typer.Option(help="IPFS gateway to fetch from. Repeatable.")
    ] = None,
    max_size: Annotated[str, typer.Option(help="Refuse larger content.")] = "1TiB",
    store: Store = None,
    json: JsonFlag = False,
) -> None:
    """Fetches content, verifies it and pins it."""
    most = parse_size(max_size, "--max-size")

    async def work() -> None:
        wanted = _cid(cid)
        if output is not None and output.exists():
            raise UsageError(f"{output} already exists; give a new path")
        sources = [gateway_source("gateway", url) for url in gateway or [GATEWAY]]
        async with _opened(ctx, store) as content:
            with progress(json) as report:
                async with await content.get(
                    wanted,
                    sources,
                    most,
                    GET_SECONDS,
                    OWNER,
                    lambda done: report(f"get {str(wanted)[:16]}", done, 0),
                ) as lease:
                    await content.pin(wanted, OWNER)
                    if output is not None:
                        await asyncio.to_thread(_copy, lease.path, output)
            if json:
                by_source = content.fetched.by_source()
                emit({"cid": str(wanted), "size": lease.size, "bytesBySource": by_source})
            else:
                typer.echo(f"{wanted}  {lease.size} bytes" + (f"  {output}" if output else ""))

    run_async(work())


@data_app.command()
def stat(
    ctx: typer.Context,
    cid: CidText,
    gateway: Annotated[
        str, typer.Option(help="IPFS gateway to ask for the size of content that is not here.")
    ] = "",
    store: Store = None,
    json: JsonFlag = False,
) -> None:
    """Shows the size of content, and whether it is stored here."""

    async def work() -> None:
        wanted = _cid(cid)
        found = None
        if not gateway or _place(ctx, store).exists():
            async with _opened(ctx, store, is_made=False) as content:
                found = await content.stat(wanted)
        if found is None and not gateway:
            raise UsageError(f"{wanted} is not stored here; --gateway URL asks elsewhere")
        size = found.size if found is not None else await _size(gateway, wanted)
        if json:
            emit({"cid": str(wanted), "size": size, "isStored": found is not None})
        else:
            typer.echo(f"{wanted}  {size} bytes  {'stored' if found else 'not stored'}")

    run_async(work())


@data_app.command()
def ls(ctx: typer.Context, store: Store = None, json: JsonFlag = False) -> None:
    """Lists stored content."""

    async def work() -> None:
        async with _opened(ctx, store, is_made=False) as content:
            rows = await content.objects()
        if json:
            lines = [{"cid": row.cid, "size": row.size, "isPinned": row.is_pinned} for row in rows]
            emit({"objects": lines})
            return
        for row in rows:
            typer.echo(f"{row.cid}  {row.size:>15}  {'pinned' if row.is_pinned else ''}".rstrip())

    run_async(work())


@data_app.command()
def pin(
    ctx: typer.Context,
    cid: CidText,
    off: Annotated[bool, typer.Option("--off", help="Unpin, so that `gc` may remove it.")] = False,
    store: Store = None,
    json: JsonFlag = False,
) -> None:
    """Keeps stored content, or stops keeping it."""

    async def work() -> None:
        wanted = _cid(cid)
        async with _opened(ctx, store, is_made=False) as content:
            await (content.unpin(wanted, OWNER) if off else content.pin(wanted, OWNER))
        if json:
            emit({"cid": str(wanted), "isPinned": not off})

    run_async(work())


@data_app.command()
def gc(ctx: typer.Context, store: Store = None, json: JsonFlag = False) -> None:
    """Removes all content that is not pinned."""

    async def work() -> None:
        async with _opened(ctx, store, is_made=False) as content:
            freed = await content.gc(0)
        if json:
            emit({"freedBytes": freed})
        else:
            typer.echo(f"{freed} bytes freed")

    run_async(work())


@data_app.command()
def serve(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8090,
    store: Store = None,
    json: JsonFlag = False,
) -> None:
    """Serves stored content as a trustless IPFS gateway until Ctrl-C. Anybody may read it."""

    async def work() -> None:
        async with _opened(ctx, store, is_made=False) as content:
            app = web.Application()
            add_gateway_routes(app, content)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
            await runner.setup()
            try:
                limits = ListenerLimits(connections_max=1_024, address_connections_max=256)
                await Listener(runner, host, port, OpenConnections(limits)).start()
                url = f"http://{host}:{runner.addresses[0][1]}"
                emit({"url": url}) if json else typer.echo(f"serving at {url}/ipfs/CID")
                await asyncio.Event().wait()
            except OSError as error:
                raise cannot_listen(host, port, error) from error
            finally:
                await runner.cleanup()

    run_async(work())


# ---------------------------------------------------------------------------------------- helpers


def _place(ctx: typer.Context, folder: Path | None) -> Path:
    return folder or context_of(ctx).home_in_use() / "content"


@asynccontextmanager
async def _opened(
    ctx: typer.Context, folder: Path | None, is_made: bool = True
) -> AsyncIterator[ContentStore]:
    """Opens the content store, which may use the whole disk. Errors become the client's errors.

    Without `is_made`, a missing store is a UsageError.
    """
    place = _place(ctx, folder)
    if not is_made and not place.exists():
        raise UsageError(
            f"no content is kept in {place}; `quorate data add` keeps some, and --store names "
            "another folder"
        )
    with translated():
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = ContentStore(place, shutil.disk_usage(place).total, spare_bytes=GIB // 4)
        try:
            yield content
        finally:
            await content.close()


def _cid(text: str) -> Cid:
    try:
        return typed_cid(text)
    except Refused as refused:
        raise UsageError(
            f"cid: {refused.detail}; copy it whole, such as from `data ls`"
        ) from refused


async def _size(gateway: str, cid: Cid) -> int:
    async with ClientSession() as session:
        return await root_size(session, gateway_source("gateway", gateway).url, cid)


async def _to_kubo(
    content: ContentStore, cid: Cid, url: str, name: str, report: Progress
) -> dict[str, object]:
    """Imports the stored content's CAR into a Kubo, pins it there and announces it. A Kubo that
    cannot announce it, as without peers, is no error.
    """

    async def car() -> AsyncIterator[bytes]:
        done = 0
        async for piece in content.export_car(cid):
            done += len(piece)
            report("import into Kubo", done, 0)
            yield piece

    async with ClientSession() as session:
        kubo = Kubo(session, url)
        version = await kubo.version()
        await kubo.import_car(cid, car(), name, KUBO_WAIT_SECONDS)
        try:
            await kubo.provide(cid)
        except (Refused, Unavailable) as error:
            return {"version": version, "isAnnounced": False, "problem": str(error)}
        return {"version": version, "isAnnounced": True, "problem": ""}


def _copy(source: Path, target: Path) -> None:
    """Copies stored content out. Copies are writable, unlike the store's own files."""
    if source.is_dir():
        shutil.copytree(source, target, copy_function=shutil.copyfile)
        for folder in (target, *[item for item in target.rglob("*") if item.is_dir()]):
            folder.chmod(0o755)
    else:
        shutil.copyfile(source, target)
