"""A coordinator with providers in one process, for tests of the client.

Messages, signatures, content and receipts are real; nothing is scheduled. The fake checks strictly
what a client sends (orders, tokens, sums). It can cheat in one way at a time.
"""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from quorate_content.transfer.staging_routes import add_staging_routes
from quorate_contracts.artifact import CONTRACTS
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import envelope, receipt
from quorate_protocol.messages.bearer import read_token
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.market_history import MarketHistory, MarketPeriodView, PriceBand
from quorate_protocol.messages.signed import Session, Stop, Voucher, Witness
from quorate_protocol.messages.views import (
    AccountView,
    AckView,
    BeaconView,
    ExecutionView,
    InfoView,
    OfferView,
    PlanView,
    RunView,
)
from quorate_protocol.refusals import MEANINGS, Code, Refused
from quorate_protocol.rules import orders, settlement
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    Bps,
    Hash32,
    Label,
    Nonce,
    Price,
    Signature,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.keys import bls
from quorate_runtime.keys.crypto import recover
from support.http_server import on_loopback
from support.markets.fake_work import (
    CPUS,
    FEE,
    PRICE,
    STAKES,
    Cheat,
    FakeJob,
    FakeWork,
    Handler,
    key,
)
from support.offers import a_slot, an_offer

__all__ = ["Cheat", "FakeMarket", "fake_market", "key"]


