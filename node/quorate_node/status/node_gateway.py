"""The provider's HTTP server.

Anybody may read what the provider publishes (a trustless gateway) and ask whether it is ready. The
owner also gets status, drain and price, with the token in the provider's home.

Inputs and outputs of jobs are in the same store and are not served. A receipt shows the salt that
opens an output, and only the coordinator knows whether its client pays for it (PROTOCOL §4).
"""

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quorate_content.dag.cid import Cid
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_node.core.phases import Live
from quorate_node.market import published_records
from quorate_node.status.status import Status
from quorate_protocol.codec import canonical
from quorate_protocol.limits import USD
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32, Price
from quorate_runtime.files import is_full, write_atomic
from quorate_runtime.http.client_networks import address_of
from quorate_runtime.http.error_responses import failures, mark_started
from quorate_runtime.http.listener import Listener, OpenConnections, cannot_listen
from quorate_runtime.http.listener_limits import ListenerLimits
from quorate_runtime.process.metrics import CONTENT_TYPE, exposition

TOKEN_HEADER = "X-Quorate-Token"
TOKEN_FILE = "control-token"
TOKEN_CHARACTERS = 64
PRICE_DIGITS_MAX = 13
GPU_NAME_MAX = 64
WHY_MAX = 200
_LEASE = re.compile("0x[0-9a-f]{64}")
LISTENER_LIMITS = ListenerLimits(connections_max=1_024, address_connections_max=128)


@dataclass(frozen=True, slots=True)
class Published:
    """What of the store anybody may read: content that the provider pins to publish it."""

    store: ContentStore

    async def may_read(self, request: web.Request, cid: Cid) -> bool:
        """A block inside of stored content is judged by that content."""
        if await self.store.stat(cid) is None:
            return True
        return any(is_published(owner) for owner in await self.store.owners_of(cid))


def is_published(owner: str) -> bool:
    """Inventory and attestation documents."""
    return owner == published_records.INVENTORY_OWNER or owner.startswith(
        published_records.PIN_OWNER + "-"
    )


