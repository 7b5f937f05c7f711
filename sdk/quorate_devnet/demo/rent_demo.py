"""`quorate devnet demo-rent`: machines by the minute on a devnet, as docs/howto/rent.md says."""

import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp

from quorate.base.errors import QuorateError
from quorate.client.market import Market
from quorate.client.money import rental_charges
from quorate.images import build_python_image
from quorate.trust.coordinator_identity import check_identity
from quorate_devnet.demo import rented_box, served_model
from quorate_devnet.demo.rented_box import BOX, HOST, LOOK_SECONDS, Desk, quorate_words, until
from quorate_devnet.demo.scenario import examples_folder
from quorate_devnet.market.config import MARKER, DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import Devnet, running
from quorate_node.base.config import TransportChoice
from quorate_node.status.status import Status, read_status
from quorate_protocol.messages.views import RunView
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.rules import rentals

PROVIDERS, SLOTS, SANDBOXES = 3, 2, 5
PRICE = "3.60"  # of every offer here, so that what is signed ahead is no longer time than it says
RENT = ("rent", "image.tar", "--max-price", PRICE, "--memory", "1GB", "--yes")
JUPYTER, OPENAI = "jupyter_server", "openai"
MONEY_SECONDS = 60.0
LIMITS = {  # of the figures: (the least, the most)
    "ssh_ok": (1, 1),
    "jupyter_ok": (1, 1),
    "scp_mb_s": (30, None),
    "shell_rtt_ms": (None, 100),
    "sandbox_start_p50_ms": (None, 1000),
    "egress.pip_ok": (1, 1),
    "egress.lan_reached": (None, 0),
    "service.requests": (2000, 2000),
    "service.failed_otherwise": (None, 0),
    "service.replicas_max": (2, None),
    "service.added_p50_ms": (None, 3),
    "service.rps": (300, None),
    "idle_stopped": (1, 1),
    "metered_equals_vouched": (1, 1),
    "exposure_s": (None, 120),
    "owner_yield_s": (None, 30),
}


