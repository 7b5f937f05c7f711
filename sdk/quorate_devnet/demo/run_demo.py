"""Runs the whole demo: a devnet with one liar and two clients, until everybody is paid."""

import asyncio
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console

from quorate.base.errors import QuorateError
from quorate.client.market import Market
from quorate.client.money.funding import fund
from quorate.images import build_python_image
from quorate.trust.coordinator_identity import check_identity
from quorate_content.dag.disk_tree import cid_of_path
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated import jobs
from quorate_devnet.demo import evidence, outcome, scenario
from quorate_devnet.demo.accounting import (
    MoneyHolders,
    check_balances,
    read_chain_history,
    read_gas,
)
from quorate_devnet.demo.attested_offers import attested_offers
from quorate_devnet.demo.client_orders import PRICER, RENDERER, Orders
from quorate_devnet.demo.evidence import DemoEvidence
from quorate_devnet.demo.market_watch import MarketSnapshot, MarketWatch
from quorate_devnet.demo.outcome import ContentReport, DemoOutcome
from quorate_devnet.demo.pictures import assemble, png
from quorate_devnet.demo.screen import Screen, evidence_lines, result_table
from quorate_devnet.market import genesis
from quorate_devnet.market.config import PASSPHRASE, DevnetConfig, ExecutorChoice
from quorate_devnet.market.content_origin import ContentOrigin, content_origin
from quorate_devnet.market.devnet import Devnet, running
from quorate_devnet.market.engine_check import load_image
from quorate_node.base import config as node_config
from quorate_node.base import provider_keys
from quorate_node.base.config import AttestationChoice
from quorate_node.cli.owner_desk import owner_desk
from quorate_node.cli.withdrawal import withdraw
from quorate_node.executors.selection import BANNER
from quorate_node.market.coordinator_dialer import LIBP2P, WEBSOCKET
from quorate_node.status.status import read_status
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Amount
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.keystore import Keystore

PROVIDERS, LIARS, CLIENTS = 5, 1, 2
SLOTS = 2  # of each honest provider, so that the liar is not drawn only because all others are busy
COORDINATOR = "coordinator"  # its name among the devnet's processes
LOOK_SECONDS = 0.7
FIRST_RUNS = 4  # if all of them gave no case, more orders are placed, some at a time
BUSY_RUNS = 3
DEADLINE_SECONDS = 600.0
PATIENCE_SECONDS = (
    # any machine makes progress within this time: the longest stage takes 20 s with two free cores
    150.0
)
PLAIN_WIDTH = 80
ESCROW_BALANCE = Amount(5 * USD)  # of the client whose order gets an escrow of its own


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The user's choices."""

    out: Path
    executor: ExecutorChoice = ExecutorChoice.AUTO
    is_json: bool = False
    folder: Path | None = None  # the devnet's folder; default: a temporary one
    go_peer: Path | None = None  # program of an IPFS peer; without one a gateway stands for it


class DemoFailed(Exception):
    """The demo did not show what it should. The message says what is missing."""


def demo(options: DemoOptions) -> int:
    """Runs the demo and returns the exit code. Ctrl-C ends the devnet too."""
    console = Console(stderr=options.is_json)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    try:
        with tempfile.TemporaryDirectory(prefix="quorate-demo-") as folder:
            result, names = asyncio.run(
                _bounded(options, options.folder or Path(folder) / "devnet", console)
            )
    except (DemoFailed, QuorateError, Refused, Unavailable, ValueError, TimeoutError) as error:
        # Not re-raised: the program ends here, and the sentence is the answer.
        console.print(
            f"[bold red]the demo failed:[/] {str(error) or 'time is up'}", highlight=False
        )
        return 1
    console.print(result_table(result, names))
    found = outcome.problems(result)
    for problem in found:
        console.print(f"[bold red]problem:[/] {problem}", highlight=False)
    if not options.is_json:
        for line in evidence_lines(result.evidence, options.out):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    else:
        print(json.dumps(outcome.to_json(result)), flush=True)  # noqa: T201 - the program's answer
    return 1 if found else 0