class Gateway:
    """Serves until closed. `url` is set once it listens."""

    def __init__(
        self,
        store: ContentStore,
        home: Path,
        status: Callable[[], Status],
        drain: Callable[[bool], Awaitable[None]],
        set_price: Callable[[Price, str], Awaitable[None]],
        evict: Callable[[Hash32, str], Awaitable[None]],
        refresh: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`refresh` asks the chain for the balances that the status shows."""
        self._refresh, self._evict = refresh, evict
        self._status, self._drain, self._set_price = status, drain, set_price
        self._home, self._token = home, control_token(home)
        self._app = web.Application(middlewares=[failures], client_max_size=64 * 1024)
        self._app.on_response_prepare.append(mark_started)
        self._app.router.add_get("/v1/ready", self._get_ready)
        self._app.router.add_get("/metrics", self._get_metrics)
        self._metrics = registry_of(status)
        self._app.router.add_get("/v1/status", self._get_status)
        self._app.router.add_post("/v1/drain", self._post_drain)
        self._app.router.add_post("/v1/price", self._post_price)
        self._app.router.add_post("/v1/evict", self._post_evict)
        add_gateway_routes(self._app, store, may_read=Published(store).may_read)
        self._runner = web.AppRunner(
            self._app, handle_signals=False, shutdown_timeout=2.0, access_log=None
        )
        self.url = ""

    async def listen(self, host: str, port: int) -> str:
        await self._runner.setup()
        try:
            await Listener(self._runner, host, port, OpenConnections(LISTENER_LIMITS)).start()
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"
        return self.url

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _get_ready(self, request: web.Request) -> web.Response:
        """200, or 503 with the names of the problems. The sentences are only for the owner."""
        names = [problem.name for problem in self._status().problems]
        return web.json_response(
            {"ready": not names, "problems": names}, status=503 if names else 200
        )

    async def _get_metrics(self, request: web.Request) -> web.Response:
        """The owner's figures are nobody else's business, also behind a proxy on this machine."""
        named = address_of(request.remote or "")
        if named is None or not named.is_loopback or "X-Forwarded-For" in request.headers:
            return web.Response(status=403, text="metrics: only this machine may read them\n")
        return web.Response(body=exposition(self._metrics), headers={"Content-Type": CONTENT_TYPE})

    async def _get_status(self, request: web.Request) -> web.Response:
        self._check(request)
        if self._refresh is not None and "balances" in request.query:
            await self._refresh()
        return web.Response(body=canonical.encode(self._status()), content_type="application/json")

    async def _post_drain(self, request: web.Request) -> web.Response:
        self._check(request)
        check_room(self._home)
        await self._drain(request.query.get("off") is None)
        return web.json_response({})

    async def _post_price(self, request: web.Request) -> web.Response:
        """`?microUsd=` per slot-hour, or with `&gpu=` per GPU-hour."""
        self._check(request)
        text = request.query.get("microUsd", "")
        if not (text.isascii() and text.isdecimal() and len(text) <= PRICE_DIGITS_MAX):
            raise Refused(Code.MALFORMED, "price: microUsd must be a whole number")
        check_room(self._home)
        await self._set_price(Price(int(text)), request.query.get("gpu", "")[:GPU_NAME_MAX])
        return web.json_response({})

    async def _post_evict(self, request: web.Request) -> web.Response:
        """`?lease=&why=` of a rental, in hexadecimal as in the status."""
        self._check(request)
        text = request.query.get("lease", "")
        if not _LEASE.fullmatch(text):
            raise Refused(Code.MALFORMED, "lease: write 0x and 64 hexadecimal digits")
        check_room(self._home)
        await self._evict(Hash32(bytes.fromhex(text[2:])), request.query.get("why", "")[:WHY_MAX])
        return web.json_response({})

    def _check(self, request: web.Request) -> None:
        shown = request.headers.get(TOKEN_HEADER, "").encode(errors="replace")
        if not hmac.compare_digest(shown, self._token.encode()):
            raise Refused(
                Code.NOT_YOURS, f"the token in {TOKEN_FILE} of this provider's home is needed"
            )


def check_room(home: Path) -> None:
    """Raises Refused on a full disk: a command that cannot be journaled would end the daemon."""
    if is_full(home):
        raise Refused(
            Code.BUSY,
            f"the disk is full, so the provider takes no job: check `df -h {home}`, free some "
            "space, and type this again",
        )


def control_token(home: Path) -> str:
    """Made at first, mode 0600. An empty one could be guessed, so it is replaced."""
    path = home / TOKEN_FILE
    # A full disk or a power cut may have truncated the file.
    if not path.exists() or len(path.read_text()) < TOKEN_CHARACTERS:
        write_atomic(path, secrets.token_hex(TOKEN_CHARACTERS // 2).encode(), 0o600)
    return path.read_text()


# `other` keeps the label's values few.
PROBLEMS = (
    *("engine", "chain", "disk", "room", "coordinator", "stake", "gpu", "rotation", "stopping"),
    "other",
)


@dataclass(frozen=True, slots=True)
class NodeFigures(Collector):
    """The provider's figures for Prometheus, as its status is at each scrape."""

    status: Callable[[], Status]

    def collect(self) -> Iterator[Metric]:
        status = self.status()
        named = {item.name if item.name in PROBLEMS else "other" for item in status.problems}
        problems = _gauge("problem", "1 while `quorate node health` names it", "name")
        for name in PROBLEMS:
            problems.add_metric([name], name in named)
        yield problems
        slots = _gauge("run_slots", "Run slots of the terms, on offer and free", "state")
        slots.add_metric(["all"], sum(slot.count for slot in status.slots))
        slots.add_metric(["offered"], sum(slot.offered for slot in status.slots))
        slots.add_metric(["free"], sum(slot.free for slot in status.slots))
        yield slots
        pay = _gauge("pay_usd", "Pay of all coordinators since the beginning", "state")
        for state in ("earned", "held", "vouched", "paid"):
            pay.add_metric([state], sum(getattr(item, state) for item in status.earnings) / USD)
        yield pay
        jobs = _gauge(
            "jobs", "Jobs that run (some are rentals), and that ended paid or unpaid", "state"
        )
        jobs.add_metric(["running"], len(status.leases))
        jobs.add_metric(["rented"], sum(item.phase == Live.__name__ for item in status.leases))
        jobs.add_metric(["paid"], status.jobs_paid)
        jobs.add_metric(["unpaid"], status.jobs_unpaid)
        yield jobs
        egress = _gauge("rental_bytes", "Egress of the rentals that run", "direction")
        egress.add_metric(["in"], sum(item.bytes_in for item in status.leases))
        egress.add_metric(["out"], sum(item.bytes_out for item in status.leases))
        yield egress
        energy = sum(day.gpu_millijoules for day in status.income)
        for name, text, value in (
            ("wanted", "0 while the owner pauses, leaves or keeps the GPUs back", _wanted(status)),
            ("stake_usd", "Stake on chain", status.account.stake / USD),
            ("stake_lacking_usd", "What was burned of the stake", status.account.lacks / USD),
            ("connected_coordinators", "Coordinators with a connection", len(status.connected)),
            ("gpu_kwh_14_days", "Energy of GPUs during jobs of 14 days", energy / 3_600_000_000),
        ):
            yield GaugeMetricFamily(f"quorate_node_{name}", text, value)


def _wanted(status: Status) -> bool:
    away = status.is_draining or status.is_leaving or status.is_closed
    return not away and not status.kept_back


def _gauge(name: str, text: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"quorate_node_{name}", text, labels=[label])


def registry_of(status: Callable[[], Status]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(NodeFigures(status))
    return registry
