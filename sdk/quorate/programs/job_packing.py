"""Packs a Market's jobs: asks the store for sizes, and IPFS gateways where the job says so."""

import asyncio
import tarfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quorate.base.errors import QuorateError, UnavailableError, UsageError, translated
from quorate.client.base.client_ledger import OrderRecord
from quorate.job.job import Job
from quorate.job.packing import (
    NO_COMMAND,
    NamedCid,
    PackedJob,
    has_given_size,
    named_cids,
    pack,
    with_element,
)
from quorate.job.sweep import ELEMENTS_MAX, Element, element_job, elements
from quorate.programs.job_preparation import JobPreparation
from quorate.sources.resolution import SourceResolver
from quorate_content.dag.cid import parse
from quorate_content.images.image_config import json_object, parse_json, text_list
from quorate_content.store.fetch_order import gateway_source
from quorate_protocol.refusals import Refused

if TYPE_CHECKING:
    from aiohttp import ClientSession as HttpSession

    from quorate.client.base.coordinator_api import Api


# Reads an image's command from an archive that the coordinator's store holds.
#
# Only headers and the configuration are fetched, a few kilobytes; no layer is. The bytes are not
# verified: a wrong answer can only refuse an order that the store's owner could refuse anyway.

BLOCK = 512
MEMBERS_MAX = 300
CONFIG_BYTES_MAX = 1 << 20
Read = Callable[[int, int], Awaitable[bytes]]
"""Returns so many bytes of the archive from a place on."""


async def words_of_stored(read: Read, size_bytes: int) -> tuple[str, ...] | None:
    """Returns ENTRYPOINT and CMD of a docker archive of `size_bytes`; None if it cannot be read."""
    try:
        places = await _members(read, size_bytes)
        manifest = parse_json(await _member(read, places, "manifest.json"), "manifest.json")
        first = json_object(manifest[0] if isinstance(manifest, list) else None, "manifest.json")
        name = str(first.get("Config"))
        config = json_object(parse_json(await _member(read, places, name), name), name)
        inner = json_object(config.get("config") or {}, "config")
        return text_list(inner.get("Entrypoint"), name) + text_list(inner.get("Cmd"), name)
    except (QuorateError, Refused, tarfile.TarError, KeyError, IndexError):
        return None  # not re-raised: the provider reads it too, and says what is wrong


async def _members(read: Read, size_bytes: int) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    at = 0
    while at + BLOCK <= size_bytes and len(found) < MEMBERS_MAX:
        header = await read(at, BLOCK)
        if not header.strip(b"\0"):
            break
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        found[member.name.removeprefix("./")] = at + BLOCK, member.size
        at += BLOCK + -(-member.size // BLOCK) * BLOCK
    return found


async def _member(read: Read, places: dict[str, tuple[int, int]], name: str) -> bytes:
    at, size = places[name]
    if size > CONFIG_BYTES_MAX:
        raise KeyError(name)
    return await read(at, size)


ELEMENT_START_WITHIN = "1h"  # elements wait for each other


@dataclass(frozen=True, slots=True)
class ArrayElement:
    """One element of a job array. `entry` is this profile's newest order of exactly its job."""

    params: Element
    job: Job
    packed: PackedJob
    entry: OrderRecord | None = None


class JobPacking:
    """Packs jobs and the elements of job arrays."""

    def __init__(
        self,
        api: "Api",
        session: "HttpSession",
        preparation: JobPreparation,
        sources: SourceResolver,
    ) -> None:
        self._api, self._session, self._preparation = api, session, preparation
        self._sources = sources

    async def packed(self, job: Job) -> PackedJob:
        """Returns the job's spec and what must be uploaded for it.

        Raises UsageError for a wrong job, UnavailableError if a size is not known.
        """
        if job.is_array:
            raise UsageError(
                "sweep: it has several elements; use quorate run or apply, or Market.map"
            )
        with self._preparation.names_in_errors():
            return await self._packed(await self._preparation.prepared(job))

    async def elements(
        self, job: Job, params: Sequence[Element] | None = None
    ) -> list[ArrayElement]:
        """Returns the elements of the job's own sweep, or of the given sets of variables.

        The local code is prepared once for all.
        """
        given = elements(job.sweep, job.seeds) if params is None else params
        if not given and params is None:
            raise UsageError("map: the job has neither sweep nor seeds, and no sets are given")
        if len(given) > ELEMENTS_MAX:
            raise UsageError(
                f"map: {len(given)} elements given; at most {ELEMENTS_MAX} are allowed"
            )
        count = len(given) if params is None else 0
        for one in given[:1]:
            element_job(job, one, count)  # a wrong placeholder is named before the image is made
        waits = job.start_within or ELEMENT_START_WITHIN
        single = replace(job, sweep={}, seeds=0, start_within=waits)
        with self._preparation.names_in_errors():
            prepared = await self._preparation.prepared(single)
            packed = await self._packed(prepared)
        return [
            ArrayElement(one, made, with_element(packed, made))
            for one in given
            for made in [element_job(prepared, one, count)]
        ]

    async def _packed(self, job: Job) -> PackedJob:
        sizes: dict[str, int] = {}
        absent: list[NamedCid] = []
        for named in named_cids(job):
            stat = await self._api.stat_content(named.cid)
            if stat.size_bytes is not None:
                sizes[named.cid] = stat.size_bytes
            elif job.is_in_ipfs and not has_given_size(job, named.cid):
                sizes[named.cid] = await self._size_in_ipfs(job, named)
            if not stat.is_stored:
                absent.append(named)
            elif named.field == "image" and stat.size_bytes and not job.has_command:
                await self._check_command(named.cid, stat.size_bytes)
        found = await self._sources.resolve(job)
        packed = await asyncio.to_thread(pack, job, sizes, found)
        sent = {item.cid for item in packed.uploads}
        not_stored = () if job.is_in_ipfs else (item for item in absent if item.cid not in sent)
        return replace(packed, not_stored=tuple(not_stored))

    async def _check_command(self, cid: str, size_bytes: int) -> None:
        """Raises UsageError if the stored archive has no command. What cannot be read may have."""

        async def read(start: int, length: int) -> bytes:
            return await self._api.read_content(cid, start, length)

        words = await words_of_stored(read, size_bytes)
        if words == ():
            raise UsageError(NO_COMMAND)

    async def _size_in_ipfs(self, job: Job, named: NamedCid) -> int:
        from quorate_content.transfer.root_size import root_size  # it imports aiohttp

        failed: list[str] = []
        for url in (*job.gateways, job.ipfs_gateway):
            gateway = gateway_source("gateway", url).url
            try:
                with translated():
                    return await root_size(self._session, gateway, parse(named.cid))
            except UnavailableError as error:  # not re-raised: another gateway may have it
                failed.append(str(error))
        raise UnavailableError(
            f"{named.field}: the size of {named.cid} is not known: {'; '.join(failed)}; name a "
            "gateway that has it (ipfs_gateway)"
        )