class StageDeadline:
    """The current stage and its deadline.

    Every new stage gets a new deadline, so a slow machine has time and a stuck one fails soon.
    """

    def __init__(self, now: float) -> None:
        """Starts at `now`, in seconds of the loop's clock."""
        self.began, self.name, self.limit = now, "starting the devnet", now + PATIENCE_SECONDS

    def reach(self, name: str, now: float) -> float:
        """Records the stage. Returns the time by which the next one must come."""
        if name != self.name:
            self.name, self.limit = name, min(now + PATIENCE_SECONDS, self.began + DEADLINE_SECONDS)
        return self.limit


class _StageTimeout:
    """Ends the demo at the deadline of its stage."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self.stage = StageDeadline(self._clock())
        self.timeout = asyncio.timeout_at(self.stage.limit)

    def reach(self, name: str) -> None:
        self.timeout.reschedule(self.stage.reach(name, self._clock()))


async def _bounded(
    options: DemoOptions, folder: Path, console: Console
) -> tuple[DemoOutcome, dict[Address, str]]:
    began = time.monotonic()
    bound = _StageTimeout()
    try:
        async with bound.timeout:
            return await _run(options, folder, console, began, bound)
    except Exception as error:
        # The logs would vanish with the temporary folder, and the user needs them now.
        logs = await asyncio.to_thread(_keep_logs, folder, options.out)
        if isinstance(error, TimeoutError) and bound.timeout.expired():
            seconds = time.monotonic() - began
            raise DemoFailed(
                f"the demo was not done after {seconds:.0f} s; it is stuck at: "
                f"{bound.stage.name}; logs: {logs}"
            ) from error
        raise


async def _run(
    options: DemoOptions, folder: Path, console: Console, began: float, bound: _StageTimeout
) -> tuple[DemoOutcome, dict[Address, str]]:
    options.out.mkdir(parents=True, exist_ok=True)
    examples = scenario.examples_folder()
    scene = scenario.read_scene(examples)
    image = folder.parent / "image.tar"
    building = asyncio.create_task(asyncio.to_thread(build_python_image, image, ("numpy",)))
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(
            content_origin(options.go_peer, folder.parent / "content")
        )
        config = DevnetConfig(
            folder,
            PROVIDERS,
            LIARS,
            CLIENTS,
            slots=SLOTS,
            executor=options.executor,
            attestation=AttestationChoice.L1,
            ipfs_gateways=(origin.gateway,),
        )
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
        image_cid = await _give(origin, image, examples, scene, screen)
        bound.reach("running the jobs")
        demo_run = _DemoRun(
            options=options,
            config=config,
            devnet=devnet,
            screen=screen,
            scene=scene,
            examples=examples,
            image_cid=image_cid,
            origin=origin,
            bound=bound,
        )
        result = await demo_run.run(stack, began)
    return result, names


async def _give(
    origin: ContentOrigin, image: Path, examples: Path, scene: scenario.Scene, screen: Screen
) -> str:
    """Puts image and inputs where providers find them by CID. Returns the image's CID."""
    for path in scenario.content_files(examples, scene):
        await origin.add(path)
    image_cid = await origin.add(image)
    screen.milestone(
        "image and inputs are in IPFS: one peer holds them, another one gets them by bitswap and "
        "serves them"
        if origin.kind == "ipfs"
        else f"a gateway of the clients serves image and inputs (note: {origin.instead})"
    )
    return image_cid


def _keep_logs(folder: Path, out: Path) -> Path:
    kept = out / "logs"
    if (folder / "logs").is_dir():
        shutil.copytree(folder / "logs", kept, dirs_exist_ok=True)
    return kept