@dataclass(slots=True)
class RentDemo:
    """One run. `found`: the figures so far; None for what this machine cannot show."""

    devnet: Devnet
    market: Market
    desk: Desk
    session: aiohttp.ClientSession
    began: float
    found: dict[str, Any] = field(default_factory=dict)
    exposure: float = 0.0

    def say(self, text: object) -> None:
        tell(f"{time.monotonic() - self.began:6.1f} s  {text}")

    async def run(self, index: str) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            await self._use_services(index)
            self.found["idle_stopped"] = await self._has_idle_ended()
            self.found["sandbox_start_p50_ms"] = await self._sandbox_ms()
            self.found["metered_equals_vouched"] = await self._is_money_right()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self.found["exposure_s"] = round(self.exposure, 1)

    async def _view(self, name: str) -> RunView:
        return await (await self.market.run(name)).status()

    async def _watch(self) -> None:
        """How far ahead the client has signed, and how long a provider has run unmetered."""
        while True:
            for entry in self.market.open_rentals():
                view = await (await self.market.run(entry.job_id)).status()
                rental, now = view.rental, time.time()
                if rental is not None and rental.started_at and view.phase != "ended":
                    ahead = rental_charges.paid_until(entry, rental) - now
                    behind = now - rental.started_at - rental.usage_ms / 1000
                    self.exposure = max(self.exposure, ahead, behind)
            await asyncio.sleep(1.0)

    async def _use_services(self, index: str) -> None:
        if find_spec(OPENAI) is None:
            self._lacks("service", OPENAI)
            return await self._use_a_box(index)
        example = examples_folder() / "rent"
        async with served_model.serving(self.desk, self.session, example, PRICE) as served:
            await served.ready(1)
            self.say(f"a service answers at {served.url}")
            await self._use_a_box(index)
            found = self.found["service"] = await served_model.load(served, self._kill)
            self.say(f"service: {found}")
            for text in sorted(set(served.failed))[:5]:
                self.say(f"  failed: {text}")

    async def _use_a_box(self, index: str) -> None:
        desk, found = self.desk, self.found
        await desk.quorate(*RENT, BOX, "--for", "2m", "--egress", HOST)
        async with desk.started(*quorate_words("keep", BOX)):
            await desk.quorate(*RENT, "idle", "--for", "2m", "--idle-stop", "20s")
            self.say("machines are rented")
            await desk.call(*quorate_words("ssh-config"))
            found["ssh_ok"] = await rented_box.is_ssh_good(desk)
            found["scp_mb_s"] = await rented_box.copy_rate(desk)
            found["shell_rtt_ms"] = await rented_box.round_trip_ms(desk)
            self.say(f"scp: {found['scp_mb_s']} MB/s; a line: {found['shell_rtt_ms']} ms")
            if find_spec(JUPYTER) is None:
                self._lacks("jupyter_ok", JUPYTER)
            else:
                found["jupyter_ok"] = await rented_box.is_jupyter_good(desk, self.session)
            urls = [self.devnet.coordinator_url, self.devnet.chain_url, self.devnet.beacon_url]
            urls += [status.gateway for status in self._statuses()]
            found["egress"] = await rented_box.egress(
                desk, [*urls, index], examples_folder() / "rent" / "reach.py"
            )
            self.say(f"egress: {found['egress']}")
            found["owner_yield_s"] = await self._evict()

    def _lacks(self, figure: str, package: str) -> None:
        self.found[figure] = None
        self.say(f"{figure}: null, because {package} is not installed here")

    async def _kill(self, name: str) -> None:
        lease = (await self._view(name)).executions[-1].assignment_hash.hex()
        await self.desk.call("docker", "kill", f"quorate-{lease}")
        self.say(f"replica {name} is killed")

    async def _evict(self) -> float:
        """The owner ends the box. Until the container is gone, and the client knows."""
        view = await self._view(BOX)
        assert view.rental is not None, "it runs"
        lease = view.executions[-1].assignment_hash.hex()
        home = self.devnet.config.provider_home(self.devnet.providers.index(view.rental.provider))
        began = time.monotonic()
        words = ("node", "evict", f"0x{lease}", "--why", "demo", "--home", str(home))
        await self.desk.call(*quorate_words(*words))
        listed = ("docker", "ps", "-q", "--filter", f"name=quorate-{lease}")

        async def is_free() -> bool:
            is_gone = not await self.desk.call(*listed)
            return is_gone and (await self._view(BOX)).phase == "ended"

        await until(is_free)
        self.say("its owner has the machine back")
        return round(time.monotonic() - began, 1)

    async def _has_idle_ended(self) -> bool:
        """Whether it ended before what was paid for it did."""

        async def is_over() -> bool:
            return (await self._view("idle")).phase == "ended"

        await until(is_over)
        view = await self._view("idle")
        assert view.rental is not None, "it ran"
        self.say(f"the idle machine ran for {view.rental.usage_ms / 1000:.0f} s")
        return view.rental.usage_ms < 100_000

    async def _sandbox_ms(self) -> int:
        """From a call to the result of the first command, with one that runs already."""
        found: list[float] = []
        asked: dict[str, Any] = {"max_price": PRICE, "budget": "1", "resources": {"cpu": 1}}
        async with self.market.sandboxes(self.desk.folder / "image.tar", warm=2, **asked) as pool:
            for _ in range(SANDBOXES):
                while not pool.ready:  # noqa: ASYNC110 - it tells nothing
                    await asyncio.sleep(LOOK_SECONDS)
                began = time.monotonic()
                async with pool.sandbox() as box:
                    if (await box.exec("echo 42")).stdout != b"42\n":
                        raise Unavailable("a sandbox does not run a command")
                    found.append(time.monotonic() - began)
        self.say("sandboxes were used")
        return round(statistics.median(found) * 1000)

    async def _is_money_right(self) -> bool:
        limit, problem = time.monotonic() + MONEY_SECONDS, "-"
        while problem and time.monotonic() < limit:
            problem = await self._money_problem()
            await asyncio.sleep(1.0)
        self.say(problem or "meters, charges, and vouchers of client and owners are equal")
        return not problem

    async def _money_problem(self) -> str:
        """Compares what meters cost with the tab, the client's own account, and the vouchers."""
        market, charges = self.market, []
        await market.settle_ended()
        limits = check_identity(self.devnet.profiles[0].pins_path, market.info).constants
        for entry in market.entries():
            rental = (await (await market.run(entry.job_id)).status()).rental
            if rental is not None:
                price, fee = rental_charges.price_of(entry, rental), rental_charges.fee_of(entry)
                usage = rentals.paid_usage(rental.usage_ms, entry.order.max_duration, limits)
                charges.append(rentals.charge_of(usage, price, fee, entry.order.budget))
        metered, pay = sum(it.total for it in charges), sum(it.pay for it in charges)
        account, debt = await market.account(), market.debt()
        vouched = sum(item.vouched for status in self._statuses() for item in status.earnings)
        is_open = account.reserved or account.vouched < account.charged
        if metered == account.charged == debt.charged and pay == vouched and not is_open:
            return ""
        return (
            f"metered {metered}, charged {account.charged}, believed {debt.charged}, vouched "
            f"{account.vouched}, reserved {account.reserved}; pay {pay}, owners hold {vouched}"
        )

    def _statuses(self) -> list[Status]:
        places = [self.devnet.config.provider_status(at) for at in range(PROVIDERS)]
        return [status for status in map(read_status, places) if status is not None]


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress


