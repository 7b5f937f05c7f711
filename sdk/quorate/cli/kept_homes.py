"""Packs the /home of a rental before it ends, and keeps it by its CID."""

import asyncio
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from quorate.base.errors import QuorateError, translated
from quorate.cli import openssh
from quorate.cli.context import Context, note
from quorate.cli.rental_start import prepare
from quorate.client.market import Market
from quorate.client.rental import Rental
from quorate.client.run import Run
from quorate.rentals.homes import PACK, KeptHome, keep_home
from quorate_content.store.content_store import ContentStore
from quorate_protocol.quantity_input import size_text

OWNER, GIB = "data", 1 << 30


async def keep_home_of(context: Context, market: Market, run: Run) -> None:
    """If it cannot be packed, raises the error and says that nothing is stopped."""
    rental = await market.rental(run.job_id)
    await prepare(context, market, rental)
    try:
        kept = await _packed(context, rental)
    except QuorateError:
        copy, stop = context.command(f"cp {run.name}:/home ."), context.command(f"stop {run.name}")
        note(f"rental {run.called} runs on and costs; copy /home by `{copy}`, then `{stop}`")
        raise
    keep_home(context.home_in_use(), run.name, kept)
    again = context.command(f"rent IMAGE {run.name} --home-from {run.name}")
    note(f"kept /home ({size_text(kept.size)}) as {kept.cid}; the next: {again}")


async def _packed(context: Context, rental: Rental) -> KeptHome:
    place = context.home_in_use() / "content"
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with translated(), TemporaryDirectory(dir=place.parent, prefix="home-") as folder:
        archive = Path(folder) / "home.tar"
        with archive.open("wb") as file:
            await asyncio.to_thread(openssh.output, rental, PACK, b"", file.fileno())
        content = ContentStore(place, shutil.disk_usage(place).total, spare_bytes=GIB // 4)
        try:
            stat = await content.put(archive, OWNER)
            async with await content.lease(stat.cid) as lease:
                return KeptHome(str(stat.cid), stat.size, str(lease.path.absolute()))
        finally:
            await content.close()