@dataclass(slots=True)
class _DemoRun:
    """One run of the demo: orders, observation and the outcome."""

    options: DemoOptions
    config: DevnetConfig
    devnet: Devnet
    screen: Screen
    scene: scenario.Scene
    examples: Path
    image_cid: str
    origin: ContentOrigin
    bound: _StageTimeout
    restarts: int = 0  # of the coordinator
    is_restarting: bool = False

    async def run(self, stack: AsyncExitStack, began: float) -> DemoOutcome:
        devnet = self.devnet
        markets = (await self._market(stack, RENDERER), await self._market(stack, PRICER))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        chain = ChainClient(Rpc(devnet.chain_url, session))
        contracts = Contracts.of(devnet.deployment)
        watch = MarketWatch(
            session=session,
            url=devnet.coordinator_url,
            coordinator=devnet.coordinator,
            markets=markets,
            providers=devnet.providers,
            liar=devnet.providers[0],
            chain=chain,
            contracts=contracts,
        )
        self.bound.reach("attesting the providers")
        offers = await attested_offers(markets[0], PROVIDERS)
        verified = sum(offer.is_verified for offer in offers)
        self.screen.milestone(
            f"{verified} of {len(offers)} offers carry verified records of level 1, of their CPUs"
        )
        self.bound.reach("running the jobs")
        orders = Orders(markets, self.scene, self.examples, self.image_cid, self.origin.gateway)
        stack.push_async_callback(orders.cancel)
        self.screen.milestone(
            f"scene {self.scene.cid}: {self.scene.tiles} tiles; option: {scenario.PRICINGS} seeds"
        )
        await orders.place_first()
        self.screen.milestone(
            f"both clients have ordered their first two jobs, image {orders.image_cid}"
        )
        await self._follow(watch, orders, _is_accused)
        transport = await asyncio.to_thread(transport_in_use, devnet)
        owner = await self._settle_on_chain(orders, watch)
        await self._follow(watch, orders, lambda seen: _is_judged(seen, orders))
        self.screen.milestone(f"every order has its result, and {self.scene.tiles} tiles are whole")
        await orders.finish()
        await self._draw(owner)
        snapshot = await self._follow(watch, orders, MarketSnapshot.is_all_paid)
        self.screen.milestone("payrolls have paid every provider all that it earned", "green")
        picture = await asyncio.to_thread(self._write_picture, orders)
        shown = await self._evidence(orders, snapshot, chain)
        gas = await read_gas(chain, snapshot.history)
        parties = MoneyHolders(
            devnet.coordinator,
            devnet.providers,
            tuple(profile.account.address for profile in devnet.profiles),
        )
        balances = await check_balances(chain, contracts, snapshot.history, parties)
        return DemoOutcome(
            snapshot=snapshot,
            executor=devnet.executor.value,
            transport=transport,
            liar=devnet.providers[0],
            result_cid=picture,
            image_cid=orders.image_cid,
            price=scenario.combined_price(orders.output(PRICER)),
            gas=gas,
            balances=tuple(balances),
            charged=sum(account.charged for account in snapshot.accounts),
            checked=sum(market.debt().charged for market in markets),
            offers=offers,
            seconds=time.monotonic() - began,
            content=await asyncio.to_thread(self._content),
            coordinator_restarts=self.restarts,
            evidence=shown,
        )

    def _content(self) -> ContentReport:
        found: Counter[str] = Counter()
        for index in range(PROVIDERS):
            status = read_status(self.config.provider_status(index))
            found.update(status.bytes_by_source if status is not None else {})
        return ContentReport(self.origin.kind, self.origin.instead, dict(found))

    async def _market(self, stack: AsyncExitStack, client: int) -> Market:
        def notice(sentence: str) -> None:
            if not self.is_restarting:
                self.screen.milestone(f"client-{client}: {sentence}", "dim")

        return await stack.enter_async_context(Market(self.devnet.profiles[client], notice=notice))

    async def _follow(
        self, watch: MarketWatch, orders: Orders, is_over: Callable[[MarketSnapshot], bool]
    ) -> MarketSnapshot:
        """Shows the market until it is over. While there is no case, orders what it needs."""
        liar = self.devnet.providers[0]
        while True:
            snapshot = await watch.look()
            self.screen.show(snapshot, liar)
            failed = orders.failed()
            if failed is not None:
                raise DemoFailed(f"a run failed: {failed}") from failed
            ended = self.devnet.processes.ended()
            if ended is not None:
                raise DemoFailed(
                    f"{ended.name} ended with status {ended.process.returncode}: {ended.tail()}"
                )
            if snapshot.case is not None and snapshot.case.convicted is False:
                raise DemoFailed(
                    f"the case against the liar ended without a conviction ({snapshot.case.phase})"
                )
            self.bound.reach(current_stage(snapshot))
            if is_over(snapshot):
                return snapshot
            decided = len(snapshot.decided())
            is_idle = decided >= FIRST_RUNS and len(snapshot.runs) - decided < BUSY_RUNS
            if snapshot.case is None and is_idle:
                await self._one_more(orders, snapshot, liar)
            await asyncio.sleep(LOOK_SECONDS)

    async def _settle_on_chain(self, orders: Orders, watch: MarketWatch) -> Address:
        """Orders all that is left, and a job with an escrow of its own. Kills the coordinator once
        two owners agree on that job, while the other runs are under way.

        Its owners show their executions on chain and are paid, while the coordinator is away. Then
        it reads its journal, and providers and clients connect again. Returns one of the owners.
        """
        self.bound.reach("funding an order's own escrow")
        profile, market = self.devnet.profiles[PRICER], orders.markets[PRICER]
        pins = check_identity(profile.pins_path, market.info)
        url, clock = self.devnet.chain_url, SystemClock()
        await fund(profile, pins, url, ESCROW_BALANCE, "escrow", clock, into_balance=True)
        # On chain a third result cannot decide between two: it was committed after their reveals.
        self.devnet.kill("provider-0")
        self.screen.milestone("provider-0 (liar) is switched off", "dim")
        run = await orders.place_escrowed()
        self.screen.milestone(f"{run.name} has an escrow of its own, outside all tabs")
        count = await orders.place_rest()
        self.screen.milestone(f"the other {count} orders are in")
        self.bound.reach("running the job with an escrow of its own")
        async for event in run.events():
            if event.name == "verdict":
                break
        self.is_restarting = True  # else every run tells that the coordinator is away
        self.devnet.kill(COORDINATOR)
        self.screen.milestone(
            f"two owners agree on {run.name}; the coordinator is killed with SIGKILL"
        )
        self.bound.reach("owners settle a job on chain")
        history = await read_chain_history(watch.chain, watch.contracts)
        while not history.of(jobs.JobPaid):
            await asyncio.sleep(LOOK_SECONDS)
            history = await read_chain_history(watch.chain, watch.contracts)
        self.screen.milestone("its owners showed their executions on chain and are paid", "green")
        began = time.monotonic()
        await self.devnet.restart(COORDINATOR)
        self.restarts, self.is_restarting = self.restarts + 1, False
        self.screen.milestone(
            f"the coordinator serves again after {time.monotonic() - began:.1f} s, with all runs"
        )
        return next(
            item.provider for item in history.of(jobs.Shown) if isinstance(item, jobs.Shown)
        )

    async def _draw(self, owner: Address) -> None:
        """Does what `quorate node withdraw` does for an owner, whose daemon runs."""
        self.bound.reach("drawing an owner's balance")
        index = self.devnet.providers.index(owner)
        config = node_config.Config(
            home=self.config.provider_home(index),
            coordinators=(self.devnet.coordinator_url,),
            chain_url=self.devnet.chain_url,
            is_devnet=True,
        )
        keystore = Keystore.at(config.path("keys"), PASSPHRASE, DEVNET)
        keys = await asyncio.to_thread(
            provider_keys.load, keystore, None, genesis.payout_address(index)
        )
        async with owner_desk(config, keys, SystemClock()) as desk:
            found = await withdraw(desk, None, None)
        self.screen.milestone(f"provider-{index}: {', '.join(found.done)}", "green")

    async def _one_more(self, orders: Orders, snapshot: MarketSnapshot, liar: Address) -> None:
        """Orders again for a client that got no lie yet, because a case needs lies to both
        clients.
        """
        fooled = {run.client for run in snapshot.lies(liar)}
        client = next(
            (
                index
                for index, profile in enumerate(self.devnet.profiles)
                if profile.account.address not in fooled
            ),
            PRICER,
        )
        name = await orders.place_extra(client)
        if name:
            self.screen.milestone(
                f"client-{client} orders {name} too, because the liar has not run enough jobs yet",
                "dim",
            )

    def _write_picture(self, orders: Orders) -> str:
        scene, picture = self.scene, self.options.out / "render.png"
        tiles = [(folder / scenario.TILE_FILE).read_bytes() for folder in orders.output(RENDERER)]
        rows = assemble(tiles, scene.columns, scene.tile_width, scene.tile_height)
        picture.write_bytes(png(scene.width, scene.height, rows))
        return str(cid_of_path(picture))

    async def _evidence(
        self, orders: Orders, snapshot: MarketSnapshot, chain: ChainClient
    ) -> DemoEvidence:
        """Shows one lie about a tile, computes that tile here, and checks its receipt on chain."""
        self.bound.reach("checking the evidence")
        out, liar, market = self.options.out, self.devnet.providers[0], orders.markets[RENDERER]
        renderer = self.devnet.profiles[RENDERER].account.address
        run = next(run for run in snapshot.lies(liar) if run.client == renderer)
        receipt = out / evidence.RECEIPT
        receipt.write_bytes(orders.results[run.job_id].receipt.read_bytes())
        true, false = await evidence.show_lie(market, run, liar, receipt, self.scene, out)
        tile = int(run.name.rpartition("-")[2])
        here, problem = await asyncio.to_thread(evidence.repeat_here, self.scene, tile)
        url = self.devnet.chain_url
        checks, failed = await evidence.check_receipt(receipt, self.devnet.deployment, url, out)
        await evidence.keep_chain(chain.rpc, out)
        self.screen.milestone(f"the receipt of {run.name} is checked on chain: {checks} checks")
        return DemoEvidence(
            run=run.name,
            true=sha256(true).hex(),
            false=sha256(false).hex(),
            here=here,
            problem=problem,
            checks=checks,
            failed=failed,
            refusal=await asyncio.to_thread(evidence.flip_a_byte, receipt),
        )


