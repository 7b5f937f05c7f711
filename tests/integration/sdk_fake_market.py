"""A coordinator with providers in one process, for tests of the client: real messages, signatures, content and receipts, no scheduling.

It is strict about what a client sends (order.validate, tokens, sums), and can be told to cheat in one way at a time.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from aiohttp import web

from quorate_content.sealed import seal_directory
from quorate_content.staging import add_staging_routes
from quorate_content.store import ContentStore
from quorate_protocol import audit, codec, envelope, receipt, settlement, verdict
from quorate_protocol import order as orders
from quorate_protocol.bearer import read_token
from quorate_protocol.classes import HostClass, determinism_class
from quorate_protocol.commitment import assignment_id, commitment, result_digest, secret_hash
from quorate_protocol.eip712 import Domain, digest, struct_hash
from quorate_protocol.envelope import Envelope, seal
from quorate_protocol.hashing import hash_list, hash_tuple, sha256
from quorate_protocol.job import JobSpec, image_digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import (
    Accept,
    Ack,
    Assignment,
    Commit,
    CommitEntry,
    CommitSet,
    Reveal,
    Stop,
    Verdict,
    Voucher,
    Witness,
)  # fmt: skip
from quorate_protocol.offer import Hardware, Offer, SlotOffer
from quorate_protocol.order import Submission
from quorate_protocol.receipt import BeaconEvidence, ExecutionEvidence, Receipt, TakenFromChain
from quorate_protocol.refusals import MEANINGS, Code, Refused
from quorate_protocol.settlement import Credit
from quorate_protocol.units import (
    PPM_ONE,
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Bps,
    ExitStatus,
    Hash32,
    JobKind,
    Label,
    Milliseconds,
    Nonce,
    Outcome,
    Ppm,
    Price,
    Round,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
)  # fmt: skip
from quorate_protocol.views import (
    AccountView,
    AckView,
    BeaconView,
    InfoView,
    JobEvent,
    OfferView,
    PlanView,
    RunView,
)  # fmt: skip
from quorate_runtime import bls
from quorate_runtime.clock import SystemClock
from quorate_runtime.crypto import KeySigner, recover

HOST = HostClass("x86_64", "v3", "AuthenticAMD")
STAKES = Address(b"\x11" * 20)
FEE = Bps(500)
USAGE_MS = Milliseconds(7_200)
PRICE = Price(300_000)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def key(name: str) -> KeySigner:
    """A fixed test key."""
    return KeySigner(sha256(name.encode()))


@dataclass
class Cheat:
    """What goes wrong on purpose; every field off means an honest market."""

    liars: frozenset[int] = frozenset()  # indices of providers that give a wrong output
    exit_status: int = 0
    charge_extra: int = 0
    stale_round: bool = False  # the commit names a round that has appeared
    wrong_class: bool = False
    crown_liar: bool = False  # the verdict names the minority as its group
    foreign_verdict_key: bool = False
    swap_ciphertext: bool = False
    ack_other_job: bool = False
    price: int = PRICE
    lapse: bool = False  # ends without a verdict
    refuse_order: Code | None = None
    drop_first_order: bool = False  # closes the connection after taking the order


@dataclass
class FakeJob:
    """One order and all that came of it."""

    submission: Submission
    job_id: Hash32
    ack: Envelope[Ack]
    secret: Hash32
    executions: list[ExecutionEvidence] = field(default_factory=list)
    batches: list[Envelope[CommitSet]] = field(default_factory=list)
    beacons: list[BeaconEvidence] = field(default_factory=list)
    witness: Envelope[Witness] | None = None
    verdict: Envelope[Verdict] | None = None
    charged: Amount = Amount(0)
    phase: str = "running"
    stopped: bool = False
    hold: asyncio.Event = field(default_factory=asyncio.Event)


class FakeMarket:
    """State and handlers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cheat = Cheat()
        self.clock = SystemClock()
        self.domain = Domain(1337, STAKES)
        self.coordinator, self.statement = key("coordinator"), key("statement")
        self.operators = [key(f"operator {i}") for i in range(5)]
        self.owners = [key(f"owner {i}").address for i in range(5)]
        self.slots = tuple(
            audit.StakeSlot(i, owner, self.operators[i].address, key(f"payout {i}").address, hash_tuple("net", i), BlockNumber(1))
            for i, owner in enumerate(self.owners)
        )
        self.beacon_secret = bls.keygen(b"a test beacon's seed")
        self.genesis = int(self.clock.now()) - 1000
        self.store = ContentStore(folder / "store", 1 << 30, spare_bytes=0)
        self.jobs: dict[Hash32, FakeJob] = {}
        self.events: list[JobEvent] = []
        self.changed = asyncio.Condition()
        self.vouchers: list[Envelope[Voucher]] = []
        self.stops: list[Envelope[Stop]] = []
        self.posts: dict[str, int] = {}
        self.vouched = Amount(0)
        self.tasks: set[asyncio.Task[None]] = set()
        self.auto_finish = True
        self.url = ""

    # ------------------------------------------------------------------------------------------------------------ routes

    def app(self) -> web.Application:
        """The API."""
        app = web.Application(middlewares=[self._errors], client_max_size=1 << 30)
        route = app.router
        route.add_get("/v1/info", self.get_info)
        route.add_get("/v1/offers", self.get_offers)
        route.add_post("/v1/plan", self.post_plan)
        route.add_post("/v1/orders", self.post_order)
        route.add_get("/v1/runs", self.get_runs)
        route.add_get("/v1/runs/{job}", self.get_run)
        route.add_get("/v1/events", self.get_events)
        route.add_get("/v1/runs/{job}/events", self.get_events)
        route.add_get("/v1/runs/{job}/logs", self.get_logs)
        route.add_post("/v1/runs/{job}/stop", self.post_stop)
        route.add_post("/v1/witnesses", self.post_witness)
        route.add_post("/v1/vouchers", self.post_voucher)
        route.add_get("/v1/receipts/{job}", self.get_receipt)
        route.add_get("/v1/accounts/{address}", self.get_account)
        add_staging_routes(app, self.store, self._uploader)
        return app

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        name = f"{request.method} {request.path.split('/')[2] if request.path.count('/') > 1 else request.path}"
        self.posts[name] = self.posts.get(name, 0) + 1
        try:
            return await handler(request)
        except Refused as refused:
            meaning = MEANINGS[refused.code]
            tree = {"code": refused.code.value, "sentence": meaning.sentence, "detail": refused.detail}
            return web.json_response(tree, status=meaning.status)

    def _account(self, request: web.Request) -> Address:
        now = UnixSeconds(int(self.clock.now()))
        bearer = read_token(request.headers.get("Authorization", ""), self.domain.chain_id, self.coordinator.address, recover, now)
        assert bearer.account == bearer.key, "the client speaks with its account key"
        return bearer.account

    async def _uploader(self, request: web.Request) -> str:
        return "0x" + self._account(request).hex()

    async def get_info(self, _: web.Request) -> web.Response:
        """InfoView."""
        contracts = dict.fromkeys(("Stakes", "Escrow", "Epochs", "Court", "Beacon", "TestToken"), STAKES)
        beacon = BeaconView("http://127.0.0.1:1", bls.public_key(self.beacon_secret), 2, self.genesis)
        info = InfoView(
            self.coordinator.address, self.statement.address, self.domain.chain_id, "http://127.0.0.1:1", contracts, beacon, FEE, "devnet",
            "0",
        )  # fmt: skip
        return _answer(codec.to_json(info))

    async def get_offers(self, _: web.Request) -> web.Response:
        """One offer a provider."""
        views = []
        for owner in self.owners:
            slot = SlotOffer(HOST, Small(1), PRICE, PRICE, Price(0))
            hardware = Hardware(4, 8 << 30, 100 << 30)
            offer = Offer(
                owner, Sequence(1), UnixSeconds(int(self.clock.now()) + 600), (slot,), hardware, "noop", Small(0), (JobKind.TASK,), "eu",
                ZERO_HASH, ZERO_HASH, (),
            )  # fmt: skip
            views.append(OfferView(offer, 1, 0, 3, True))
        return _answer({"offers": [codec.to_json(view) for view in views]})

    async def post_plan(self, request: web.Request) -> web.Response:
        """PlanView; strict about the body."""
        tree = await _body(request)
        assert set(tree) == {"spec", "maxPricePerHour", "verifyTier", "acceptUnverified"}, tree.keys()
        codec.from_json(JobSpec, tree["spec"])
        fits = tree["maxPricePerHour"] >= PRICE
        nearest = "" if fits else "cheapest is 0.30 USD; raise max_price"
        view = PlanView(HOST.id(), Label.QUORUM_2, 5, 5 if fits else 0, PRICE, 2, Amount(1), FEE, nearest)
        return _answer(codec.to_json(view))

    async def post_order(self, request: web.Request) -> web.Response:
        """Validates and starts the job."""
        submission = codec.decode(Submission, await request.read())
        now = UnixSeconds(int(self.clock.now()))
        orders.validate(submission, self.domain, recover, self.coordinator.address, now, DEVNET)
        order, spec = submission.order.message, submission.spec
        if self.cheat.refuse_order is not None:
            raise Refused(self.cheat.refuse_order, "as told")
        worst = settlement.worst_charge(order, Label.QUORUM_2, spec.max_duration, FEE)
        if worst > order.budget:
            raise Refused(Code.BAD_AMOUNT, "budget")
        for item in spec.inputs:
            if await self.store.stat(_cid(item.cid)) is None:
                raise Refused(Code.NOT_STORED, item.cid)
        job_id = digest(self.domain, order)
        if job_id not in self.jobs:
            assert all(job.submission.order.message.nonce != order.nonce for job in self.jobs.values()), "a nonce twice"
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
        return _answer(codec.to_json(AckView(job_id, ack)))

    async def get_runs(self, request: web.Request) -> web.Response:
        """This client's runs."""
        account = self._account(request)
        mine = [job for job in self.jobs.values() if job.submission.order.message.client == account]
        return _answer({"runs": [codec.to_json(self._view(job)) for job in mine]})

    async def get_run(self, request: web.Request) -> web.Response:
        """One run."""
        return _answer(codec.to_json(self._view(self._job(request))))

    async def get_events(self, request: web.Request) -> web.StreamResponse:
        """SSE of one run or of all."""
        account = self._account(request)
        only = self._job(request).job_id if "job" in request.match_info else None
        after = int(request.query["after"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": hello\n\n")
        while True:
            looked = len(self.events)
            for event in self.events[:looked]:
                is_mine = self.jobs[event.job_id].submission.order.message.client == account
                if event.seq > after and is_mine and only in (None, event.job_id):
                    await response.write(b"id: %d\ndata: %s\n\n" % (event.seq, codec.encode(event)))
                    after = event.seq
            async with self.changed:
                while len(self.events) == looked:
                    await self.changed.wait()

    async def get_logs(self, request: web.Request) -> web.Response:
        """A fixed text."""
        self._job(request)
        return web.Response(text="hello from the job\n")

    async def post_stop(self, request: web.Request) -> web.Response:
        """Takes a stop of the session key."""
        stop: Envelope[Stop] = envelope.from_json(await _body(request), Stop)
        job = self.jobs[stop.message.job_id]
        if envelope.signer(self.domain, stop, recover) != job.submission.session.message.session_key:
            raise Refused(Code.WRONG_SIGNER, "stop")
        self.stops.append(stop)
        job.stopped = True
        job.hold.set()
        return web.json_response({})

    async def post_witness(self, request: web.Request) -> web.Response:
        """Takes a witness of the session key, once a commit."""
        witness: Envelope[Witness] = envelope.from_json(await _body(request), Witness)
        by = envelope.signer(self.domain, witness, recover)
        for job in self.jobs.values():
            if any(digest(self.domain, item.commit.message) == witness.message.commit_hash for item in job.executions):
                if by != job.submission.session.message.session_key:
                    raise Refused(Code.WRONG_SIGNER, "witness")
                job.witness = witness
                await self.note(job, "witnessed", "by the client")
                return web.json_response({})
        raise Refused(Code.UNKNOWN, "witness: no such commit")

    async def post_voucher(self, request: web.Request) -> web.Response:
        """Sums must grow and never exceed the charges."""
        voucher: Envelope[Voucher] = envelope.from_json(await _body(request), Voucher)
        session = next(iter(self.jobs.values())).submission.session.message
        if envelope.signer(self.domain, voucher, recover) != session.session_key or voucher.message.cumulative > session.up_to:
            raise Refused(Code.WRONG_SIGNER, "voucher")
        if voucher.message.cumulative > self.charged:
            raise Refused(Code.BAD_AMOUNT, "more than charged")
        if voucher.message.cumulative <= self.vouched:
            raise Refused(Code.STALE, "voucher")
        self.vouched = voucher.message.cumulative
        self.vouchers.append(voucher)
        return web.json_response({})

    async def get_receipt(self, request: web.Request) -> web.Response:
        """{body, cid}, indented on purpose: the client has to bring it into canonical form."""
        job = self._job(request)
        if job.verdict is None:
            raise Refused(Code.TOO_EARLY, "receipt")
        return web.Response(text=json.dumps(json.loads(receipt.document(self.receipt_of(job))), indent=1), content_type="application/json")

    async def get_account(self, request: web.Request) -> web.Response:
        """AccountView."""
        client = Address(bytes.fromhex(request.match_info["address"][2:]))
        nonces = [job.submission.order.message.nonce for job in self.jobs.values()]
        view = AccountView(
            client, Amount(10**12), Amount(0), self.charged, self.vouched, Nonce(0), Nonce(max(nonces, default=-1) + 1)
        )
        return _answer(codec.to_json(view))

    # ------------------------------------------------------------------------------------------------------------- work

    @property
    def charged(self) -> Amount:
        """Sum over all jobs."""
        return Amount(sum(job.charged for job in self.jobs.values()))

    def _job(self, request: web.Request) -> FakeJob:
        job_id = Hash32(bytes.fromhex(request.match_info["job"].removeprefix("0x")))
        if job_id not in self.jobs:
            raise Refused(Code.UNKNOWN, "no such run")
        return self.jobs[job_id]

    def _new_job(self, submission: Submission, job_id: Hash32) -> FakeJob:
        secret = sha256(b"x" + job_id)
        ack = Ack(
            job_id, HOST.id(), UnixSeconds(int(self.clock.now())), BlockNumber(5), audit.eligible_root(self.slots), ZERO_HASH,
            secret_hash(secret), Label.QUORUM_2, FEE, Sequence(1),
        )  # fmt: skip
        return FakeJob(submission, job_id, seal(self.domain, ack, self.statement.sign), secret)

    async def note(self, job: FakeJob, name: str, text: str, commit: Envelope[Commit] | None = None) -> None:
        """Adds an event."""
        async with self.changed:
            self.events.append(JobEvent(Sequence(len(self.events) + 1), UnixSeconds(int(self.clock.now())), job.job_id, name, text, commit))
            self.changed.notify_all()

    async def _perform(self, job: FakeJob) -> None:
        if self.cheat.lapse:
            job.phase = "ended"
            await self.note(job, "ended", "nobody could be matched")
            return
        named = Round((int(self.clock.now()) - self.genesis) // 2 + (0 if self.cheat.stale_round else 4))
        await self._execute(job, 0, named)
        await self.note(job, "committed", "execution 0", job.executions[0].commit)
        if not self.auto_finish:
            await job.hold.wait()
        elif not (self.cheat.stale_round or self.cheat.wrong_class):
            async with asyncio.timeout(10):
                async with self.changed:
                    await self.changed.wait_for(lambda: job.witness is not None)
        first = 0
        for batch in range(4):
            await self._batch(job, batch, Round(named + 10 * batch), first)
            first = len(job.executions)
            decision = self._decision(job)
            if isinstance(decision, verdict.Accepted):
                await self._decide(job, decision)
                return
        await self._unresolved(job)

    async def _batch(self, job: FakeJob, batch: int, number: Round, first: int) -> None:
        signature = bls.sign_round(self.beacon_secret, number)
        job.beacons.append(BeaconEvidence(number, signature))
        seed = audit.seed(bls.randomness(signature), job.job_id, job.secret, batch)
        used = {item.assignment.message.provider for item in job.executions}
        excluded = [slot for slot in self.slots if slot.owner in used]
        drawn = next(audit.draw(seed, len(self.slots), {slot.index: slot for slot in self.slots}, excluded))
        await self._execute(job, drawn.slot.index, number)
        members = job.executions[first:]
        entries = tuple(
            CommitEntry(_hash(item), item.assignment.message.provider, digest(self.domain, item.commit.message)) for item in members
        )
        blinds = tuple(sha256(b"blind" + job.job_id + bytes([item.index])) for item in members)
        message = CommitSet(
            job.job_id, Small(batch), entries, blinds, number, job.secret, Ppm(PPM_ONE), (drawn.attempt,), hash_list(()),
            UnixSeconds(int(self.clock.now())),
        )  # fmt: skip
        job.batches.append(seal(self.domain, message, self.statement.sign))
        await self.note(job, "closed", f"batch {batch}")

    async def _execute(self, job: FakeJob, who: int, number: Round) -> None:
        index, order, spec = len(job.executions), job.submission.order.message, job.submission.spec
        blind = sha256(b"blind" + job.job_id + bytes([index]))
        assignment = Assignment(
            assignment_id(job.job_id, index, blind), self.coordinator.address, self.owners[who], order.spec_hash, HOST.id(),
            Price(self.cheat.price), spec.max_duration, UnixSeconds(int(self.clock.now()) + 5),
        )  # fmt: skip
        hashed = digest(self.domain, assignment)
        accept = Accept(hashed, Seconds(0), Seconds(1), Seconds(0), UnixSeconds(int(self.clock.now())))
        salt = sha256(b"salt" + hashed)
        output, sealed = self.folder / f"out-{hashed.hex()}", self.folder / f"sealed-{hashed.hex()}"
        (output / "deep").mkdir(parents=True)
        lie = f" a lie of {who}" if who in self.cheat.liars else ""
        (output / "result.txt").write_text(f"{' '.join(spec.command())}{lie}\n")
        (output / "deep" / "empty").write_bytes(b"")
        output_digest, cid, _ = await asyncio.to_thread(seal_directory, output, salt, sealed)
        if self.cheat.swap_ciphertext:
            raw = bytearray(sealed.read_bytes())
            raw[-1] ^= 1
            sealed.write_bytes(raw)
        stat = await self.store.put(sealed, "providers", None)
        status = ExitStatus(self.cheat.exit_status)
        image = ZERO_HASH if self.cheat.wrong_class else image_digest(spec.image)
        result = result_digest(status, output_digest)
        commit = Commit(
            hashed, determinism_class(HOST.id(), image, HOST.environment()), commitment(hashed, self.owners[who], salt, result),
            stat.cid.digest if self.cheat.swap_ciphertext else cid.digest, USAGE_MS, number,
        )  # fmt: skip
        reveal = Reveal(hashed, self.owners[who], status, output_digest, salt)
        sign = self.operators[who].sign
        job.executions.append(
            ExecutionEvidence(
                index, seal(self.domain, assignment, self.statement.sign), seal(self.domain, accept, sign), seal(self.domain, commit, sign),
                reveal, self.operators[who].address,
            )
        )  # fmt: skip

    def _decision(self, job: FakeJob) -> verdict.Decision:
        order = job.submission.order.message
        runs = [verdict.Execution(i.commit.message.assignment_hash, i.assignment.message.provider, _result(i)) for i in job.executions]
        decision = verdict.decide(Label.QUORUM_2, order.verify_tier, runs, order.max_executions, False)
        if self.cheat.crown_liar and isinstance(decision, verdict.Accepted):
            return verdict.Accepted(decision.faulted, decision.group)
        return decision

    async def _decide(self, job: FakeJob, decision: verdict.Accepted) -> None:
        group = [job.executions[i] for i in decision.group]
        order = job.submission.order.message
        credits = [Credit(_hash(i), settlement.pay_of(order, i.assignment.message, i.commit.message.usage_ms)) for i in group]
        split = settlement.split(order, Label.QUORUM_2, FEE, credits)
        job.charged = Amount(split.charged + self.cheat.charge_extra)
        faulted = tuple(_hash(job.executions[i]) for i in decision.faulted)
        await self._finish(job, Outcome.ACCEPTED, tuple(_hash(item) for item in group), faulted)

    async def _unresolved(self, job: FakeJob) -> None:
        await self._finish(job, Outcome.UNRESOLVED, (), ())

    async def _finish(self, job: FakeJob, outcome: Outcome, group: tuple[Hash32, ...], faulted: tuple[Hash32, ...]) -> None:
        reveals = tuple(struct_hash(item.reveal) for item in job.executions if item.reveal is not None)
        message = Verdict(
            job.job_id, Sequence(1), Label.QUORUM_2, outcome, Small(len(job.batches)), group, faulted, hash_list(reveals),
            UnixSeconds(int(self.clock.now())),
        )  # fmt: skip
        signer = key("stranger") if self.cheat.foreign_verdict_key else self.statement
        job.verdict, job.phase = seal(self.domain, message, signer.sign), "decided"
        await self.note(job, "verdict", outcome.name.lower())

    def receipt_of(self, job: FakeJob) -> Receipt:
        """The receipt of a decided job."""
        assert job.verdict is not None
        keys = tuple(sorted({item.operator_key for item in job.executions}))
        return Receipt(
            self.domain.chain_id, STAKES, bls.public_key(self.beacon_secret), self.statement.address, job.submission.spec,
            job.submission.session, job.submission.order, job.ack, tuple(job.batches), tuple(job.beacons), tuple(job.executions),
            job.witness, job.verdict, TakenFromChain(5, len(self.slots), self.slots, keys),
        )  # fmt: skip

    def _view(self, job: FakeJob) -> RunView:
        order = job.submission.order.message
        return RunView(
            job.job_id, order.client, job.submission.spec.name, job.phase, Label.QUORUM_2, UnixSeconds(1), (), job.verdict, job.charged,
            order.budget, None, job.verdict is not None, None,
        )  # fmt: skip


def _hash(item: ExecutionEvidence) -> Hash32:
    return item.commit.message.assignment_hash


def _result(item: ExecutionEvidence) -> Hash32:
    assert item.reveal is not None
    return result_digest(item.reveal.exit_status, item.reveal.output_digest)


def _cid(text: str):  # type: ignore[no-untyped-def]
    from quorate_content.cid import parse

    return parse(text)


def _answer(tree: codec.Json) -> web.Response:
    return web.Response(body=codec.canonical(tree), content_type="application/json")


async def _body(request: web.Request) -> codec.Json:
    return codec.parse(await request.read(), 1 << 20)


@asynccontextmanager
async def fake_market(folder: Path) -> AsyncIterator[FakeMarket]:
    """Serves a market on a free loopback port."""
    market = FakeMarket(folder)
    runner = web.AppRunner(market.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    market.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    try:
        yield market
    finally:
        for task in list(market.tasks):
            task.cancel()
        await asyncio.gather(*market.tasks, return_exceptions=True)
        await runner.cleanup()
        await market.store.close()
