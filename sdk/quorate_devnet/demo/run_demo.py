"""The demo from beginning to end: a devnet with one liar, two clients, and everything until the
last claim is paid.
"""

import asyncio
import json
import shutil
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console

from quorate.client.market import Market
from quorate.errors import QuorateError
from quorate.images import build_python_image
from quorate_content.dag.disk_tree import cid_of_path
from quorate_contracts.deploy import Contracts
from quorate_devnet.config import DevnetConfig, ExecutorChoice
from quorate_devnet.demo import outcome, scenario
from quorate_devnet.demo.accounting import Parties, conservation, read_gas
from quorate_devnet.demo.client_orders import PRICER, RENDERER, Orders
from quorate_devnet.demo.market_watch import Sight, Watch
from quorate_devnet.demo.outcome import Ending
from quorate_devnet.demo.png import assemble, png
from quorate_devnet.demo.screen import Screen, result_table
from quorate_devnet.devnet import Devnet, running
from quorate_devnet.setup.engine_check import load_image
from quorate_node.executors.selection import BANNER
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import ZERO_ADDRESS, Address
from quorate_runtime.chain import ChainClient, Rpc

PROVIDERS, LIARS, CLIENTS = 5, 1, 2
LOOK_SECONDS = 0.7
BUSY_RUNS = 3  # fewer under way, and no case yet: one more order
DEADLINE_SECONDS = 600.0
PATIENCE_SECONDS = (
    150.0  # in which something moves on any machine: the longest stage takes 20 with two cores free
)
PLAIN_WIDTH = 132


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the person chose."""

    out: Path
    executor: ExecutorChoice = ExecutorChoice.AUTO
    is_json: bool = False
    folder: Path | None = None  # of the devnet; a temporary one by default


class DemoFailed(Exception):
    """The demo did not show what it should; the message says what is missing."""


def demo(options: DemoOptions) -> int:
    """Runs it; the process's exit code. Ctrl-C ends the devnet as well."""
    console = Console(stderr=options.is_json)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    try:
        with tempfile.TemporaryDirectory(prefix="quorate-demo-") as folder:
            ending, names = asyncio.run(
                _bounded(options, options.folder or Path(folder) / "devnet", console)
            )
    except (DemoFailed, QuorateError, Refused, Unavailable, ValueError, TimeoutError) as error:
        # Not re-raised: this is the end of the program, and the sentence is the answer.
        console.print(
            f"[bold red]the demo failed:[/] {str(error) or 'time is up'}", highlight=False
        )
        return 1
    console.print(result_table(ending, names))
    found = outcome.problems(ending)
    for problem in found:
        console.print(f"[bold red]not as it should be:[/] {problem}", highlight=False)
    if not options.is_json:
        console.print(
            f"picture {options.out / 'render.png'} · receipt {options.out / 'receipt.json'} "
            f"(recheck it: quorate verify)"
        )
    else:
        print(json.dumps(outcome.to_json(ending)), flush=True)  # noqa: T201 - the program's answer
    return 1 if found else 0


class Stage:
    """Where the story stands. A slow machine gets all the time it needs while the story moves, a
    standing one is told soon.
    """

    def __init__(self, now: float) -> None:
        """`now` in seconds of the loop's clock, as below."""
        self.began, self.name, self.limit = now, "starting the devnet", now + PATIENCE_SECONDS

    def reach(self, name: str, now: float) -> float:
        """Notes it; until when the next one has to come."""
        if name != self.name:
            self.name, self.limit = name, min(now + PATIENCE_SECONDS, self.began + DEADLINE_SECONDS)
        return self.limit