def _is_accused(snapshot: MarketSnapshot) -> bool:
    """Whether there is a case, and no run is under way in which the liar could be."""
    return snapshot.case is not None and len(snapshot.decided()) == len(snapshot.runs)


def _is_judged(snapshot: MarketSnapshot, orders: Orders) -> bool:
    """Whether every order has an accepted result, and the liar is convicted."""
    case = snapshot.case
    is_convicted = case is not None and case.convicted is True
    return orders.are_all_placed and snapshot.all_accepted() and is_convicted


def transport_in_use(devnet: Devnet) -> str:
    """Returns libp2p if all providers are connected over it, by their own status; else websocket.
    Blocks.
    """
    homes = [devnet.config.provider_home(index) for index in range(len(devnet.providers))]
    found = [read_status(home / "status.json") for home in homes]
    used = {name for status in found if status for name in status.transports.values()}
    return LIBP2P if all(found) and used == {LIBP2P} else WEBSOCKET


def current_stage(snapshot: MarketSnapshot) -> str:
    """Returns the current stage in words, for the message if it takes too long."""
    if not snapshot.all_accepted():
        return f"{len(snapshot.decided())} of {len(snapshot.runs)} runs have a verdict"
    if snapshot.case is None:
        return "waiting for lies to both clients"
    if snapshot.case.convicted is None:
        return f"the case is at: {snapshot.case.phase}"
    return "waiting for the last payroll"
