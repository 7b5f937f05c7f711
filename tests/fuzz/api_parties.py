"""A coordinator with everybody who may ask it: nobody, a stranger, a funded client by its session key, a provider by its operator's.

The client has uploaded a file and has two runs with the provider: one that may end at once, one that the provider holds.
"""

import asyncio
import io
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator_stage import USD, Stage, deployed_stage, running, until
from quorate_contracts.deploy import Contracts
from quorate_coordinator.service import Service
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol import codec
from quorate_protocol.bearer import Bearer, make_token
from quorate_protocol.envelope import seal
from quorate_protocol.hashing import hash_tuple
from quorate_protocol.job import input_root
from quorate_protocol.messages import Order, Session
from quorate_protocol.order import Submission
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Amount,
    Bps,
    Comparator,
    Nonce,
    Price,
    Small,
    UnixSeconds,
    VerifyTier,
)
from quorate_runtime.crypto import KeySigner
from scripted_market import a_spec
from wired_providers import Floor, Place, WiredProvider

NOBODY, STRANGER, CLIENT, PROVIDER = "nobody", "stranger", "client", "provider"
WHO = (NOBODY, STRANGER, CLIENT, PROVIDER)
MONEY = Amount(100 * USD)
OWNER = KeySigner(dev_account(7))
SESSION, OPERATOR, UNKNOWN = (KeySigner(bytes([number]) * 32) for number in (0x43, 0x44, 0x42))


@dataclass(frozen=True, slots=True)
class Parties:
    """`headers` of each of WHO; `known`: what a parameter of a path can be that means something here, by its name."""

    url: str
    headers: dict[str, dict[str, str]]
    known: dict[str, tuple[str, ...]]


@asynccontextmanager
async def parties(folder: Path) -> AsyncIterator[Parties]:
    """All of them, until the block ends."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(deployed_stage(folder))
        service = await stack.enter_async_context(running(stage.service()))
        await asyncio.gather(_fund(stage), _register(stage))
        deployment = stage.deployment
        place = Place(service.url, stage.keys.account.address, deployment.domain(), deployment.chain_id, deployment.beacon_info())
        floor = Floor(place, folder / "outputs")
        await stack.enter_async_context(WiredProvider(OPERATOR, floor, stage.session, account=OWNER.address).serving())
        headers = {
            NOBODY: {},
            STRANGER: _token(stage, UNKNOWN.address, UNKNOWN),
            CLIENT: _token(stage, stage.client.address, SESSION),
            PROVIDER: _token(stage, OWNER.address, OPERATOR),
        }
        now = int(time.time())
        runs = await until(lambda: _orders(stage, service, now), lambda found: len(found) == 2)
        await floor.until_matched(1)
        floor.runs[0].set()
        async with stage.session.put(f"{service.url}/v1/content", data=io.BytesIO(b"hello"), headers=headers[CLIENT]) as response:
            assert response.status == 200, await response.text()
            cid = str((await response.json())["cid"])
        addresses = tuple(f"0x{address.hex()}" for address in (stage.client.address, OWNER.address))
        yield Parties(service.url, headers, {"job": tuple(runs), "address": addresses, "cid": (cid,), "number": ("0", "1")})


def _token(stage: Stage, account: Address, key: KeySigner) -> dict[str, str]:
    bearer = Bearer(account, key.address, UnixSeconds(int(time.time()) + 3600))
    return {"Authorization": make_token(bearer, stage.deployment.chain_id, stage.keys.account.address, key.sign)}


async def _fund(stage: Stage) -> None:
    contracts, coordinator = Contracts.of(stage.deployment), stage.keys.account.address
    money = contracts.escrow.deposit(MONEY), contracts.escrow.allocate(coordinator, MONEY)
    await stage.send(stage.client, contracts.token.approve(stage.deployment.escrow), *money)


async def _register(stage: Stage) -> None:
    stakes = Contracts.of(stage.deployment).stakes
    await stage.send(OWNER, stakes.register(OPERATOR.address, OWNER.address, hash_tuple("p"), hash_tuple("b"), hash_tuple("net")))


async def _orders(stage: Stage, service: Service, now: int) -> list[str]:
    """Ids of the client's two runs; none while the coordinator knows the money or the offer not yet. The same again are the same."""
    answers = [await _order(stage, service, number, now) for number in (1, 2)]
    return [str(tree["jobId"]) for tree in answers if "jobId" in tree]


async def _order(stage: Stage, service: Service, number: int, now: int) -> dict[str, object]:
    coordinator, spec = stage.keys.account.address, a_spec(f"run-{number}")
    message = Order(
        client=stage.client.address, coordinator=coordinator, spec_hash=spec.digest(), input_root=input_root(spec),
        max_price_per_hour=Price(200_000), budget=Amount(100_000), max_executions=Small(1), audit_premium_bps=Bps(500),
        max_fee_bps=Bps(500), verify_tier=VerifyTier.STANDARD, comparator=Comparator.EXACT, caseable=True, host_class=ZERO_HASH,
        witness=ZERO_ADDRESS, accept_unwitnessed=True, accept_unverified=True, sealed_key_hash=ZERO_HASH, max_recipients=Small(0),
        expiry=UnixSeconds(now + 3600), nonce=Nonce(number),
    )  # fmt: skip
    lent = Session(stage.client.address, SESSION.address, coordinator, Amount(90 * USD), UnixSeconds(now + 3600))
    domain = stage.deployment.domain()
    submission = Submission(seal(domain, message, SESSION.sign), seal(domain, lent, stage.client.sign), spec)
    async with stage.session.post(f"{service.url}/v1/orders", data=codec.encode(submission)) as response:
        return dict(await response.json())
