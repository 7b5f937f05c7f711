"""Asks before an Ack whether image and inputs of an order exist (PROTOCOL §4, Storage).

A job whose input nobody has would hold a run slot until its provider gives up. The coordinator's
own store is asked first, then the gateways of the job and of the operator. An image of a registry
is asked for there, without a login. Only a definite "not there" from all of them refuses the order:
a source that is slow or away may have it later.
"""

import asyncio
import http.client

from quorate_content.dag.cid import Cid, parse
from quorate_content.dag.content_limits import BadSource, TruncatedSource
from quorate_content.images.image_names import MANIFEST_TYPES, PinnedImage, parse_pinned, scheme_of
from quorate_content.images.registry_http import RegistryHttp, TransferRate
from quorate_content.store.fetch_order import Source, gateway_source, in_order
from quorate_content.store.http_answer import probe
from quorate_content.store.threads import Stopped, StopSignal
from quorate_coordinator.storage.staging import Staging, owner_name
from quorate_protocol.messages.job_spec import JobSpec, is_image_cid
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address

ASK_SECONDS = 5.0  # for all content of one order
PROBE_SECONDS = 2.0
ORDERS_MAX = 8  # that ask gateways at once; others wait within their time
PROBES_MAX = 4  # of one order at once
IMAGES_KNOWN_MAX = 4096


class InputSearch:
    """Looks for the content that an order names. `sources` are the operator's gateways. `is_devnet`
    allows gateways in the operator's private network; there only a registry of this machine is
    asked.
    """

    def __init__(
        self, staging: Staging, sources: tuple[Source, ...], is_devnet: bool = False
    ) -> None:
        self._staging, self._sources = staging, sources
        self._is_devnet = is_devnet
        self._images: dict[str, None] = {}  # that registries had
        self._orders = asyncio.Semaphore(ORDERS_MAX)

    async def check(self, spec: JobSpec, client: Address) -> bool:
        """Returns whether the coordinator still has to take some of it into its store. Raises
        Refused(NOT_STORED) if image or an input is in no source.

        What cannot be known in time counts as there. Uploads of other accounts do not count: their
        providers may not read them, and a stranger must not learn of them.
        """
        lacking = [item for item in _named(spec) if not await self._is_stored(item[1], client)]
        image = self._image_to_look_up(spec)
        if not lacking and image is None:
            return False
        named = (gateway_source("job", url, self._is_devnet) for url in spec.gateways)
        sources = in_order(named, self._sources)
        if lacking and not sources:
            raise _not_there(*lacking[0])
        try:
            async with asyncio.timeout(ASK_SECONDS), self._orders:
                if image is not None:
                    await self._ask_registry(image)
                await self._ask(lacking, sources)
        except TimeoutError:
            pass  # not re-raised: a source may still have it
        return bool(lacking)

    async def _is_stored(self, cid: Cid, client: Address) -> bool:
        for store in (self._staging.uploads, self._staging.small):
            if await store.is_pinned_for(cid, owner_name(client)):
                return True
        return False

    def _image_to_look_up(self, spec: JobSpec) -> PinnedImage | None:
        if is_image_cid(spec.image) or spec.image in self._images:
            return None
        try:
            image = parse_pinned(spec.image)
        except Refused:
            return None  # not re-raised: providers name what is wrong, and some need no registry
        is_here = scheme_of(image.host) == "http"
        return image if is_here or not self._is_devnet else None

    async def _ask_registry(self, image: PinnedImage) -> None:
        stop = StopSignal(ASK_SECONDS)
        try:
            is_there = await asyncio.to_thread(_has_image, image, self._is_devnet, stop)
        finally:
            stop.stop()
        if is_there is False:
            raise Refused(
                Code.NOT_STORED,
                f"order.image: the registry {image.host} has no {image.name} that can be read "
                "without a login; push it there, or send the image itself",
            )
        if is_there:
            self._images[image.name] = None
            while len(self._images) > IMAGES_KNOWN_MAX:
                del self._images[next(iter(self._images))]

    async def _ask(self, lacking: list[tuple[str, Cid]], sources: tuple[Source, ...]) -> None:
        places = asyncio.Semaphore(PROBES_MAX)
        stop = StopSignal(ASK_SECONDS)

        async def lacks(source: Source, cid: Cid) -> bool:
            async with places:
                return await asyncio.to_thread(_lacks, source, cid, stop)

        try:
            for field, cid in lacking:
                answers = await asyncio.gather(*(lacks(source, cid) for source in sources))
                if all(answers):
                    raise _not_there(field, cid)
        finally:
            stop.stop()


def _lacks(source: Source, cid: Cid, stop: StopSignal) -> bool:
    """Whether a source says definitely that it does not have the content. Blocks."""
    try:
        stop.check()
        probe(source, cid, stop, PROBE_SECONDS, may_search=True)
    except (Stopped, Unavailable, TruncatedSource, OSError, http.client.HTTPException):
        return False  # not re-raised: the source may have it
    except BadSource:
        return True  # not re-raised: it is absent there, or no provider could use this source
    return False


def _has_image(image: PinnedImage, may_be_private: bool, stop: StopSignal) -> bool | None:
    """Whether a registry has an image; None if it does not say so. Blocks."""
    rate = TransferRate(silence_seconds=PROBE_SECONDS)
    registry = RegistryHttp(image.host, image.path, may_be_private, stop, rate)
    try:
        registry.head(f"manifests/{image.digest}", MANIFEST_TYPES)
    except Refused as refused:
        # Not re-raised: other refusals concern the registry's address, and owners may allow it.
        return False if refused.code is Code.UNKNOWN else None
    except (Stopped, Unavailable):
        return None  # not re-raised: the registry may answer later
    return True


def _named(spec: JobSpec) -> list[tuple[str, Cid]]:
    return [("image" if cid == spec.image else "inputs", parse(cid)) for cid in spec.kept()]


def _not_there(field: str, cid: Cid) -> Refused:
    return Refused(
        Code.NOT_STORED,
        f"order.{field}: {cid} is neither in the coordinator's store nor at a gateway of the job; "
        "upload it, or name a gateway that has it",
    )
