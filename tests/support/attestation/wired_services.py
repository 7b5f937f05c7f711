"""A coordinator's core and providers whose attestation services are wired in memory."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from quorate_attestation.challenge import GpuClaim
from quorate_attestation.claims import cpu_claim
from quorate_attestation.provers.engine import Engine
from quorate_attestation.provers.numpy_engine import NumpyEngine
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.document_fetch import document_fetch
from quorate_coordinator.core import views
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.market.attestation_service import AttestationService as Coordinating
from quorate_node.market.attestation_service import AttestationService as Providing
from quorate_node.market.prover_service import Subject
from quorate_node.market.published_records import PublishedRecords
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.ports import BeaconInfo, BeaconRound
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import ZERO_ADDRESS, Address, Hash32, Round, Seconds, UnixSeconds
from quorate_protocol.units import Sequence as Number
from quorate_protocol.values import replace
from quorate_runtime.keys import bls
from quorate_runtime.peers.verifications import Verifier
from support.attestation.scene import PARAMETERS
from support.markets.scripted_market import BLS, COORDINATOR, DOMAIN, GENESIS, INFO, Market, Party

PERIOD_BEGIN = GENESIS + 34 * DEVNET.attestation_every
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.01


class RunningClock:
    """Begins with a period, and runs as fast as the machine's clock."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.ahead = 0.0

    def now(self) -> float:
        return PERIOD_BEGIN + self.ahead + time.monotonic() - self._began

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, POLL_SECONDS))


class LocalBeacon:
    """Knows every round."""

    info: BeaconInfo = INFO

    async def round(self, number: Round) -> BeaconRound | None:
        return bls.beacon_round(BLS, number)


@dataclass
class Provider:
    """One provider with its service. `engine` answers its challenges."""

    party: Party
    wired: "Wired"
    is_attested: bool
    records_kind: type[PublishedRecords] = PublishedRecords
    engine: Callable[[], Engine] = NumpyEngine
    is_away: bool = False
    is_idle: bool = True
    seq: int = 1
    uploaded: list[str] = field(default_factory=list)
    records: PublishedRecords = field(init=False)
    service: Providing = field(init=False)

    def __post_init__(self) -> None:
        wired, owner = self.wired, self.party.owner
        number = self.party.number
        self.records = self.records_kind(
            wired.store, wired.folder / f"records-{number}.json", wired.clock
        )
        me = Verifier(owner, DOMAIN, DEVNET, INFO, wired.clock, lambda claim: PARAMETERS)
        subject = Subject(
            wired.peer_key(owner),
            self.claims,
            lambda: self.is_idle,
            lambda: (COORDINATOR.address,),
            self.offer,
            lambda claim: self.engine(),
            self.upload,
        )
        self.service = Providing(
            me,
            {COORDINATOR.address: _ToCoordinator(self)},
            self.party.key.sign,
            document_fetch(wired.store, "verification", True),
            self.records,
            subject if self.is_attested else None,
        )

    def claims(self) -> tuple[GpuClaim, ...]:
        """What it claims: its CPU, with small sizes."""
        return (
            replace(
                cpu_claim(self.wired.peer_key(self.party.owner)),
                vram_bytes=1 << 20,
                parameters=PARAMETERS,
            ),
        )

    async def upload(self, coordinator: Address, cid: str) -> None:
        """It has one store with the coordinator."""
        self.uploaded.append(cid)

    async def offer(self) -> None:
        """Sends its offer again, with the newest records."""
        state = self.wired.market.core.state
        offer = state.providers[self.party.owner].offer
        assert offer is not None
        self.seq += 1
        changed = replace(offer, seq=Number(self.seq), slots=self.records.attested(offer.slots))
        sealed = seal(DOMAIN, changed.signed(), self.party.key.sign)
        self.wired.market.send(
            ev.OfferReceived(OfferEnvelope(changed, sealed), self.party.key.address)
        )


class _ToCoordinator:
    """`Peers` of a provider."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        decoded = frames.decode(frame)
        assert peer == COORDINATOR.address and isinstance(decoded, frames.AttestationSent)
        async with asyncio.timeout(deadline):
            sender = "0x" + self._provider.party.owner.hex()
            await self._provider.wired.coordinating.take(sender, decoded.body)
        return frames.encode(frames.Ok())

    def connected(self) -> frozenset[Address]:
        return frozenset([COORDINATOR.address])

    async def close(self) -> None:
        """Nothing to close."""


class _ToProviders:
    """`Peers` of the coordinator."""

    def __init__(self, wired: "Wired") -> None:
        self._wired = wired

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        decoded, provider = frames.decode(frame), self._wired.providers[peer]
        assert isinstance(decoded, frames.AttestationSent)
        if provider.is_away:
            raise Unavailable("away")
        provider.service.take(COORDINATOR.address, decoded.body)
        return frames.encode(frames.Ok())

    def connected(self) -> frozenset[Address]:
        return frozenset(self._wired.providers)

    async def close(self) -> None:
        """Nothing to close."""


class Wired:
    """The market. The first provider is attested; all others verify."""

    def __init__(
        self,
        folder: Path,
        providers: int = 5,
        first_records: type[PublishedRecords] = PublishedRecords,
    ) -> None:
        """`first_records` is how the first provider keeps its proofs."""
        self.folder, self.clock = folder, RunningClock()
        self.market = Market(*[Party(number) for number in range(providers)])
        self.market.at = PERIOD_BEGIN
        self.market._send_heartbeats(is_first=True)
        self.store = ContentStore(folder / "store", 1 << 28)
        self.coordinating = Coordinating(
            self.market.core,
            _ToProviders(self),
            LocalBeacon(),
            self.store,
            self._submit,
            self._key_of,
            self.clock,
            lambda claim: PARAMETERS,
        )
        self.providers = {
            party.owner: Provider(
                party, self, number == 0, first_records if number == 0 else PublishedRecords
            )
            for number, party in enumerate(self.market.parties.values())
        }
        self.first = next(iter(self.providers.values()))
        self.began = self.clock.now()

    def peer_key(self, owner: Address) -> Hash32:
        """The peer key of a provider's offer."""
        offer = self.market.core.state.providers[owner].offer
        assert offer is not None
        return offer.peer_key

    async def _submit(self, event: ev.Event) -> object:
        return self.market.send(event)

    async def _key_of(self, account: Address) -> Address:
        return ZERO_ADDRESS

    def level(self) -> int:
        """The level of the first provider's slot that the coordinator believes."""
        rows = views.offer_views(self.market.core.state, UnixSeconds(self.market.at), 10)
        return rows[0].attestation_levels[0]

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Waits until something holds."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not is_true():
                await asyncio.sleep(POLL_SECONDS)

    async def __aenter__(self) -> Self:
        tasks = [asyncio.ensure_future(self.coordinating.run())]
        tasks += [asyncio.ensure_future(item.service.run()) for item in self.providers.values()]
        self._tasks = tasks
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        found = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()
        for item in found:
            if not isinstance(item, asyncio.CancelledError) and isinstance(item, BaseException):
                raise item
