"""`Market`: the client's way to a coordinator. Use it as an async context manager;
`quorate.sync` has the blocking twin.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from types import TracebackType
from typing import Any, Self

import aiohttp

from quorate.client.background_settlement import BackgroundSettlement
from quorate.client.client_ledger import Debt, Entry, Ledger
from quorate.client.coordinator_api import Api
from quorate.client.profile import Profile
from quorate.client.run import Run
from quorate.client.session import ClientSession, Notice, ignore_notice
from quorate.client.signed_requests import job_id_of, make_order, terms
from quorate.client.transfer import Progress, no_progress, upload_missing
from quorate.errors import EvidenceError, RefusedError, UnavailableError, UsageError
from quorate.images.tag_resolution import parse_tagged, resolve
from quorate.job.host_class import ClassRow, classes_of, owners_told
from quorate.job.job import Job
from quorate.job.packing import Named, Packed, cids_named, is_path, pack
from quorate.trust.coordinator_identity import check_pins
from quorate_protocol.messages import envelope
from quorate_protocol.messages.views import (
    AccountView,
    InfoView,
    OfferView,
    PlanRequest,
    PlanView,
    RunView,
)
from quorate_protocol.ports import Clock
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import Amount, Bps, Hash32, Nonce
from quorate_runtime.clock import SystemClock
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.process.crash_points import crash_point

SUBMIT_TRIES = 3
SUBMIT_RETRY_SECONDS = 1.0
# after so long no further try begins: with one that is never answered, handing in ends within a
# minute
SUBMIT_SECONDS = 20.0
CONNECTIONS_MAX = 32
MAP_MAX = 10_000
MAP_PARALLEL = 8
PREFIX_MIN = 4
_DIGITS = frozenset("0123456789abcdef")
_MAYBE_TAKEN = (
    "run 0x{}: the order may have been taken all the same; `quorate ps` says so, "
    "before you order again"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an order would meet and cost. `view` is the coordinator's word, `worst_charge` and
    `budget` are our own sums.

    host_class: of a job that names one, with its owners (PROTOCOL §2: they are shown before it
    is signed); None when it names none, or nobody offers it.
    """

    packed: Packed
    view: PlanView
    upload_bytes: int
    worst_charge: Amount
    budget: Amount
    host_class: ClassRow | None = None


