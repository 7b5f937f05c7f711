"""A juror fetches what a case needs from the gateways that the job spec names, like a lease."""

from pathlib import Path

import pytest
from aiohttp import web

from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_node.core import effects, events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.executors.job_runner import JobRunner
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_node.owner.jury import JuryService
from quorate_protocol.limits import DEVNET, MAINNET, Limits
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.units import ZERO_HASH, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock
from support.http_server import on_loopback
from support.markets.provider_world import (
    CPUS,
    PROVIDER,
    Driver,
    case_names,
    case_opened,
    jury_drawn,
    make_spec,
    make_terms,
)
from support.offers import MACHINE, class_of

CASE = case_names()[1]
MIB = 1 << 20


def juror(limits: Limits, spec: JobSpec) -> ProviderCore:
    """Returns the core of a provider that was drawn as a juror of a case about the spec."""
    driver = Driver(ProviderCore(replace(make_terms(), limits=limits)))
    driver.do(case_opened(spec_hash=spec.digest(), class_id=class_of(spec)))
    driver.do(jury_drawn(PROVIDER))
    return driver.core


@pytest.mark.rule("4.26")
@pytest.mark.parametrize("limits", [MAINNET, DEVNET], ids=["mainnet", "devnet"])
async def test_a_juror_asks_the_gateways_of_the_spec(tmp_path: Path, limits: Limits) -> None:
    """Outside a devnet a gateway that a client named may not be in the juror's own network."""
    origin, store = ContentStore(tmp_path / "origin", MIB), ContentStore(tmp_path / "own", MIB)
    image, app = await origin.put(b"image", "client"), web.Application()
    add_gateway_routes(app, origin)
    clock, reported = SystemClock(), list[events.Event]()
    executor, hosts = NoopExecutor(tmp_path / "noop", clock), {CPUS.id(): MACHINE}
    runner = JobRunner(executor, store, tmp_path / "home", clock, hosts)

    async def submit(event: events.Event) -> None:
        reported.append(event)

    async with on_loopback(app) as url:
        spec = replace(make_spec(), image=str(image.cid), image_bytes=5, gateways=(url,))
        await store.put(spec.encode(), "me")
        core = juror(limits, spec)
        # the test uses no chain
        court = JuryService(core, runner, {}, None, None, None, None, clock)  # type: ignore[arg-type]
        # What is not to be had is asked for until half of the time is over.
        soon = UnixSeconds(int(clock.now()) + (60 if limits is DEVNET else 6))
        again = effects.Reexecute(CASE, spec.digest(), CPUS.id(), class_of(spec), soon)
        await court.perform(again, submit)
    (event,) = reported
    assert isinstance(event, events.Reexecuted)
    assert (event.digest != ZERO_HASH) == (limits is DEVNET)
    assert sum(store.fetched.by_source().values()) == (5 if limits is DEVNET else 0)
    await origin.close()
    await store.close()
