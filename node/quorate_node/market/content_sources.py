"""Where a provider fetches content from, and in which order.

First the gateways that the job spec names, then those that the Assignment names, then those that
the owner configured, then the coordinators' own stores. The content store itself comes before all
of them. A juror has no Assignment; apart from that its order is the same.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

from quorate_content.store.fetch_order import Source, gateway_source, host_name, in_order
from quorate_content.transfer.kubo import Kubo
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable

KUBO_ASKED_SECONDS = 60.0
KUBO_ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class JobSources:
    """Sources of one execution. `may_be_private`: gateways named in the owner's network."""

    named: tuple[Source, ...] = ()
    stores: tuple[Source, ...] = ()
    may_be_private: bool = False

    def with_gateways(self, urls: Iterable[str]) -> "JobSources":
        """Returns these sources after the IPFS gateways that the job spec names."""
        found = tuple(gateway_source("job", url, self.may_be_private) for url in urls)
        return replace(self, named=in_order(found, self.named))


def job_sources(named: Iterable[str], stores: Iterable[Source], may_be_private: bool) -> JobSources:
    """A store that the Assignment names stays a store."""
    own = tuple(stores)
    known = {source.url for source in own}
    found = tuple(
        Source(url, may_be_private=may_be_private, name=host_name("job", url))
        for url in named
        if url.rstrip("/") not in known
    )
    return JobSources(found, own, may_be_private)


class OwnerGateways:
    """The IPFS gateways of the owner's settings, and the gateway of the owner's Kubo."""

    def __init__(self, urls: tuple[str, ...] = (), kubo: Kubo | None = None) -> None:
        self._sources = tuple(gateway_source("gateway", url) for url in urls)
        self._kubo = kubo
        self._of_kubo: Source | None = None
        self._asked_at = float("-inf")

    async def sources(self, clock: Clock) -> tuple[Source, ...]:
        """The Kubo is asked for its gateway at most once a minute, until it tells."""
        now = clock.now()
        if self._kubo and not self._of_kubo and now - self._asked_at >= KUBO_ASKED_SECONDS:
            self._asked_at = now
            try:
                async with asyncio.timeout(KUBO_ANSWER_SECONDS):
                    url = await self._kubo.gateway_url()
            except (Unavailable, Refused, TimeoutError):
                url = ""  # not re-raised: a Kubo that is away is one source less
            self._of_kubo = gateway_source("kubo", url) if url else None
        return (*self._sources, *([self._of_kubo] if self._of_kubo else ()))

    async def in_order(self, job: JobSources, clock: Clock) -> tuple[Source, ...]:
        """All sources of one execution, in the order in which they are asked."""
        return in_order(job.named, await self.sources(clock), job.stores)
