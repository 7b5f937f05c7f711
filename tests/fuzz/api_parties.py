"""A coordinator with everybody who may ask it: nobody, a stranger, a client and a provider.

The client is funded and signs with its session key, the provider with its operator key. The client
has uploaded a file and has two runs with the provider: one that may end at once, one that the
provider keeps running.
"""

import asyncio
import io
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from quorate_coordinator.service import Service
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.codec import canonical
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount
from quorate_runtime.keys.crypto import KeySigner
from support.markets.coordinator_stage import Stage, deployed_stage, running, until
from support.markets.wired_providers import Floor, Place, WiredProvider
from support.messages import a_spec

NOBODY, STRANGER, CLIENT, PROVIDER = "nobody", "stranger", "client", "provider"
WHO = (NOBODY, STRANGER, CLIENT, PROVIDER)
MONEY, HOUR = Amount(100 * USD), 3600
OWNER = KeySigner(dev_account(7))
SESSION, OPERATOR, UNKNOWN = (KeySigner(bytes([number]) * 32) for number in (0x43, 0x44, 0x42))


@dataclass(frozen=True, slots=True)
class Parties:
    """The parties of one service.

    `headers` belong to each of WHO. `known`: values of path parameters that exist here, by
    parameter name.
    """

    url: str
    headers: dict[str, dict[str, str]]
    known: dict[str, tuple[str, ...]]


@asynccontextmanager
async def parties(folder: Path) -> AsyncIterator[Parties]:
    """Makes all parties, until the block ends."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(deployed_stage(folder))
        service = await stack.enter_async_context(running(stage.service()))
        await asyncio.gather(
            stage.fund(stage.client, MONEY), stage.register(OWNER, 0, OPERATOR.address)
        )
        floor = Floor(Place.of(stage, service.url), folder / "outputs")
        await stack.enter_async_context(
            WiredProvider(OPERATOR, floor, stage.session, account=OWNER.address).serving()
        )
        headers = {
            NOBODY: {},
            STRANGER: stage.token(UNKNOWN.address, UNKNOWN, HOUR),
            CLIENT: stage.token(stage.client.address, SESSION, HOUR),
            PROVIDER: stage.token(OWNER.address, OPERATOR, HOUR),
        }
        now = int(time.time())
        runs = await until(lambda: _orders(stage, service, now), lambda found: len(found) == 2)
        await floor.until_matched(1)
        floor.runs[0].set()
        async with stage.session.put(
            f"{service.url}/v1/content", data=io.BytesIO(b"hello"), headers=headers[CLIENT]
        ) as response:
            assert response.status == 200, await response.text()
            cid = str((await response.json())["cid"])
        addresses = tuple(f"0x{address.hex()}" for address in (stage.client.address, OWNER.address))
        yield Parties(
            service.url,
            headers,
            {"job": tuple(runs), "address": addresses, "cid": (cid,), "number": ("0", "1")},
        )


async def _orders(stage: Stage, service: Service, now: int) -> list[str]:
    """Ids of the client's two runs; none until the coordinator knows the money and the offer.

    Repeating the call returns the same runs.
    """
    answers = [await _order(stage, service, number, now) for number in (1, 2)]
    return [str(tree["jobId"]) for tree in answers if "jobId" in tree]


async def _order(stage: Stage, service: Service, number: int, now: int) -> dict[str, object]:
    submission = stage.submission(
        stage.client, a_spec(f"run-{number}"), number, session=SESSION, now=now
    )
    await stage.prepay(service.url, submission, SESSION)
    async with stage.session.post(
        f"{service.url}/v1/orders", data=canonical.encode(submission)
    ) as response:
        return dict(await response.json())
