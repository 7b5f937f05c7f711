"""The coordinator passes a box of secrets on to the provider of a rental, for its client alone."""

from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.handlers import add_handlers
from quorate_coordinator.api.streams import SecretRelay
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import BODY_BYTES_MAX, DEVNET_BOUNDS
from quorate_coordinator.core import views
from quorate_protocol.codec import canonical
from quorate_protocol.messages import frames
from quorate_protocol.messages.rental_secrets import BOX_BYTES_MAX
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Seconds
from quorate_runtime.http.coordinator_routes import Routes
from quorate_runtime.http.error_responses import failures
from support.http_server import on_loopback
from support.markets.coordinator_stage import token
from support.markets.rented_market import Rentals
from support.markets.scripted_market import COORDINATOR, DOMAIN
from support.virtual_clock import VirtualClock

SEAL_KEY, BOX = Hash32(b"\x05" * 32), b"\x00box of VerySecret"


@dataclass
class Provider:
    """As `ports.Peers`: what its coordinator sends, and how it answers."""

    sent: list[tuple[Address, frames.Frame]] = field(default_factory=list)
    error: Exception | None = None

    async def request(self, peer: Address, frame: bytes, _deadline: Seconds) -> bytes:
        self.sent.append((peer, frames.decode(frame)))
        if self.error is not None:
            raise self.error
        return frames.encode(frames.Ok())

    def connected(self) -> frozenset[Address]:
        return frozenset()

    async def close(self) -> None:
        return


@pytest.mark.rule("12.34")
async def test_only_the_client_of_a_rental_reaches_its_provider(socket_enabled: None) -> None:
    market, provider = Rentals(), Provider()
    clock = VirtualClock(market.at)
    rates = RequestRates(DEVNET_BOUNDS, clock.now)
    state = market.core.state
    relay = SecretRelay(state, Auth(market.core.rules, state, clock, rates), provider)
    app = web.Application(middlewares=[failures], client_max_size=BODY_BYTES_MAX)
    add_handlers(app, relay)
    sealed, plain = market.rent(seal_key=SEAL_KEY), market.rent(nonce=2)
    async with on_loopback(app) as url, aiohttp.ClientSession() as session:

        async def post(job: Hash32, box: bytes = BOX, who: int | None = 0) -> tuple[int, str]:
            key = None if who is None else market.clients[who]
            until = int(clock.now()) + 60
            head = (
                {}
                if key is None
                else token(key.address, key, COORDINATOR.address, DOMAIN.chain_id, until)
            )
            path = url + Routes.SECRETS.at(job=job)
            async with session.post(path, data=box, headers=head) as response:
                return response.status, await response.text()

        status, text = await post(sealed)
        lease = market.lease(sealed)
        assert status == 200 and provider.sent == [
            (lease.provider, frames.SecretsSent(lease.assignment_hash, BOX))
        ], text
        seen = views.run_view(state, market.job(sealed), is_client=True).executions[-1]
        assert seen.provider == lease.provider, "its client must know for whom to seal"
        market.deliver()
        assert market.meter(sealed, 0) is None
        assert (await post(sealed))[0] == 200, "while it runs as well"
        for wanted, code, asked in (
            (404, Code.UNKNOWN, post(sealed, who=1)),
            (401, Code.BAD_SIGNATURE, post(sealed, who=None)),
            (404, Code.UNKNOWN, post(SEAL_KEY)),
            (501, Code.UNSUPPORTED, post(plain)),
            (413, Code.OVERSIZE, post(sealed, b"")),
            (413, Code.OVERSIZE, post(sealed, bytes(BOX_BYTES_MAX + 1))),
        ):
            status, text = await asked
            assert status == wanted and code.value in text, text
        assert len(provider.sent) == 2
        provider.error = Refused(Code.DOES_NOT_OPEN, "it was not sealed to this box key")
        assert "not sealed to this box key" in (await post(sealed))[1]
        provider.error = Unavailable("away", 1.0)
        assert (await post(sealed))[0] == 503
        market.meter(sealed, 1, exit_status=0)
        status, text = await post(sealed)
        assert Code.TOO_EARLY.value in text, text
    assert BOX.hex() not in canonical.encode(market.core.snapshot()).decode()