class Market:
    """One coordinator, as one client.

    async with Market(profile) as market:
        run = await market.submit(Job(image="image.tar", command=["python", "-c", "print(1)"], max_price="0.50"))
        result = await run.result()
    """

    def __init__(
        self,
        profile: Profile,
        *,
        url: str | None = None,
        clock: Clock | None = None,
        notice: Notice = ignore_notice,
    ) -> None:
        self._profile = profile
        self._url = url or profile.coordinator_url
        self._clock = clock or SystemClock()
        self._notice = notice
        self._stack = AsyncExitStack()
        self._attending: asyncio.Task[None] | None = None
        self._account_nonce = Nonce(0)
        self._opened: ClientSession | None = None
        self.info: InfoView

    @staticmethod
    def local(**options: Any) -> "AbstractAsyncContextManager[Market]":
        """A whole market on this machine, for people's own tests: `async with Market.local() as
        market`. Needs `quorate[devnet]`.
        """
        found = list(entry_points(group="quorate.local"))
        if not found:
            raise UsageError("Market.local() needs the devnet: pip install 'quorate[devnet]'")
        start = found[0].load()
        made: AbstractAsyncContextManager[Market] = start(**options)
        return made

    async def __aenter__(self) -> Self:
        """Connects and compares the coordinator's identity with the profile's pins."""
        try:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
            session = await self._stack.enter_async_context(plain_session(connector=connector))
            self._session = session
            ledger = Ledger(self._profile.ledger_path)
            self._stack.callback(ledger.close)
            # the desk is made of the API
            api = Api(self._url, session, lambda: self._client_session.token(), self._notice)  # noqa: PLW0108
            self._opened = ClientSession(api, self._profile, ledger, self._clock, self._notice)
            await self._meet()
            self._background_settlement = BackgroundSettlement(self._client_session)
            return self
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Detaches; runs go on."""
        if self._attending is not None:
            self._attending.cancel()
            await asyncio.gather(self._attending, return_exceptions=True)
        self._opened = None
        await self._stack.aclose()

    async def attach(self) -> None:
        """Starts witnessing and vouching for this client's runs; `submit` and `run` do it by
        themselves.
        """
        if self._attending is None or self._attending.done():
            self._attending = asyncio.create_task(self._background_settlement.run())

    async def offers(self) -> tuple[OfferView, ...]:
        """Live offers."""
        return await self._client_session.api.offers()

    async def classes(self) -> tuple[ClassRow, ...]:
        """The host classes on offer, with their owners; those with most first."""
        return classes_of(await self._client_session.api.offers())

    async def account(self) -> AccountView:
        """What this client has allocated, owes and has vouched for, as the coordinator sees it."""
        return await self._client_session.api.account(self._client_session.client)

    async def runs(self) -> tuple[RunView, ...]:
        """This client's runs, as the coordinator lists them."""
        return await self._client_session.api.runs()

    async def plan(self, job: Job) -> Plan:
        """Packs the job and asks what an order would meet. Uploads and signs nothing. `notice`
        is told of CIDs that no store has.
        """
        packed = await self._pack(job)
        self._tell_missing(packed)
        return await self._plan(job, packed)

    async def submit(
        self, job: Job, plan: Plan | None = None, progress: Progress = no_progress
    ) -> Run:
        """Uploads what is missing, signs the order and hands it in. The run goes on when this
        program ends. `notice` is told the owners of a host class that the job names, and of CIDs
        that no store has, unless a plan showed them. With a plan no higher fee is signed than
        the plan's.
        """
        if plan is not None:
            return await self._submit(
                replace(job, max_fee_bps=plan.view.fee_bps), plan.packed, progress
            )
        await self._tell_owners(job)
        packed = await self._pack(job)
        self._tell_missing(packed)
        return await self._submit(job, packed, progress)

    async def _submit(self, job: Job, packed: Packed, progress: Progress) -> Run:
        crash_point("client.before-upload")
        await upload_missing(self._client_session.api, packed.uploads, progress)
        crash_point("client.after-upload")
        client_session, coordinator = self._client_session, self._client_session.pins.coordinator
        nonce = Nonce(client_session.next_nonce(await self._known_nonce()))
        order = make_order(
            job,
            packed.spec,
            client_session.client,
            coordinator,
            nonce,
            self._clock.now(),
            self.info.fee_bps,
        )
        session = client_session.session_for(order.budget)
        job_id = job_id_of(client_session.pins.domain, order)
        crash_point("client.before-record")
        client_session.ledger.record(
            Entry(
                job_id,
                job.name,
                order,
                packed.spec.encode(),
                envelope.encode(session),
                int(self._clock.now()),
                None,
                job.outputs,
            )
        )
        crash_point("client.after-record")
        await self._hand_in(
            job_id, Submission(client_session.seal_order(order), session, packed.spec)
        )
        await self.attach()
        return Run(client_session, self._background_settlement, job_id, job.name)

    async def run(self, name: str | bytes) -> Run:
        """A run of this profile by job id (bytes, 0x-hex or a prefix of at least four digits) or
        by its newest name.
        """
        entry = self._find(name)
        await self.attach()
        return Run(self._client_session, self._background_settlement, entry.job_id, entry.name)

    async def map(self, job: Job, params: Iterable[Mapping[str, str]]) -> list[Run]:
        """One run for each set of environment variables, added to the job's own; in order. Every
        element is a job of its own.
        """
        wanted = list(params)
        if len(wanted) > MAP_MAX:
            raise UsageError(f"map: {len(wanted)} elements, at most {MAP_MAX}")
        await self._tell_owners(job)
        packed = await self._pack(job)
        self._tell_missing(packed)
        await upload_missing(self._client_session.api, packed.uploads, no_progress)
        gate = asyncio.Semaphore(MAP_PARALLEL)

        async def one(extra: Mapping[str, str]) -> Run:
            async with gate:
                each = replace(job, env={**job.env, **extra})
                return await self._submit(each, await self._pack(each), no_progress)

        return list(await asyncio.gather(*(one(extra) for extra in wanted)))

    def entry(self, job_id: Hash32) -> Entry:
        """This profile's own record of one order."""
        return self._client_session.entry(job_id)

    def debt(self) -> Debt:
        """What all orders of this profile here were found to have cost, and what the open ones
        may still cost.
        """
        return self._client_session.ledger.debt(self._client_session.pins.coordinator)

    def entries(self) -> list[Entry]:
        """This profile's own record of its newest 1,000 orders here, newest first."""
        return self._client_session.ledger.entries(self._client_session.pins.coordinator)

    @property
    def _client_session(self) -> ClientSession:
        if self._opened is None:
            raise UsageError(
                "this Market is not open; use it inside of `async with Market(profile) as market:`"
            )
        return self._opened

    async def _pack(self, job: Job) -> Packed:
        tagged = (
            parse_tagged(job.image)
            if isinstance(job.image, str) and not is_path(job.image)
            else None
        )
        if tagged is not None:
            job = replace(job, image=await resolve(self._session, tagged))
            self._notice(f"image {tagged.name}:{tagged.tag} is {job.image}")
        sizes: dict[str, int] = {}
        absent: list[Named] = []
        for named in cids_named(job):
            stat = await self._client_session.api.stat_content(named.cid)
            if stat.size_bytes is not None:
                sizes[named.cid] = stat.size_bytes
            if not stat.is_stored:
                absent.append(named)
        packed = await asyncio.to_thread(pack, job, sizes)
        sent = {item.cid for item in packed.uploads}
        return replace(packed, not_stored=tuple(item for item in absent if item.cid not in sent))

    async def _plan(self, job: Job, packed: Packed) -> Plan:
        view = await self._client_session.api.plan(
            PlanRequest(packed.spec, job.price(), job.tier(), job.accept_unverified, job.host())
        )
        if view.fee_bps != self.info.fee_bps:
            await self._meet()  # it may have been changed since
        if (
            view.fee_bps != self.info.fee_bps
            # the sums that a person is asked about are made with the one, and shown beside the
            # other
        ):
            said = f"{view.fee_bps} bps, and {self.info.fee_bps} when it is asked for that alone"
            raise EvidenceError(
                f"plan: the coordinator says that its fee is {said}; ask again, or change the "
                f"coordinator"
            )
        coordinator = self._client_session.pins.coordinator
        order = make_order(
            job,
            packed.spec,
            self._client_session.client,
            coordinator,
            Nonce(0),
            self._clock.now(),
            self.info.fee_bps,
        )
        missing = 0
        for item in packed.uploads:
            if not (await self._client_session.api.stat_content(item.cid)).is_stored:
                missing += item.size_bytes
        sums = terms(job, order, packed.spec, Bps(self.info.fee_bps))
        return Plan(
            packed, view, missing, sums.worst_charge, sums.budget, await self._class_of(job)
        )

    async def _meet(self) -> None:
        """What the coordinator says of itself. EvidenceError when it is not the one that is
        pinned.
        """
        self.info = await self._client_session.api.info()
        self._client_session.pins = check_pins(self._profile.pins_path, self.info)

    def _tell_missing(self, packed: Packed) -> None:
        for named in packed.not_stored:
            self._notice(named.warning())

    async def _tell_owners(self, job: Job) -> None:
        if job.host_class:
            self._notice(owners_told(await self._class_of(job), job.host_class))

    async def _class_of(self, job: Job) -> ClassRow | None:
        rows = await self.classes() if job.host_class else ()
        return next((row for row in rows if row.id == job.host()), None)

    async def _known_nonce(self) -> Nonce:
        # Asked once: it only matters when the books of this account were lost, and then the
        # coordinator's memory is the better one.
        if not self._account_nonce:
            account = await self.account()
            self._account_nonce = Nonce(max(account.next_nonce, account.nonce_floor, 1))
        return self._account_nonce

    async def _hand_in(self, job_id: Hash32, submission: Submission) -> None:
        began = self._clock.now()
        for attempt in range(SUBMIT_TRIES):
            try:
                crash_point("client.before-send")
                answer = await self._client_session.api.submit(submission)
                crash_point("client.after-send")
            except UnavailableError:
                # The same order again gives the same job, so repeating is safe; the last failure is
                # reported.
                if attempt == SUBMIT_TRIES - 1 or self._clock.now() - began > SUBMIT_SECONDS:
                    self._notice(_MAYBE_TAKEN.format(job_id.hex()[:12]))
                    raise
                await self._clock.sleep(SUBMIT_RETRY_SECONDS * 2**attempt)
            except RefusedError:
                if (
                    attempt == 0
                ):  # afterwards an earlier try may have been taken, and only its answer was lost
                    self._client_session.ledger.forget(job_id)
                else:
                    self._notice(_MAYBE_TAKEN.format(job_id.hex()[:12]))
                raise
            else:
                self._client_session.check_ack(job_id, submission.order.message, answer)
                crash_point("client.before-ack")
                self._client_session.ledger.acknowledge(job_id, envelope.encode(answer.ack))
                crash_point("client.after-ack")
                return

    def _find(self, name: str | bytes) -> Entry:
        coordinator, ledger = self._client_session.pins.coordinator, self._client_session.ledger
        digits = name.hex() if isinstance(name, bytes) else name.removeprefix("0x").lower()
        is_id = isinstance(name, bytes) or (
            len(digits) >= PREFIX_MIN and _DIGITS.issuperset(digits)
        )
        found = ledger.beginning(coordinator, digits) if is_id else []
        if not found and isinstance(name, str):
            newest = ledger.named(coordinator, name)
            found = [newest] if newest is not None else []
        if len(found) != 1:
            shown = name.hex() if isinstance(name, bytes) else name
            raise UsageError(
                f"run: {shown[:80]!r} names {'no run' if not found else 'several runs'} of this "
                f"profile; see `quorate ps`"
            )
        return found[0]