class _Bound:
    """Ends the demo at the limit of its stage."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self.stage = Stage(self._clock())
        self.timeout = asyncio.timeout_at(self.stage.limit)

    def reach(self, name: str) -> None:
        self.timeout.reschedule(self.stage.reach(name, self._clock()))


async def _bounded(
    options: DemoOptions, folder: Path, console: Console
) -> tuple[Ending, dict[Address, str]]:
    began = time.monotonic()
    bound = _Bound()
    try:
        async with bound.timeout:
            return await _run(options, folder, console, began, bound)
    except Exception as error:
        # The logs would go with the temporary folder, and they are what somebody needs now.
        logs = await asyncio.to_thread(_keep_logs, folder, options.out)
        if isinstance(error, TimeoutError) and bound.timeout.expired():
            seconds = time.monotonic() - began
            raise DemoFailed(
                f"not done after {seconds:.0f} s; it stands still at: {bound.stage.name}; logs: "
                f"{logs}"
            ) from error
        raise


async def _run(
    options: DemoOptions, folder: Path, console: Console, began: float, bound: _Bound
) -> tuple[Ending, dict[Address, str]]:
    options.out.mkdir(parents=True, exist_ok=True)
    examples = scenario.examples_folder()
    scene = scenario.read_scene(examples)
    config = DevnetConfig(folder, PROVIDERS, LIARS, CLIENTS, executor=options.executor)
    image = folder.parent / "image.tar"
    building = asyncio.create_task(asyncio.to_thread(build_python_image, image, ("numpy",)))
    async with AsyncExitStack() as stack:
        names: dict[Address, str] = {}
        screen = stack.enter_context(Screen(console, names))
        screen.milestone(
            "starting chain, beacon, coordinator and five providers, of which one lies"
        )
        devnet = await stack.enter_async_context(running(config, screen.milestone))
        names.update(
            {
                account: f"provider-{index}{' (liar)' if index < LIARS else ''}"
                for index, account in enumerate(devnet.providers)
            }
        )
        if devnet.executor is ExecutorChoice.PROCESS:
            console.print(BANNER, highlight=False, markup=False, soft_wrap=True)
        bound.reach("building the image")
        built = await building
        if devnet.executor.is_engine:
            await asyncio.to_thread(load_image, image)
        screen.milestone(
            f"everything is up after {devnet.seconds:.1f} s; image of "
            f"{built.archive_bytes // 1_000_000} MB is ready"
        )
        bound.reach("running the jobs")
        story = _Story(options, devnet, screen, scene, examples, image, bound)
        ending = await story.tell(stack, began)
    return ending, names


def _keep_logs(folder: Path, out: Path) -> Path:
    kept = out / "logs"
    if (folder / "logs").is_dir():
        shutil.copytree(folder / "logs", kept, dirs_exist_ok=True)
    return kept


@dataclass(slots=True)
class _Story:
    """Orders, watching and the end."""

    options: DemoOptions
    devnet: Devnet
    screen: Screen
    scene: scenario.Scene
    examples: Path
    image: Path
    bound: _Bound

    async def tell(self, stack: AsyncExitStack, began: float) -> Ending:
        """From the first order to the last claim."""
        devnet = self.devnet
        markets = (await self._market(stack, RENDERER), await self._market(stack, PRICER))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        chain, contracts = (
            ChainClient(Rpc(devnet.chain_url, session)),
            Contracts.of(devnet.deployment),
        )
        watch = Watch(
            session,
            devnet.coordinator_url,
            markets,
            devnet.providers,
            devnet.providers[0],
            chain,
            contracts,
        )
        orders = Orders(markets, self.scene, self.examples, self.image)
        stack.push_async_callback(orders.cancel)
        self.screen.milestone(
            f"scene {self.scene.cid}: {self.scene.tiles} tiles; option: {scenario.PRICINGS} seeds"
        )
        await orders.place_first()
        self.screen.milestone(
            f"both clients have ordered their first two jobs, image {orders.image_cid}"
        )
        sight = await self._follow(watch, orders)
        await orders.finish()
        picture = await asyncio.to_thread(self._write_results, orders, sight)
        gas = await read_gas(chain, sight.books)
        parties = Parties(
            devnet.coordinator,
            devnet.providers,
            tuple(profile.account.address for profile in devnet.profiles),
        )
        sums = await conservation(chain, contracts, sight.books, parties)
        credited = sum(view.final + view.held for view in sight.providers.values())
        credited += await watch.leaf(devnet.coordinator) + await watch.leaf(ZERO_ADDRESS)
        return Ending(
            sight,
            devnet.executor.value,
            devnet.providers[0],
            picture,
            orders.image_cid,
            scenario.combined_price(orders.output(PRICER)),
            gas,
            tuple(sums),
            sum(account.charged for account in sight.accounts),
            credited,
            time.monotonic() - began,
        )

    async def _market(self, stack: AsyncExitStack, client: int) -> Market:
        def notice(sentence: str) -> None:
            self.screen.milestone(f"client-{client}: {sentence}", "dim")

        return await stack.enter_async_context(Market(self.devnet.profiles[client], notice=notice))

    async def _follow(self, watch: Watch, orders: Orders) -> Sight:
        """Until the liar is convicted and everybody is paid."""
        liar = self.devnet.providers[0]
        while True:
            sight = await watch.look()
            self.screen.show(sight, liar)
            failed = orders.failed()
            if failed is not None:
                raise DemoFailed(f"a run failed: {failed}") from failed
            ended = self.devnet.family.ended()
            if ended is not None:
                raise DemoFailed(
                    f"{ended.name} ended with status {ended.process.returncode}: {ended.tail()}"
                )
            if sight.case is not None and sight.case.convicted is False:
                raise DemoFailed(
                    f"the case against the liar ended without a conviction ({sight.case.phase})"
                )
            self.bound.reach(stage_of(sight))
            if (
                orders.are_all_placed
                and sight.all_accepted()
                and sight.case is not None
                and sight.case.convicted
                and sight.is_all_paid()
            ):
                self.screen.milestone(
                    "the epoch is final, and every provider has claimed what it earned", "green"
                )
                return sight
            await self._order_more(orders, sight, liar)
            await asyncio.sleep(LOOK_SECONDS)

    async def _order_more(self, orders: Orders, sight: Sight, liar: Address) -> None:
        """The rest once the liar is accused (or nobody waits any more); single orders while it
        has not lied to both clients.
        """
        under_way = len(sight.runs) - len(sight.decided())
        if not orders.are_all_placed and (sight.case is not None or under_way == 0):
            await orders.place_rest()
            self.screen.milestone(
                f"the other {scenario.PRICINGS + self.scene.tiles - 4} orders are in"
            )
        elif sight.case is None and under_way < BUSY_RUNS and orders.are_all_placed:
            await self._one_more(orders, sight, liar)

    async def _one_more(self, orders: Orders, sight: Sight, liar: Address) -> None:
        """A case needs lies to both clients: whoever was not lied to yet orders again."""
        fooled = {run.client for run in sight.lies(liar)}
        client = next(
            (
                index
                for index, profile in enumerate(self.devnet.profiles)
                if profile.account.address not in fooled
            ),
            PRICER,
        )
        name = await orders.place_extra(client)
        self.screen.milestone(
            f"client-{client} orders {name} as well: the liar was not asked often enough yet", "dim"
        )

    def _write_results(self, orders: Orders, sight: Sight) -> str:
        """The picture and one tile's receipt; the picture's CID."""
        scene, out = self.scene, self.options.out
        tiles = [(folder / scenario.TILE_FILE).read_bytes() for folder in orders.output(RENDERER)]
        picture = out / "render.png"
        picture.write_bytes(
            png(
                scene.width,
                scene.height,
                assemble(tiles, scene.columns, scene.tile_width, scene.tile_height),
            )
        )
        renderer = self.devnet.profiles[RENDERER].account.address
        faulted = next(
            run.job_id for run in sight.lies(self.devnet.providers[0]) if run.client == renderer
        )
        (out / "receipt.json").write_bytes(orders.results[faulted].receipt.read_bytes())
        return str(cid_of_path(picture))


def stage_of(sight: Sight) -> str:
    """Where the story stands, for whoever has to be told that it took too long."""
    if not sight.all_accepted():
        return f"{len(sight.decided())} of {len(sight.runs)} runs have a verdict"
    if sight.case is None:
        return "waiting for lies to both clients"
    if sight.case.convicted is None:
        return f"the case is at: {sight.case.phase}"
    return "waiting for the last claims"