class FakeMarket(FakeWork):
    """The HTTP API of the fake coordinator. Offers of owners in `forged_offers` are not signed."""

    forged_offers: frozenset[Address] = frozenset()
    locked = Amount(10**12)  # in the client's tab
    closes_at = UnixSeconds(0)

    # --------------------------------------------------------------------------------------- routes

    def app(self) -> web.Application:
        """Returns the API as an aiohttp application."""
        app = web.Application(middlewares=[self._errors], client_max_size=1 << 30)
        route = app.router
        route.add_get("/v1/info", self.get_info)
        route.add_get("/v1/offers", self.get_offers)
        route.add_get("/v1/market/history", self.get_market_history)
        route.add_post("/v1/plan", self.post_plan)
        route.add_post("/v1/orders", self.post_order)
        route.add_get("/v1/runs", self.get_runs)
        route.add_get("/v1/runs/{job}", self.get_run)
        route.add_get("/v1/events", self.get_events)
        route.add_get("/v1/runs/{job}/events", self.get_events)
        route.add_get("/v1/runs/{job}/logs", self.get_logs)
        route.add_post("/v1/runs/{job}/stop", self.post_stop)
        route.add_post("/v1/witnesses", self.post_witness)
        route.add_post("/v1/sessions", self.post_session)
        route.add_post("/v1/vouchers", self.post_voucher)
        route.add_get("/v1/receipts/{job}", self.get_receipt)
        route.add_get("/v1/accounts/{address}", self.get_account)
        add_staging_routes(app, self.store, self._uploader)
        return app

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        name = (
            f"{request.method} "
            f"{request.path.split('/')[2] if request.path.count('/') > 1 else request.path}"
        )
        self.posts[name] = self.posts.get(name, 0) + 1
        try:
            if self.is_silent is not None and self.is_silent(request):
                return await self._say_nothing(request, handler)
            return await handler(request)
        except Refused as refused:
            meaning = MEANINGS[refused.code]
            tree = {
                "code": refused.code.value,
                "sentence": meaning.sentence,
                "detail": refused.detail,
            }
            return web.json_response(tree, status=meaning.status)

    async def _say_nothing(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Does what the request says and never answers. A stream begins and stays silent."""
        if request.path.endswith(("/events", "/logs")):
            response = web.StreamResponse()
            await response.prepare(request)
        else:
            await handler(request)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    def _account(self, request: web.Request) -> Address:
        now = UnixSeconds(int(self.clock.now()))
        bearer = read_token(
            request.headers.get("Authorization", ""),
            self.domain.chain_id,
            self.coordinator.address,
            recover,
            now,
        )
        assert bearer.account == bearer.key, "the client speaks with its account key"
        return bearer.account

    async def _uploader(self, request: web.Request) -> str:
        return "0x" + self._account(request).hex()

    async def get_info(self, _: web.Request) -> web.Response:
        contracts = dict.fromkeys(CONTRACTS, STAKES)
        beacon = BeaconView(
            "http://127.0.0.1:1", bls.public_key(self.beacon_secret), 2, self.genesis
        )
        info = InfoView(
            self.coordinator.address,
            self.statement.address,
            self.domain.chain_id,
            "http://127.0.0.1:1",
            contracts,
            beacon,
            FEE,
            "devnet",
            "0",
        )
        return _answer(canonical.to_json(info))

    async def get_offers(self, _: web.Request) -> web.Response:
        views = []
        for owner in self.owners:
            slots = (replace(a_slot(CPUS, PRICE), spot=PRICE),)
            offer = an_offer(owner, 1, int(self.clock.now()) + 600, slots)
            signature = seal(self.domain, offer.signed(), self.statement.sign).sig
            if owner in self.forged_offers:
                signature = Signature(bytes(65))
            views.append(OfferView(offer, signature, 1, 0, 3, True))
        return _answer({"offers": [canonical.to_json(view) for view in views]})

    async def get_market_history(self, request: web.Request) -> web.Response:
        """Answers with two periods in two pages. The first has supply and jobs. The second is of
        another class, without a known name or prices.
        """
        since, is_second = UnixSeconds(int(request.query["since"])), "after" in request.query
        band = PriceBand(Price(100_000), PRICE, Price(400_000))
        first = MarketPeriodView(since, CPUS.id(), CPUS, 5, 3, band, 4, 9, 2_250_000, 1, Amount(7))
        unknown = Hash32(b"\x05" * 32)
        second = MarketPeriodView(since, unknown, None, 0, 0, None, 0, 0, 0, 0, Amount(0))
        periods = (second if is_second else first,)
        following = None if is_second else f"{since}-{CPUS.id().hex()}"
        by = request.query["by"]
        return _answer(canonical.to_json(MarketHistory(by, since, since, periods, following)))

    async def post_plan(self, request: web.Request) -> web.Response:
        """Checks the body strictly and answers with a PlanView."""
        tree = await _body(request)
        assert set(tree) == {"spec", "maxPricePerHour", "verifyTier", "acceptUnverified", "pool"}, (
            tree.keys()
        )
        canonical.from_json(JobSpec, tree["spec"])
        fits = tree["maxPricePerHour"] >= PRICE
        nearest = "" if fits else "cheapest is 0.30 USD; raise max_price"
        if tree["pool"] not in (f"0x{ZERO_HASH.hex()}", f"0x{CPUS.id().hex()}"):
            fits, nearest = False, f"no live offer of pool {tree['pool']} fits"
        view = PlanView(
            CPUS.id(),
            self.cheat.plan_rule,
            5,
            5 if fits else 0,
            PRICE,
            PRICE,
            2,
            Amount(1),
            Bps(self.cheat.plan_fee),
            nearest,
            "" if fits else Code.NO_OFFER.value,
        )
        return _answer(canonical.to_json(view))

    async def post_order(self, request: web.Request) -> web.Response:
        submission = canonical.decode(Submission, await request.read())
        now = UnixSeconds(int(self.clock.now()))
        orders.validate(submission, self.domain, recover, self.coordinator.address, now, DEVNET)
        order, spec = submission.order.message, submission.spec
        if self.cheat.refuse_order is not None:
            raise Refused(self.cheat.refuse_order, "as told")
        if self.cheat.refuse_again is not None and self.posts["POST orders"] > 1:
            raise Refused(self.cheat.refuse_again, "as told")
        worst = settlement.worst_charge(order, Label.QUORUM_2, FEE)
        if worst > order.budget:
            raise Refused(Code.BAD_AMOUNT, "budget")
        for cid in spec.kept():
            if await self.store.stat(_cid(cid)) is None:
                raise Refused(Code.NOT_STORED, cid)
        job_id = digest(self.domain, order)
        if job_id not in self.jobs:
            self._check_covered(submission)
            assert all(
                job.submission.order.message.nonce != order.nonce for job in self.jobs.values()
            ), "a nonce twice"
            self.jobs[job_id] = job = self._new_job(submission, job_id)
            await self.note(job, "acked", "taken")
            task = asyncio.create_task(self._perform(job))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        if self.cheat.drop_first_order and self.posts["POST orders"] == 1:
            assert request.transport is not None
            request.transport.close()
        ack = self.jobs[job_id].ack
        if self.cheat.ack_other_job:
            ack = seal(self.domain, replace(ack.message, job_id=ZERO_HASH), self.statement.sign)
        if self.cheat.ack_twice:
            ack = seal(
                self.domain,
                replace(ack.message, state_root=Hash32(b"\1" * 32)),
                self.statement.sign,
            )
        return _answer(canonical.to_json(AckView(job_id, ack)))

    def _check_covered(self, submission: Submission) -> None:
        """As the coordinator does: the client's voucher covers what all open jobs reserve."""
        reserved = sum(
            _reserved(job.submission) for job in self.jobs.values() if job.verdict is None
        )
        needed = self.charged + reserved + _reserved(submission)
        if self.vouched < needed:
            raise Refused(Code.NO_VOUCHER, f"order: sign a voucher of at least {needed} first")

    async def get_runs(self, request: web.Request) -> web.Response:
        account = self._account(request)
        mine = [job for job in self.jobs.values() if job.submission.order.message.client == account]
        return _answer({"runs": [canonical.to_json(self._view(job)) for job in mine]})

    async def get_run(self, request: web.Request) -> web.Response:
        if self.cheat.away:
            self.cheat.away -= 1
            return web.Response(status=502)
        asked = self._job(request)
        return _answer(
            canonical.to_json(
                self._view(next(iter(self.jobs.values())) if self.cheat.another_run else asked)
            )
        )

    async def get_events(self, request: web.Request) -> web.StreamResponse:
        """Streams the events (SSE) of one run or of all."""
        account = self._account(request)
        only = self._job(request).job_id if "job" in request.match_info else None
        after = int(request.query["after"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            await response.write(b": hello\n\n")
        except ConnectionResetError:
            return response  # not re-raised: the client has left
        while True:
            looked = len(self.events)
            for event in self.events[:looked]:
                is_mine = self.jobs[event.job_id].submission.order.message.client == account
                if event.seq > after and is_mine and only in (None, event.job_id):
                    try:
                        await response.write(
                            b"id: %d\ndata: %s\n\n" % (event.seq, canonical.encode(event))
                        )
                    except ConnectionResetError:
                        return response  # not re-raised: the client has left
                    after = event.seq
            async with self.changed:
                while len(self.events) == looked:
                    await self.changed.wait()

    async def get_logs(self, request: web.Request) -> web.Response:
        """Answers with a fixed text, or with none."""
        self._job(request)
        return web.Response(text=self.cheat.text)

    async def post_stop(self, request: web.Request) -> web.Response:
        """Accepts a Stop that the session key signed."""
        stop: Envelope[Stop] = envelope.from_json(await _body(request), Stop)
        job = self.jobs[stop.message.job_id]
        if (
            envelope.signer(self.domain, stop, recover)
            != job.submission.session.message.session_key
        ):
            raise Refused(Code.WRONG_SIGNER, "stop")
        self.stops.append(stop)
        job.stopped = True
        job.hold.set()
        return web.json_response({})

    async def post_witness(self, request: web.Request) -> web.Response:
        """Accepts a Witness that the session key signed, once there is a commit."""
        witness: Envelope[Witness] = envelope.from_json(await _body(request), Witness)
        by = envelope.signer(self.domain, witness, recover)
        for job in self.jobs.values():
            if any(
                digest(self.domain, item.commit.message) == witness.message.commit_hash
                for item in job.executions
            ):
                if by != job.submission.session.message.session_key:
                    raise Refused(Code.WRONG_SIGNER, "witness")
                if job.batches:
                    raise Refused(Code.TOO_LATE, "witness: the first batch is closed")
                job.witness = witness
                await self.note(job, "witnessed", "by the client")
                return web.json_response({})
        raise Refused(Code.UNKNOWN, "witness: no such commit")

    async def post_session(self, request: web.Request) -> web.Response:
        """Accepts a session that one of the fake market's clients signed."""
        session: Envelope[Session] = envelope.from_json(await _body(request), Session)
        if envelope.signer(self.domain, session, recover) != session.message.client:
            raise Refused(Code.WRONG_SIGNER, "session")
        if self.sessions:
            self.cheat = dataclasses.replace(self.cheat, is_session_ending=False)
        self.sessions.append(session.message)
        return web.json_response({})

    async def post_voucher(self, request: web.Request) -> web.Response:
        """Accepts a voucher of a known session. Its sum must grow."""
        voucher: Envelope[Voucher] = envelope.from_json(await _body(request), Voucher)
        session = self.sessions[-1]
        if (
            envelope.signer(self.domain, voucher, recover) != session.session_key
            or voucher.message.cumulative > session.up_to
        ):
            raise Refused(Code.WRONG_SIGNER, "voucher")
        if self.cheat.is_session_ending:
            raise Refused(Code.EXPIRED, "voucher: its session ends")
        if voucher not in self.vouchers and voucher.message.cumulative <= self.vouched:
            raise Refused(Code.STALE, "voucher")
        self.vouched = Amount(max(self.vouched, voucher.message.cumulative))
        self.vouchers.append(voucher)
        return web.json_response({})

    async def get_receipt(self, request: web.Request) -> web.Response:
        """Answers with {body, cid}, indented on purpose: the client has to bring it into
        canonical form.
        """
        job = self._job(request)
        if job.verdict is None:
            raise Refused(Code.TOO_EARLY, "receipt")
        return web.Response(
            text=json.dumps(json.loads(receipt.document(self.receipt_of(job))), indent=1),
            content_type="application/json",
        )

    async def get_account(self, request: web.Request) -> web.Response:
        client = Address(bytes.fromhex(request.match_info["address"][2:]))
        nonces = [job.submission.order.message.nonce for job in self.jobs.values()]
        view = AccountView(
            client,
            self.locked,
            Amount(0),
            self.closes_at,
            Amount(0),
            self.charged,
            Amount(min(self.vouched, self.locked)),
            max(self.vouchers, key=lambda each: each.message.cumulative, default=None),
            Nonce(max(nonces, default=-1) + 1),
        )
        return _answer(canonical.to_json(view))

    def _job(self, request: web.Request) -> FakeJob:
        job_id = Hash32(bytes.fromhex(request.match_info["job"].removeprefix("0x")))
        job = self.jobs.get(job_id)
        if job is not None and job.submission.spec.public:
            return job
        # As the coordinator does: one answer for a private run and for none.
        account = self._account(request)
        if job is None or job.submission.order.message.client != account:
            raise Refused(Code.UNKNOWN, "run: not found, or private: ask its client")
        return job

    def _view(self, job: FakeJob) -> RunView:
        order = job.submission.order.message
        return RunView(
            job.job_id,
            order.client,
            job.submission.terms.name,
            job.phase,
            Label.QUORUM_2,
            UnixSeconds(int(self.clock.now())),
            _executions(job),
            job.verdict,
            job.charged,
            order.budget,
            None,
            job.verdict is not None,
            None,
        )


def _executions(job: FakeJob) -> tuple[ExecutionView, ...]:
    """Of a decided job those of the group, with their exit status."""
    if job.verdict is None:
        return ()
    return tuple(
        ExecutionView(
            item.commit.message.assignment_hash,
            item.assignment.message.provider,
            "primary",
            0,
            "revealed",
            item.commit.message.usage_ms,
            item.reveal.exit_status,
            item.reveal.output_digest,
            True,
            Amount(0),
        )
        for item in job.executions
        if item.reveal and item.commit.message.assignment_hash in job.verdict.message.group
    )


def _reserved(submission: Submission) -> Amount:
    return settlement.charge_limit(submission.order.message, Label.QUORUM_2, FEE)


def _cid(text: str):  # type: ignore[no-untyped-def]
    from quorate_content.dag.cid import parse

    return parse(text)


def _answer(tree: canonical.Json) -> web.Response:
    return web.Response(body=canonical.canonical(tree), content_type="application/json")


async def _body(request: web.Request) -> canonical.Json:
    return canonical.parse(await request.read(), 1 << 20)


@asynccontextmanager
async def fake_market(folder: Path) -> AsyncIterator[FakeMarket]:
    """Serves a market on a free loopback port."""
    market = FakeMarket(folder)
    try:
        async with on_loopback(market.app()) as market.url:
            try:
                yield market
            finally:
                for task in list(market.tasks):
                    task.cancel()
                await asyncio.gather(*market.tasks, return_exceptions=True)
    finally:
        await market.store.close()
