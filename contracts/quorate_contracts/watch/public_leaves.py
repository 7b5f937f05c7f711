"""Reads an account's leaves from the public API of coordinators."""

from dataclasses import dataclass, field

import aiohttp
from msgspec import Struct

from quorate_contracts.watch.watch_file import ShownLeaf
from quorate_protocol.codec import canonical
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.messages.views import InfoView
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.epoch_tree import Leaf, Proof
from quorate_protocol.units import Address
from quorate_runtime.http.client_sessions import read_bounded

ANSWER_BYTES_MAX = 1 << 20
TIMEOUT = aiohttp.ClientTimeout(total=10.0)
RETRY_SECONDS = 2.0


class LeafAnswer(Struct, frozen=True):
    """The answer of GET /v1/epochs/{number}/proofs/{account}."""

    leaf: Leaf
    proof: Proof
    epoch: int


@dataclass(slots=True)
class PublicLeaves:
    """The evidence of a watcher that has no connection of its own: leaves only. The Statements are
    in the watcher's file. `urls` are base URLs of coordinators, whose accounts it asks for.
    """

    session: aiohttp.ClientSession
    account: Address
    urls: tuple[str, ...]
    _known: dict[Address, str] = field(default_factory=dict)

    def statement(self, coordinator: Address) -> Envelope[Statement] | None:
        """Returns None: a coordinator sends Statements to the provider's daemon only."""
        return None

    def met(self) -> tuple[Address, ...]:
        """Returns the coordinators that have answered."""
        return tuple(self._known)

    async def meet(self) -> None:
        """Asks those coordinators for their accounts that have not answered yet."""
        for url in self.urls:
            if url in self._known.values():
                continue
            try:
                info = canonical.from_json(InfoView, await self._get(f"{url}/v1/info"))
            except (Refused, Unavailable):
                continue  # not re-raised: one that is away is asked again at the next look
            self._known[info.coordinator] = url

    async def leaf(self, coordinator: Address, epoch: int) -> ShownLeaf:
        """Returns the account's leaf as the coordinator shows it. Refused or Unavailable."""
        await self.meet()
        url = self._known.get(coordinator)
        if url is None:
            raise Unavailable(
                f"no --coordinator URL answers for 0x{coordinator.hex()}", RETRY_SECONDS
            )
        found = await self._get(f"{url}/v1/epochs/{epoch}/proofs/0x{self.account.hex()}")
        view = canonical.from_json(LeafAnswer, found)
        return ShownLeaf(view.epoch, view.leaf, view.proof)

    async def _get(self, url: str) -> canonical.Json:
        try:
            async with self.session.get(url, timeout=TIMEOUT, allow_redirects=False) as response:
                data, status = await read_bounded(response, ANSWER_BYTES_MAX), response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"{url} does not answer", RETRY_SECONDS) from error
        if status != 200:
            raise Refused(Code.UNKNOWN, f"{url}: status {status}")
        return canonical.parse(data, ANSWER_BYTES_MAX)