def demo_rent(folder: Path | None, is_json: bool) -> int:
    """Runs the demo and returns the exit code. Progress goes to stderr."""
    try:
        with tempfile.TemporaryDirectory(prefix="quorate-rent-") as made:
            found = asyncio.run(_run(folder or Path(made) / "devnet", Path(made)))
    except (QuorateError, Refused, Unavailable, ValueError, TimeoutError) as error:
        # Not re-raised: the program ends here, and the sentence is the answer.
        tell(f"the demo failed: {str(error) or 'time is up'}")
        return 1
    wrong = problems(found)
    for text in wrong:
        tell(f"problem: {text}")
    print(json.dumps(found, indent=None if is_json else 2), flush=True)  # noqa: T201
    return 1 if wrong else 0


async def _run(folder: Path, home: Path) -> dict[str, Any]:
    began, image = time.monotonic(), home / "image.tar"
    for program in ("docker", "ssh", "scp"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    packages = ["numpy", "pip", *([JUPYTER] if find_spec(JUPYTER) else [])]
    async with AsyncExitStack() as stack:
        index = stack.enter_context(rented_box.package_index(home / "index"))
        config = DevnetConfig(
            folder,
            providers=PROVIDERS,
            clients=1,
            slots=SLOTS,
            executor=ExecutorChoice.DOCKER,
            transport=TransportChoice.WEBSOCKET,
            rentals=True,
            egress=(HOST,),
            devnet_host=f"{HOST}=127.0.0.1:{index}",
        )
        await asyncio.to_thread(build_python_image, image, packages, has_shell=True)
        devnet = await stack.enter_async_context(running(config))
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        market = await stack.enter_async_context(Market(devnet.profiles[0], notice=lambda _: None))
        made = RentDemo(devnet, market, Desk(folder / MARKER, home), session, began)
        made.say("chain, coordinator and three providers are up")
        await made.run(f"http://127.0.0.1:{index}")
        return {**made.found, "seconds": round(time.monotonic() - began, 1)}


def problems(found: dict[str, Any]) -> list[str]:
    """Figures beyond their limits. One that is None was not measured."""
    wrong = []
    for name, (least, most) in LIMITS.items():
        group, _, figure = name.rpartition(".")
        inside = found[group] if group else found
        value = None if inside is None else inside[figure]
        if value is not None and not (least or value) <= value <= (value if most is None else most):
            wrong.append(f"{name} is {value}")
    return wrong
