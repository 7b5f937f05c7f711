"""The routes of /v1: each handler checks the request, then submits an event or answers a view."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from aiohttp import web

from quorate_coordinator.api import front_page
from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.handlers import handles
from quorate_coordinator.api.openapi import document
from quorate_coordinator.base.request_limits import BODY_BYTES_MAX
from quorate_coordinator.core import views
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.status.history import HistoryQuery, query_of
from quorate_coordinator.storage.run_access import RunAccess
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages import envelope
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.job_spec import validate as validate_spec
from quorate_protocol.messages.market_history import MarketHistory
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.signed import Order, Session, Stop, Voucher, Witness
from quorate_protocol.messages.views import (
    AckView,
    AllowanceRequest,
    GiveBackRequest,
    GiveBackView,
    ImportedLogs,
    ImportedView,
    InfoView,
    ObservedView,
    PlanRequest,
)
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules import orders
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, Hash32, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.actor.actor import Actor
from quorate_runtime.http import client_networks
from quorate_runtime.http.coordinator_routes import (
    Cases,
    Done,
    FrontPage,
    Health,
    Offers,
    Routes,
    Runs,
)
from quorate_runtime.keys.crypto import recover, recover_again
from quorate_runtime.process.health import Problem
from quorate_runtime.version import version_number

M = TypeVar("M")
RUNS_MAX = 1_000
PAGE_MAX = 1_000
LINES_MAX = 256  # of the public log in one page
VERSION = version_number()
READY_RETRY_SECONDS = 5.0


@dataclass(slots=True)
class Api:
    """Handlers of one coordinator."""

    core: CoordinatorCore
    actor: Actor[ev.Event, Effect]
    auth: Auth
    info: Callable[[], InfoView]
    clock: Clock
    # receipt body by CID; None when it is not stored
    receipt: Callable[[str], Awaitable[bytes | None]]
    history: RunReader
    access: RunAccess
    problems: Callable[[], tuple[Problem, ...]]
    market_history: Callable[[HistoryQuery], Awaitable[MarketHistory]]
    # Raises Refused if image or an input is in no source.
    check_inputs: Callable[[JobSpec, Address], Awaitable[bool]]
    # Raises Refused for larger outputs than the store keeps.
    check_output: Callable[[JobSpec], None]
    # Raises Refused or Unavailable unless `Jobs` has the order's budget.
    must_be_funded: Callable[[Order], Awaitable[None]]
    # Raises Refused while nothing more can be stored but receipts.
    must_have_room: Callable[[], None]
    deployment_hash: str  # the hash by which people compare deployments
    imported: Callable[[Address | None], tuple[ImportedView, ...]] = lambda _: ()
    _page: FrontPage | None = None

    def now(self) -> UnixSeconds:
        return UnixSeconds(int(self.clock.now()))

    @handles(Routes.FRONT_PAGE)
    async def get_front_page(self, request: web.Request) -> web.Response:
        now = self.now()
        if self._page is None or now - self._page.at >= front_page.SECONDS_KEPT:
            self._page = front_page.front_page(
                self.core.state, now, self.info(), self.deployment_hash
            )
        return front_page.response(self._page, request.headers.get("Accept", ""))

    @handles(Routes.OPENAPI)
    async def get_document(self, _: web.Request) -> web.Response:
        return web.Response(body=openapi_document(), content_type="application/json")

    @handles(Routes.INFO)
    async def get_info(self, _: web.Request) -> web.Response:
        return answer(self.info())

    @handles(Routes.OBSERVED)
    async def get_observed(self, request: web.Request) -> web.Response:
        """A provider behind a router learns its network from it."""
        address = client_networks.address_of(request.remote or "")
        return answer(ObservedView("" if address is None else str(address)))

    @handles(Routes.HEALTH)
    async def get_health(self, _: web.Request) -> web.Response:
        own, problems = self.core.state.own, self.problems()
        lag = max(0, self.now() - own.block_time)
        return answer(Health(not problems, own.block, lag, len(self.core.state.live), problems))

    @handles(Routes.READY)
    async def get_ready(self, _: web.Request) -> web.Response:
        """Load balancers look only at the status: 503 with every problem, or 200."""
        problems = self.problems()
        if problems:
            raise Unavailable(
                "; ".join(f"{problem.name}: {problem.text}" for problem in problems),
                READY_RETRY_SECONDS,
            )
        return answer(Done())

    @handles(Routes.OFFERS)
    async def get_offers(self, request: web.Request) -> web.Response:
        found = views.offer_views(self.core.state, self.now(), *page_of(request))
        return answer(Offers(tuple(found)))

    @handles(Routes.MARKET_HISTORY)
    async def get_market_history(self, request: web.Request) -> web.Response:
        return answer(await self.market_history(query_of(request.query, self.now())))

    @handles(Routes.PLAN)
    async def post_plan(self, request: web.Request) -> web.Response:
        """A stranger may ask, so a plan counts for several requests. A client that sends its token
        hears of its own images that cannot be verified.
        """
        self.auth.rates.count_address(request.remote, Routes.PLAN.tokens - 1)
        wanted = await read_body(request, PlanRequest)
        validate_spec(wanted.spec)
        client = self.auth.account(request) or ZERO_ADDRESS
        state, rules = self.core.state, self.core.rules
        view = views.plan_view(state, rules, self.now(), wanted, client)
        try:
            self.check_output(wanted.spec)
        except Refused as refused:  # not re-raised: a plan says why an order would be refused
            nearest = view.nearest or refused.detail.removeprefix("order: ")
            view = replace(view, refusal=view.refusal or refused.code.value, nearest=nearest)
        return answer(view)

    @handles(Routes.SESSION)
    async def post_session(self, request: web.Request) -> web.Response:
        """The session key may act from now on, also before its first order."""
        signed = await read_envelope(request, Session)
        session = signed.message
        if (
            envelope.signer(self.core.rules.domain, signed, recover) != session.client
            or session.coordinator != self.core.rules.coordinator
        ):
            raise Refused(
                Code.WRONG_SIGNER, "session: not signed by its client, or for another coordinator"
            )
        longest = self.core.rules.limits.session_max
        if not self.now() < session.expires <= self.now() + longest + 60:
            raise Refused(Code.EXPIRED, f"session: must expire within {longest} s")
        self.auth.rates.count_account(session.client)
        await self.actor.submit(ev.SessionReceived(signed))
        return answer(Done())

    @handles(Routes.ORDER)
    async def post_order(self, request: web.Request) -> web.Response:
        submission = await read_body(request, orders.Submission)
        rules = self.core.rules
        orders.validate(
            submission, rules.domain, recover_again, rules.coordinator, self.now(), rules.limits
        )
        client = submission.order.message.client
        self.auth.rates.count_account(client)
        job_id = digest(rules.domain, submission.order.message)
        try:
            is_known = job_id in self.core.state.jobs
            if not is_known:
                self._check_new(client)
                self.check_output(submission.spec)
            if submission.escrowed and not is_known:
                await self.must_be_funded(submission.order.message)
            lacks_content = False
            if not is_known and (submission.escrowed or client in self.core.state.clients):
                lacks_content = await self.check_inputs(submission.spec, client)
            order = ev.OrderReceived(submission, submission.escrowed, lacks_content)
            ack = await self.actor.submit(order)
            if isinstance(ack, Refused):
                raise ack
            if not is_known:
                self.auth.rates.by_order.charge(client)
        except Refused as refused:
            if refused.code not in (Code.REPLAYED, Code.NOT_STORED):
                raise
            # A run that is over and archived: the same order gives the same Ack, as it does while
            # the run is in the state.
            ack = self.history.ack(job_id)
            if ack is None:
                raise
        assert isinstance(ack, envelope.Envelope)
        return answer(AckView(ack.message.job_id, ack))

    def _check_new(self, client: Address) -> None:
        """Raises Refused without room for orders, Busy for a client with too many uncharged
        ones.
        """
        self.must_have_room()
        known = self.core.state.clients.get(client)
        self.auth.rates.check_order(client, known.charged if known is not None else 0)

    @handles(Routes.RUNS)
    async def get_runs(self, request: web.Request) -> web.Response:
        account = self.auth.required(request)
        return answer(Runs(tuple(self.history.runs_of(account, RUNS_MAX))))

    @handles(Routes.RUN)
    async def get_run(self, request: web.Request) -> web.Response:
        """Executors and jurors do not see how to get the output."""
        return answer(self.access.view(job_id_of(request), self.auth.account(request)))

    @handles(Routes.STOP)
    async def post_stop(self, request: web.Request) -> web.Response:
        stop = await read_envelope(request, Stop)
        if stop.message.job_id != job_id_of(request):
            raise Refused(Code.MALFORMED, "stop: jobId is not the one in the path")
        key = self._signer(stop)
        # an archived run has stopped already
        if self.history.session_key(stop.message.job_id) != key:
            await self.actor.submit(ev.StopReceived(stop, key))
        return answer(Done())

    @handles(Routes.ALLOWANCE)
    async def post_allowance(self, request: web.Request) -> web.Response:
        account = self.auth.required(request)
        named = await read_body(request, AllowanceRequest)
        await self.actor.submit(ev.AllowanceNamed(job_id_of(request), account, named.most))
        return answer(Done())

    @handles(Routes.WITNESS)
    async def post_witness(self, request: web.Request) -> web.Response:
        witness = await read_envelope(request, Witness)
        await self.actor.submit(ev.WitnessReceived(witness, self._signer(witness)))
        return answer(Done())

    @handles(Routes.VOUCHER)
    async def post_voucher(self, request: web.Request) -> web.Response:
        voucher = await read_envelope(request, Voucher)
        await self.actor.submit(ev.VoucherReceived(voucher, self._signer(voucher)))
        return answer(Done())

    def _signer(self, signed: envelope.AnyEnvelope) -> Address:
        """Counts one request for the key that signed: an account's own, or that of its session."""
        key = envelope.signer(self.core.rules.domain, signed, recover)
        self.auth.rates.count_account(key)
        return key

    @handles(Routes.RECEIPT)
    async def get_receipt(self, request: web.Request) -> web.Response:
        cid = self.access.receipt_cid(job_id_of(request), self.auth.account(request))
        if cid is None:
            raise Refused(Code.TOO_EARLY, "receipt: there is none before the verdict")
        body = await self.receipt(cid)
        if body is None and job_id_of(request) in self.core.state.jobs:
            raise Unavailable(f"receipt: {cid} is being stored", 1.0)
        if body is None:
            # It was stored before the job left the state, so it has been deleted since then.
            raise Refused(
                Code.UNKNOWN,
                "receipt: it was kept for its time and then deleted; its client and its "
                "providers may have it",
            )
        content = canonical.canonical({"body": canonical.parse(body, len(body)), "cid": cid})
        return web.Response(body=content, content_type="application/json")

    @handles(Routes.ACCOUNT)
    async def get_account(self, request: web.Request) -> web.Response:
        """Other accounts may not see what it spends."""
        account = address_of(request)
        if self.auth.required(request) != account:
            raise Refused(Code.NOT_YOURS, "account: only its owner may see it")
        return answer(views.account_view(self.core.state, account))

    @handles(Routes.GIVE_BACK)
    async def post_give_back(self, request: web.Request) -> web.Response:
        account = self.auth.required(request)
        asked = await read_body(request, GiveBackRequest)
        amount = await self.actor.submit(ev.GiveBackAsked(account, asked.amount))
        assert isinstance(amount, int)
        return answer(GiveBackView(Amount(amount)))

    @handles(Routes.PROVIDER)
    async def get_provider(self, request: web.Request) -> web.Response:
        return answer(views.provider_view(self.core.state, address_of(request), self.now()))

    @handles(Routes.REPUTATION)
    async def get_reputation(self, _: web.Request) -> web.Response:
        return answer(views.reputation_head(self.core.state, self.core.rules))

    @handles(Routes.REPUTATION_LOG)
    async def get_reputation_log(self, request: web.Request) -> web.Response:
        """A line appears once it is durable in the archive."""
        after, limit = lines_of(request)
        lines = await asyncio.to_thread(self.history.archive.lines_after, after, limit)
        known = self.core.state.own.log.count
        body = b",".join(line for seq, line in lines if seq < known)
        return web.Response(body=b'{"lines":[' + body + b"]}", content_type="application/json")

    @handles(Routes.REPUTATION_IMPORTED)
    async def get_imported(self, request: web.Request) -> web.Response:
        text = request.query.get("provider")
        provider = None if text is None else Address(_hex_of(text, 20, "provider"))
        return answer(ImportedLogs(self.imported(provider)))

    @handles(Routes.CASES)
    async def get_cases(self, _: web.Request) -> web.Response:
        return answer(Cases(tuple(views.case_views(self.core.state))))


