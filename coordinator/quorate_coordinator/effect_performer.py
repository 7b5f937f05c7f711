"""Performs the core's effects: frames to providers, documents, and transactions."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from quorate_contracts import encodings
from quorate_contracts.calls import transact, view
from quorate_contracts.court_facts import CaseEvidence, RunEvidence, job_run
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.contract_calls import Call
from quorate_contracts.money_texts import currency_of
from quorate_coordinator.chain import job_escrows
from quorate_coordinator.chain.queries import tabs_of
from quorate_coordinator.core.model import effects
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.storage.stored_effects import JobDocuments
from quorate_protocol.limits import JURORS, Limits
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.ports import Clock, Peers
from quorate_protocol.messages.signed import Session
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Amount, BlockNumber, Seconds, UnixSeconds, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender, Unfunded

log = logging.getLogger(__name__)
ANSWER_WITHIN = Seconds(3)
FUNDS_SECONDS = 15.0
RECONNECT_LOOKS = 8
RECONNECT_LOOK_SECONDS = 0.25
MoneyEffect = effects.SendPayroll | effects.SendRedeem | effects.SendLocks | effects.SendGiveBack


@dataclass(slots=True)
class EffectPerformer:
    """The outbox tries again after Unavailable. Refused ends the effect."""

    coordinator: Address
    contracts: Contracts
    client: ChainClient
    limits: Limits
    peers: Peers
    documents: JobDocuments
    sender: Sender
    clock: Clock
    archive_writer: Callable[[effects.ArchiveRuns | effects.AppendSummary], Awaitable[None]]
    submit: Callable[[ev.Event], Awaitable[object]]
    compare: Callable[[effects.CompareOutputs], Awaitable[None]]
    # One case at a time looks for its money and opens: two would count the same money.
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send():
                await self._send(effect)
            case effects.StoreSpec() | effects.StoreReceipt():
                await self.documents.store_for(effect)
            case effects.CompareOutputs():
                await self.compare(effect)
            case (
                effects.SendPayroll()
                | effects.SendRedeem()
                | effects.SendLocks()
                | effects.SendGiveBack()
            ):
                await self._move(effect)
            case effects.ShowExecution():
                await self._show(effect)
            case effects.PayOrder():
                await self._pay_order(effect)
            case effects.ReleaseOrder():
                await self._release(effect)
            case effects.OpenCase():
                await self._open_case(effect)
            case effects.ProveEquivocation():
                await self._prove(effect)
            case effects.ArchiveRuns() | effects.AppendSummary():
                await self.archive_writer(effect)

    async def _send(self, effect: effects.Send) -> None:
        # The outbox retries after pauses that grow. So a provider that connects again would wait
        # for the end of a pause; here it gets the frame at once.
        for _ in range(RECONNECT_LOOKS):
            if effect.peer in self.peers.connected():
                break
            await self.clock.sleep(RECONNECT_LOOK_SECONDS)
        try:
            await self.peers.request(effect.peer, frames.encode(effect.frame), ANSWER_WITHIN)
        except Unavailable as error:
            if self.clock.now() > effect.expires:
                # The frame is too late. The core has already applied the lease's deadline, and
                # newer messages replace older ones.
                log.info("%s dropped: %s", effect.key, error)
                return
            raise Unavailable(str(error), 0.3) from error

    async def _move(self, effect: MoneyEffect) -> None:
        payers, payees = _accounts(effect)
        try:
            block = await self._transact(effect.key, await self._money_call(effect))
        except Refused:
            # What the core knows may differ from the chain, so it hears that before it builds the
            # next one.
            await self.submit(ev.ChainStateQueried(await self._notes(payers, payees, 0)))
            raise
        notes = await self._notes(payers, payees, block)
        await self.submit(ev.TransactionConfirmed(effect.key, notes))

    async def _money_call(self, effect: MoneyEffect) -> Call:
        escrow, me = self.contracts.escrow, self.coordinator
        match effect:
            case effects.SendPayroll(pays=pays, root=root):
                return escrow.payroll(
                    me, root, encodings.pairs((pay.payee, pay.cumulative) for pay in pays)
                )
            case effects.SendLocks(locks=locks):
                words = encodings.pairs((lock.payee, lock.amount) for lock in locks)
                return escrow.lock_many(me, words)
            case effects.SendGiveBack(client=client, amount=amount):
                return escrow.give_back(client, me, amount)
            case effects.SendRedeem(vouchers=vouchers, root=root):
                shown = [encodings.session(it) for it in await self._unknown(vouchers)]
                signed = [encodings.voucher(item.voucher) for item in vouchers]
                return escrow.redeem(me, root, shown, signed)

    async def _unknown(self, vouchers: Sequence[effects.PaidVoucher]) -> list[Envelope[Session]]:
        """Each that is left out saves gas."""
        found = []
        for item in vouchers:
            body = item.session.message
            query = self.contracts.escrow.session(body.client, self.coordinator, body.session_key)
            up_to, expires = await view(self.client, query)
            if up_to < body.up_to or expires < body.expires:
                found.append(item.session)
        return found

    async def _notes(
        self, payers: Sequence[Address], payees: Sequence[Address], least: int
    ) -> tuple[ev.ChainNote, ...]:
        head = (await self.client.head()).number
        at = BlockNumber(max(least, head - self.limits.chain_depth + 1, 0))
        parts = self.client, self.contracts, self.coordinator
        return tuple(await tabs_of(*parts, payers, payees, at))

    async def _show(self, effect: effects.ShowExecution) -> None:
        await self._must_be_past(effect.run.assignment.message.accept_by)
        run = job_run(_run(effect.run), effect.run.receipt, effect.run.reveal)
        await self._transact(effect.key, self.contracts.jobs.show(effect.order, run))

    async def _pay_order(self, effect: effects.PayOrder) -> None:
        """Once nothing more can be shown. Others may show and pay it, too."""
        if self.clock.now() <= effect.not_before:
            raise Unavailable("its evidence window is open", FUNDS_SECONDS)
        now = (await self.client.head()).time
        parts = self.client, self.contracts, effect.order
        shown = await job_escrows.shown_of(*parts)
        if shown is None:
            return
        if now <= shown.ready_at:
            raise Unavailable("its evidence window is open", float(shown.ready_at - now + 1))
        call = self.contracts.jobs.pay(effect.order, shown.providers)
        try:
            await self._transact(f"{effect.key}-{len(shown.providers)}", call)
        except Refused as refused:
            if await job_escrows.shown_of(*parts) is not None:
                raise Unavailable(str(refused), FUNDS_SECONDS) from refused

    async def _release(self, effect: effects.ReleaseOrder) -> None:
        if await job_escrows.is_releasable(self.client, self.contracts, effect.order):
            await self._transact(effect.key, self.contracts.jobs.release(effect.order))

    async def _open_case(self, effect: effects.OpenCase) -> None:
        evidence = effect.execution
        pair = _run(evidence.run), _run(evidence.contradiction)
        case = CaseEvidence(evidence.session, evidence.order, *pair)
        burned = Amount(JURORS * (effect.pay + self.limits.jury_gas_fee))
        async with self.opening:
            if not await self.sender.known(effect.key):
                await self._must_be_past(max(run.assignment.message.accept_by for run in pair))
                await self._must_hold(burned, case)
            await self._transact(
                effect.key, self.contracts.court.open_case(case.shown(), effect.pay)
            )

    async def _prove(self, effect: effects.ProveEquivocation) -> None:
        if not await self.sender.known(effect.key):
            await self._must_be_past(effect.assignment.message.accept_by)
        shown = (effect.assignment, effect.one, effect.other)
        assignment, one, other = shown
        call = self.contracts.faults.equivocation(
            assignment.message, assignment.sig, one.message, one.sig, other.message, other.sig
        )
        await self._transact(effect.key, call)

    async def _must_be_past(self, latest: UnixSeconds) -> None:
        """Raises Unavailable until the last `acceptBy` lies before the newest block."""
        now = (await self.client.head()).time
        if now <= latest:
            raise Unavailable(
                f"the chain hears this after its last acceptBy, in {latest - now + 1} s",
                float(latest - now + 1),
            )

    async def _must_hold(self, burned: Amount, case: CaseEvidence) -> None:
        """Raises Unavailable while the posting key's balance in Escrow is too small for a case.
        Once the court would refuse the case as too late, its refusal tells the core.
        """
        held = await view(self.client, self.contracts.escrow.balance_of(self.sender.address))
        accused = case.run.assignment.message
        heard_until = accused.accept_by + accused.max_duration + self.limits.case_evidence_age
        if held < burned and (await self.client.head()).time <= heard_until:
            lacks = usd(Amount(burned - held))
            told = (
                f"an accusation burns {usd(burned)} USD, and {usd(held)} are there for it: "
                f"quorate coordinator deposit {lacks} --accusations"
            )
            raise Unavailable(told, FUNDS_SECONDS)

    async def _transact(self, purpose: str, call: Call) -> BlockNumber:
        try:
            receipt = await transact(self.sender, purpose, call)
        except Unfunded as error:
            # A case must not be given up because our own key has no coins.
            raise Unavailable(
                f"the posting key 0x{self.sender.address.hex()} needs "
                f"{currency_of(self.contracts.deployment).coin} for gas on "
                f"{currency_of(self.contracts.deployment).chain}: {error}",
                FUNDS_SECONDS,
            ) from error
        log.info("%s: %d gas", purpose, receipt.gas_used)
        return receipt.block


def purpose_of(effect: effects.Effect, refused: Refused) -> tuple[str, str] | None:
    """(purpose, reason) of which the core must hear; None for other effects."""
    is_heard = isinstance(effect, MoneyEffect | effects.OpenCase)
    return (effect.key, refused.detail or str(refused)) if is_heard else None


def _accounts(effect: MoneyEffect) -> tuple[list[Address], list[Address]]:
    match effect:
        case effects.SendPayroll(pays=pays):
            return [], [pay.payee for pay in pays]
        case effects.SendLocks(locks=locks):
            return [], [lock.payee for lock in locks]
        case effects.SendRedeem(vouchers=vouchers):
            return [item.voucher.message.payer for item in vouchers], []
        case effects.SendGiveBack(client=client):
            return [client], []


def _run(run: effects.ShownRun) -> RunEvidence:
    return RunEvidence(run.index, run.blind, run.assignment, run.commit)
