"""`Market`: a client's connection to one coordinator, as an async context manager. `quorate.sync`
has the blocking version.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from quorate.base.errors import EvidenceError, ProfileError, RefusedError, UsageError
from quorate.client.background_settlement import BackgroundSettlement
from quorate.client.base.client_ledger import Ledger, OrderRecord, SpendingTotals
from quorate.client.base.profile import Profile
from quorate.client.base.session import ClientSession, Notice, ignore_notice
from quorate.client.base.signed_requests import OrderDraft, draft_order
from quorate.client.base.transfer import Progress, Uploader, no_progress
from quorate.client.devnet_file import profile_of
from quorate.client.money.chain_url import remember_chain_url
from quorate.client.money.estimate import Estimate, estimate, estimate_of_rental
from quorate.client.money.lead import Lead
from quorate.client.run import Run
from quorate.client.sent_orders import find_run, place_order
from quorate.client.wanting_services import LOOK_SECONDS, wanting
from quorate.job.job import Job
from quorate.job.packing import PackedJob
from quorate.job.pool import PoolRow, describe_owners, pools_of
from quorate.job.quantities import Money, format_duration
from quorate.programs.job_packing import ArrayElement, JobPacking
from quorate.programs.job_preparation import JobPreparation
from quorate.programs.result_differences import distance_checks, fetch_executions
from quorate.sources.resolution import Endpoints, SourceResolver
from quorate.trust.coordinator_identity import check_identity
from quorate.trust.offer_verification import CheckedOffer, check_offer, check_on_chain
from quorate.trust.receipt_verification import body_of
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import envelope, job_spec
from quorate_protocol.messages.market_history import MarketPeriodView
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.receipt import Check, Receipt
from quorate_protocol.messages.signed import Ack
from quorate_protocol.messages.views import (
    AccountView,
    InfoView,
    OfferView,
    PlanRequest,
    PlanView,
    RunView,
)
from quorate_protocol.refusals import MEANINGS, Code
from quorate_protocol.rules import orders
from quorate_protocol.units import ZERO_HASH, Amount, Bps, Hash32, Label, Nonce, UnixSeconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.process.crash_points import crash_point

if TYPE_CHECKING:
    from aiohttp import ClientSession as HttpSession

    from quorate.client.money.balances import Balances
    from quorate.client.money.withdrawal import WithdrawalState
    from quorate.client.rental import Rental
    from quorate.programs.functions import RemoteFunction
    from quorate.sandboxes.pool import Sandboxes
    from quorate.sandboxes.sandbox import Sandbox

P = ParamSpec("P")
R = TypeVar("R")
CONNECTIONS_MAX = 32
MAP_PARALLEL = 8
TYPED_MAX = 64  # a whole job id is shortened in messages


@dataclass(frozen=True, slots=True)
class Plan:
    """What an order would meet and cost.

    `view` is the coordinator's answer. `upload_bytes` counts bytes that the store lacks.
    `worst_charge` and `budget` are this client's own sums in millionths of a dollar. `pool`
    is the class that the job names, with its owners, or None. PROTOCOL §2 requires that users see
    the owners before they sign. `job` and `draft` let `submit` reuse the computed order.
    `estimate` is the expected cost, or None if no offer fits. The order needs a voucher of
    `reserved` more than what runs before it cost, within this client's `lead`.
    """

    packed: PackedJob
    view: PlanView
    upload_bytes: int
    worst_charge: Amount
    budget: Amount
    reserved: Amount
    lead: Lead
    pool: PoolRow | None = None
    job: Job | None = None
    draft: OrderDraft | None = None
    estimate: Estimate | None = None
    period: int = 0  # seconds between beacon rounds

    @property
    def upfront(self) -> Amount:
        """What the tab must have: the worst case, and of a rental what is paid ahead."""
        return self.reserved if self.packed.spec.kind.is_rental else self.worst_charge

    @property
    def is_fast(self) -> bool:
        return self.draft is not None and orders.is_fast(self.draft.order, self.view.rule)


class Market:
    """A client's connection to one coordinator.

        async with Market(profile) as market:
            job = Job(image="image.tar", command=["python", "-c", "print(1)"], max_price="0.50")
            run = await market.submit(job)
            result = await run.result()

    `profile` is an opened profile, or the path of a devnet.json, whose first client it is unless
    `client` names another. `url` overrides the profile's coordinator. `notice` is called with
    sentences for the user. With `is_reading` a locked profile stays locked: if the coordinator asks
    who reads, ProfileError says how to sign. `endpoints` are those of hf:// and s3:// sources.
    """

    def __init__(
        self,
        profile: Profile | str | Path,
        *,
        client: str = "",
        url: str | None = None,
        clock: Clock | None = None,
        notice: Notice = ignore_notice,
        is_reading: bool = False,
        endpoints: Endpoints | None = None,
    ) -> None:
        self._profile = profile = profile_of(profile, client)
        self._is_reading, self._endpoints = is_reading, endpoints or Endpoints()
        self._url = url or profile.coordinator_url
        self._clock = clock or SystemClock()
        self._notice = notice
        self._stack = AsyncExitStack()
        self._settlement_task: asyncio.Task[None] | None = None
        self._account_nonce = Nonce(0)
        self._http_session: HttpSession
        self._opened: ClientSession | None = None
        self.info: InfoView

    def __repr__(self) -> str:
        """Names the coordinator and the account."""
        account = self._profile.account.address.hex()
        return f"<Market {self._url} account=0x{account}{'' if self._opened else ' (not open)'}>"

    @staticmethod
    def local(**options: Any) -> "AbstractAsyncContextManager[Market]":
        """Starts a whole market on this machine for tests: `async with Market.local() as market`.

        Needs `quorate[devnet]`. Raises UsageError if that is not installed.
        """
        found = list(entry_points(group="quorate.local"))
        if not found:
            raise UsageError("Market.local() needs the devnet: pip install 'quorate[devnet]'")
        start = found[0].load()
        made: AbstractAsyncContextManager[Market] = start(**options)
        return made

    async def __aenter__(self) -> Self:
        """Connects, and compares the coordinator's identity with the profile's pins.

        Raises EvidenceError if the identity changed, UnavailableError if the coordinator does not
        answer.
        """
        # aiohttp is most of the time that importing a Market would take.
        from aiohttp import TCPConnector

        from quorate.client.base.coordinator_api import Api
        from quorate_runtime.http.client_sessions import plain_session

        try:
            connector = TCPConnector(limit=CONNECTIONS_MAX)
            session = await self._stack.enter_async_context(plain_session(connector=connector))
            self._http_session = session
            ledger = Ledger(self._profile.ledger_path)
            self._stack.callback(ledger.close)
            # the token comes from the session, which is created after the API
            api = Api(self._url, session, lambda: self._client_session.token(), self._notice)  # noqa: PLW0108
            api.sign_in = lambda: self._client_session.sign_in()  # noqa: PLW0108
            self._opened = ClientSession(
                api, self._profile, ledger, self._clock, self._notice, not self._is_reading
            )
            await self._read_identity()
            self._background_settlement = BackgroundSettlement(self._client_session)
            self._uploader = Uploader(api, self._clock.now)
            home = self._profile.home
            preparation = JobPreparation(home, session, self._notice, self._stack)
            is_devnet = self.info.limits == DEVNET.name
            sources = SourceResolver(
                home, self._endpoints, preparation.folder, self._notice, is_devnet
            )
            self._packing = JobPacking(api, session, preparation, sources)
            return self
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Disconnects. Runs continue."""
        if self._settlement_task is not None:
            self._settlement_task.cancel()
            await asyncio.gather(self._settlement_task, return_exceptions=True)
        self._opened = None
        await self._stack.aclose()

    async def attach(self) -> None:
        """Starts witnessing and vouching for this client's runs. `submit` and `run` call it
        themselves. It does nothing while a reading market's keys are locked.
        """
        if not self._client_session.can_sign:
            return
        if self._settlement_task is None or self._settlement_task.done():
            self._settlement_task = asyncio.create_task(self._background_settlement.run())

    async def settle_ended(self) -> None:
        """Settles this client's ended runs, and signs a voucher for what they cost."""
        await self._background_settlement.settle_all()

    async def offers(self) -> tuple[OfferView, ...]:
        """Returns the live offers."""
        return await self._client_session.api.offers()

    async def checked_offers(self, is_on_chain: bool = False) -> tuple[CheckedOffer, ...]:
        """Returns the offers of the book, each checked by this client. With `is_on_chain` it asks
        the chain too, whether the keys that signed are those of the providers.
        """
        session = self._client_session
        now = UnixSeconds(int(session.clock.now()))
        rows = [check_offer(view, session.identity, now) for view in await session.api.offers()]
        if is_on_chain:
            return await check_on_chain(rows, session.identity, self.info.chain_url)
        return tuple(rows)

    async def with_attestation(
        self, rows: Iterable[CheckedOffer], is_on_chain: bool = False
    ) -> tuple[CheckedOffer, ...]:
        """Returns the rows with what this client found about the attestation of each slot.

        It fetches documents and proofs from the addresses in the offers and computes for about a
        second a GPU. With `is_on_chain` the chain says whose keys signed. Raises UsageError if
        numpy is not installed.
        """
        from quorate.trust.attestation_checks import attestation_check

        session = self._client_session
        chain_url = self.info.chain_url if is_on_chain else ""
        now = UnixSeconds(int(session.clock.now()))
        async with attestation_check(session.identity, now, chain_url) as check:
            return tuple([replace(row, slots=await check.check(row.view.offer)) for row in rows])

    async def history(
        self, by: str, seconds: int, pool: Hash32 = ZERO_HASH
    ) -> tuple[MarketPeriodView, ...]:
        """Returns the market's supply, prices and volume of the last `seconds`, in order of time.

        `by` is "hour" or "day". ZERO_HASH asks for all pools.
        """
        since = max(0, int(self._client_session.clock.now()) - seconds)
        return await self._client_session.api.market_history(by, since, pool)

    async def pools(self) -> tuple[PoolRow, ...]:
        """Returns the pools on offer with their owners; those with most owners first."""
        return pools_of(await self._client_session.api.offers())

    async def account(self) -> AccountView:
        """Returns this client's tab, charges and vouchers, by the coordinator's account."""
        return await self._client_session.api.account(self._client_session.client)

    async def balance(self) -> "Balances":
        """Returns this client's money: in the wallet, balance, tabs, and funded orders.

        Raises UnavailableError if the chain node does not answer.
        """
        from quorate.client.money import own_money

        return await own_money.balance(self._client_session, self.info.chain_url)

    async def withdraw(
        self, amount: Money | None = None, to: str = "", wait: bool = False
    ) -> "WithdrawalState":
        """Takes money back from the escrow, like `quorate withdraw`; None: all that is not
        promised. If the coordinator does not give it back, call it again at `ready_at`, or let it
        `wait` for the money. `to`: who gets it.

        Raises UsageError, RefusedError if there is less, UnavailableError without the chain.
        """
        from quorate.client.money import own_money

        await self.settle_ended()
        return await own_money.withdraw(self._client_session, amount, to, wait)

    async def give_back(self, amount: Amount) -> Amount:
        """Asks the coordinator for so much of the tab. Returns what it frees on chain now."""
        return await self._client_session.api.give_back(amount)

    async def runs(self) -> tuple[RunView, ...]:
        """Returns this client's runs as the coordinator lists them."""
        return await self._client_session.api.runs()

    async def plan(self, job: Job) -> Plan:
        """Packs the job and asks what an order would meet and cost. Uploads and signs nothing.

        `notice` gets a warning for each CID that the store does not hold. Raises UsageError for a
        wrong job, RefusedError if the coordinator refuses.
        """
        packed = await self._packing.packed(job)
        self._notify_missing(packed)
        return await self._plan(job, packed)

    async def submit(
        self, job: Job, plan: Plan | None = None, progress: Progress = no_progress
    ) -> Run:
        """Uploads what is missing, signs the order and sends it. The run continues after this
        program ends.

        It waits while open runs use up the lead. Without a plan, `notice` is told the owners of a
        named pool and the CIDs that the store lacks. With a plan, no higher fee than the
        plan's is signed. `progress` is called with (text, bytes done, bytes in all or 0). Raises
        UsageError, RefusedError, or UnavailableError if no answer came.
        """
        if plan is not None:
            return await self._submit(job, plan.packed, self._planned_draft(job, plan), progress)
        await self._notify_owners(job)
        packed = await self._packing.packed(job)
        self._notify_missing(packed)
        return await self._submit(job, packed, self._draft(job, packed), progress)

    async def _submit(
        self, job: Job, packed: PackedJob, draft: OrderDraft, progress: Progress
    ) -> Run:
        self._background_settlement.vouchers.lead.check(draft.reserved)
        if not packed.spec.kind.is_rental:
            await self._let_services_first()
        if packed.sources and not job.may_be_unverified:
            await self._check_verified(job, packed)
        if job.escrow:
            from quorate.client.money.order_escrow import check_balance

            session, budget = self._client_session, draft.order.budget
            await check_balance(session.identity, self.info.chain_url, session.client, budget)
        crash_point("client.before-upload")
        await self._uploader.upload_missing(packed.uploads, progress)
        crash_point("client.after-upload")
        if not self._background_settlement.vouchers.lead.fits(draft.reserved):
            await self.attach()  # runs that it settles make room
        nonce = await self._known_nonce()
        session, settlement = self._client_session, self._background_settlement
        job_id = await place_order(
            session, settlement.vouchers, job, packed.spec, draft, nonce, self.info.chain_url
        )
        await self.attach()
        run = Run(session, settlement, job_id, job.name)
        if packed.sources and not job.may_be_unverified:
            await self._stop_unverified(run)
        return run

    async def _let_services_first(self) -> None:
        """Waits while a service of this profile lacks a machine that it wants."""
        session, has_told = self._client_session, False
        while name := await asyncio.to_thread(wanting, session.profile.home):
            if not has_told:
                has_told = True
                self._notice(f"the order waits: your service {name} lacks a machine, and is first")
            await session.clock.sleep(LOOK_SECONDS)

    async def _check_verified(self, job: Job, packed: PackedJob) -> None:
        """The order of a job with sources accepts the rule unverified (PROTOCOL 4.86), and its user
        did not. Raises RefusedError if the coordinator would choose it.
        """
        view = (await self._plan(job, packed)).view
        if view.refusal or view.rule is Label.UNVERIFIED:
            code = Code(view.refusal) if view.refusal in set(Code) else Code.TOO_FEW_OWNERS
            raise RefusedError(code.value, MEANINGS[code].sentence, view.nearest)

    async def _stop_unverified(self, run: Run) -> None:
        ack = self.entry(run.job_id).ack
        if ack is None or envelope.decode(ack, Ack).message.rule is not Label.UNVERIFIED:
            return
        await run.stop()
        code = Code.TOO_FEW_OWNERS
        detail = f"run {run.id[:14]} was stopped: too few owners are left to verify it"
        raise RefusedError(code.value, MEANINGS[code].sentence, detail)

    async def run(self, name: str | bytes) -> Run:
        """Returns a run of this profile by job id (bytes, 0x-hex, or a prefix of at least four
        digits) or by its newest name.

        A whole job id also finds a run that this profile did not order, if this account may read
        it. Raises UsageError if no run or several match, RefusedError if such a run is private.
        """
        job_id, known_name = await find_run(self._client_session, name)
        await self.attach()
        typed = name if isinstance(name, str) and len(name) < TYPED_MAX else ""
        return Run(self._client_session, self._background_settlement, job_id, known_name, typed)

    async def rental(self, name: str | bytes) -> "Rental":
        """Returns a rental of this profile, as `run` does. UsageError if it is a task."""
        from quorate.client.rental import Rental

        run = await self.run(name)
        entry = self.entry(run.job_id)
        if not job_spec.decode(entry.spec).kind.is_rental:
            raise UsageError(
                f"run {run.called} is a task, not a rental; `quorate logs {run.called}` shows what "
                "it prints"
            )
        session, settlement = self._client_session, self._background_settlement
        return Rental(run, session, settlement)

    def sandbox(self, image: str | Path, **options: Any) -> "AbstractAsyncContextManager[Sandbox]":
        """Rents a machine for commands and files, and destroys it at the end of the block.
        `options` are fields of `Job`, such as `budget`, the most that it ever costs; and `files`:
        path in it -> local path, or bytes. Needs `quorate[rent]`.

        async with market.sandbox("python:3.12", max_price="0.50", budget="1") as box:
            print((await box.exec(["python3", "-c", "print(1)"])).stdout)
        """
        from quorate.client.sandbox_machines import RentedMachines
        from quorate.sandboxes.machines import template
        from quorate.sandboxes.sandbox import one_sandbox

        return one_sandbox(RentedMachines(self), template(image, **options))

    def sandboxes(
        self, image: str | Path, *, warm: int = 2, idle: str | int = "10m", **options: Any
    ) -> "Sandboxes":
        """Returns a pool whose sandboxes run already when they are asked for; use it in `async
        with`. `options` as of `sandbox`, and `budget` is that of each.
        """
        from quorate.client.sandbox_machines import RentedMachines
        from quorate.sandboxes.machines import template
        from quorate.sandboxes.pool import Sandboxes

        return Sandboxes(RentedMachines(self), template(image, **options), warm, idle)

    def open_rentals(self) -> list[OrderRecord]:
        """Returns this profile's rentals here that are not settled yet, newest first."""
        return [
            entry
            for entry in self.entries()
            if entry.charged is None and job_spec.decode(entry.spec).kind.is_rental
        ]

    async def compare_again(self, body: Receipt) -> tuple[Check, ...]:
        """Compares the outputs of a run within a tolerance again, as its checked receipt says."""
        return await distance_checks(self._client_session, body)

    async def fetch_executions(self, body: Receipt, places: Iterable[int], folder: Path) -> None:
        """Fetches the outputs of a run's executions, by their numbers in its checked receipt."""
        await fetch_executions(self._client_session, body, places, folder)

    async def map(self, job: Job, params: Iterable[Mapping[str, str]] | None = None) -> list[Run]:
        """Submits one job for each element: the job's own sweep, or given sets of variables.

        Returns the runs in order. A budget is for the whole sweep, or for each of the given sets.
        """
        wanted = await self.array(job, params)
        slots = asyncio.Semaphore(MAP_PARALLEL)

        async def one(element: ArrayElement) -> Run:
            async with slots:
                return await self.submit_element(element)

        return list(await asyncio.gather(*(one(element) for element in wanted)))

    async def array(
        self, job: Job, params: Iterable[Mapping[str, str]] | None = None
    ) -> list[ArrayElement]:
        """Returns the elements of a job array, each with this profile's newest order of exactly
        that job. Uploads and signs nothing.
        """
        await self._notify_owners(job)
        session = self._client_session
        coordinator, ledger = session.identity.coordinator, session.ledger
        found = await self._packing.elements(job, None if params is None else list(params))
        if found:
            self._notify_missing(found[0].packed)
        return [
            replace(
                one, entry=ledger.with_spec(coordinator, one.job.name, one.packed.spec.encode())
            )
            for one in found
        ]

    async def submit_element(self, element: ArrayElement) -> Run:
        """Submits one element of `array`, also if it was ordered before."""
        job, packed = element.job, element.packed
        return await self._submit(job, packed, self._draft(job, packed), no_progress)

    async def plan_element(self, element: ArrayElement) -> Plan:
        """Asks what one element would meet and cost."""
        return await self._plan(element.job, element.packed)

    def function(self, **options: Any) -> "Callable[[Callable[P, R]], RemoteFunction[P, R]]":
        """Returns a decorator that makes a function's calls jobs; `options` are fields of `Job`.

        @market.function(image="python:3.12", max_price="1", requirements=["numpy"])
        def mean(values: list[float]) -> float: ...

        result = await mean([1.0, 2.0])
        """
        from quorate.programs.functions import RemoteFunction

        return lambda function: RemoteFunction(self, function, options)

    def entry(self, job_id: Hash32) -> OrderRecord:
        """Returns this profile's own record of one order."""
        return self._client_session.entry(job_id)

    def costs_of(self, beginning: str) -> tuple[Amount, Amount]:
        """Returns what this profile's settled orders whose names begin so cost, and the budgets of
        the others.
        """
        return self._client_session.ledger.named_with(beginning)

    def debt(self) -> SpendingTotals:
        """Returns what this profile's orders here cost by checked receipts, and what open ones may
        still cost.
        """
        return self._client_session.ledger.debt(self._client_session.identity.coordinator)

    def entries(self) -> list[OrderRecord]:
        """Returns this profile's own record of its newest 1,000 orders here, newest first."""
        return self._client_session.ledger.entries(self._client_session.identity.coordinator)

    @property
    def _client_session(self) -> ClientSession:
        if self._opened is None:
            raise UsageError(
                "this Market is not open; use it inside `async with Market(profile) as market:`"
            )
        return self._opened

    async def _plan(self, job: Job, packed: PackedJob) -> Plan:
        view = await self._client_session.api.plan(
            PlanRequest(packed.spec, job.price(), job.tier(), job.may_be_unverified, job.host())
        )
        if view.fee_bps != self.info.fee_bps:
            await self._read_identity()  # the fee may have changed since
        # The user sees both the coordinator's figure and sums made with ours, so they must agree.
        if view.fee_bps != self.info.fee_bps:
            said = f"{view.fee_bps} bps in the plan but {self.info.fee_bps} in its info"
            raise EvidenceError(
                f"plan: the coordinator states its fee as {said}; try again, or use another "
                "coordinator"
            )
        draft = self._draft(job, packed)
        missing = sum(item.size_bytes for item in await self._uploader.missing(packed.uploads))
        return Plan(
            packed=packed,
            view=view,
            upload_bytes=missing,
            worst_charge=draft.worst_charge,
            budget=draft.order.budget,
            reserved=draft.reserved,
            lead=self._background_settlement.vouchers.lead,
            pool=await self._class_of(job),
            job=job,
            draft=draft,
            estimate=estimate_of_rental(view, job.ahead_seconds())
            if job.is_rental
            else estimate(
                view,
                job.name,
                packed.spec,
                draft.order.audit_premium_bps,
                self.entries(),
                orders.is_fast(draft.order, view.rule),
                self._took,
            ),
            period=self.info.beacon.period,
        )

    def _took(self, job_id: Hash32) -> int | None:
        """The seconds of one execution of a run whose receipt this profile has."""
        path = self._client_session.profile.receipts / f"{job_id.hex()}.json"
        body = body_of(path.read_bytes()) if path.is_file() else None
        if body is None:
            return None
        ran = [it.commit_receipt.message.time - it.accept.message.time for it in body.executions]
        return -(-sum(ran) // len(ran))

    def _draft(self, job: Job, packed: PackedJob) -> OrderDraft:
        identity = self._client_session.identity
        least = identity.constants.rental_ahead
        if job.is_rental and job.ahead_seconds() < least:
            raise UsageError(
                f"for: {job.ahead} is too short; a rental is paid ahead for at least "
                f"{format_duration(least)}"
            )
        client, fee_bps = self._client_session.client, Bps(self.info.fee_bps)
        return draft_order(job, packed.spec, client, identity.coordinator, fee_bps)

    def _planned_draft(self, job: Job, plan: Plan) -> OrderDraft:
        """Returns the plan's own draft with its fee as the highest, unless job or fee changed."""
        fee_bps = Bps(plan.view.fee_bps)
        if plan.draft is None or job != plan.job or fee_bps != self.info.fee_bps:
            return self._draft(replace(job, max_fee_bps=fee_bps), plan.packed)
        return plan.draft.with_max_fee(fee_bps)

    async def _read_identity(self) -> None:
        """Reads what the coordinator says about itself. EvidenceError if it is not the pinned
        one.
        """
        self.info = await self._client_session.api.info()
        made_for, found = self._profile.limits, self.info.limits
        if made_for not in ("", found):
            raise ProfileError(
                f"{self._profile.home} is a profile for {made_for}, and {self._url} serves "
                f"{found}; make another: quorate --home FOLDER init --limits {found}"
            )
        remember_chain_url(self._profile.home, self.info.chain_url)
        self._client_session.identity = check_identity(self._profile.pins_path, self.info)

    def _notify_missing(self, packed: PackedJob) -> None:
        for named in packed.not_stored:
            self._notice(named.warning())
        if packed.warning:
            self._notice(packed.warning)

    async def _notify_owners(self, job: Job) -> None:
        if job.pool:
            self._notice(describe_owners(await self._class_of(job), job.pool))

    async def _class_of(self, job: Job) -> PoolRow | None:
        rows = await self.pools() if job.pool else ()
        return next((row for row in rows if row.id == job.host()), None)

    async def _known_nonce(self) -> Nonce:
        # Asked once. It matters only if this account's ledger was lost; then the coordinator's
        # record is better.
        if not self._account_nonce:
            account = await self.account()
            self._account_nonce = Nonce(max(account.next_nonce, 1))
        return self._account_nonce