def answer(view: object) -> web.Response:
    return web.Response(body=canonical.encode(view), content_type="application/json")


@cache
def openapi_document() -> bytes:
    """Cached, because it depends only on the program."""
    return json.dumps(document(VERSION), ensure_ascii=False).encode()


def page_of(request: web.Request) -> tuple[int, Address | None]:
    text, after = request.query.get("limit", str(PAGE_MAX)), request.query.get("after")
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= PAGE_MAX):
        raise Refused(Code.MALFORMED, f"limit: 1 to {PAGE_MAX}")
    return int(text), None if after is None else Address(_hex_of(after, 20, "after"))


def lines_of(request: web.Request) -> tuple[int, int]:
    """Without `after` it begins at line 0."""
    after, limit = request.query.get("after", ""), request.query.get("limit", str(LINES_MAX))
    for text, name in ((after or "0", "after"), (limit, "limit")):
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise Refused(Code.MALFORMED, f"{name}: a whole number is needed")
    if not 1 <= int(limit) <= LINES_MAX:
        raise Refused(Code.MALFORMED, f"limit: 1 to {LINES_MAX}")
    return int(after) if after else -1, int(limit)


def job_id_of(request: web.Request) -> Hash32:
    return Hash32(_hex_of(request.match_info["job"], 32, "jobId"))


def ticket_of(request: web.Request) -> Hash32:
    return Hash32(_hex_of(request.match_info["ticket"], 32, "ticket"))


def address_of(request: web.Request) -> Address:
    return Address(_hex_of(request.match_info["address"], 20, "address"))


def _hex_of(text: str, size: int, field: str) -> bytes:
    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"{field}: {text[:80]!r} is not hex") from error
    if len(value) != size:
        raise Refused(Code.MALFORMED, f"{field}: {size} bytes of 0x-hex are needed")
    return value


async def read_body(request: web.Request, kind: type[M]) -> M:
    return canonical.from_json(kind, canonical.parse(await request.read(), BODY_BYTES_MAX))


async def read_envelope(request: web.Request, kind: type[M]) -> envelope.Envelope[M]:
    return envelope.from_json(canonical.parse(await request.read(), BODY_BYTES_MAX), kind)
