"""Performs the core's effects: sends frames to providers, stores documents, and sends transactions
to the chain.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.cases import case_bond
from quorate_contracts.bindings.court import CaseExecution, CaseJob, CaseRun
from quorate_contracts.bindings.epochs import SignedVoucher
from quorate_contracts.deploy import Contracts
from quorate_contracts.money_texts import currency_of, read_currency
from quorate_coordinator.chain.queries import backers, everything, newest_epoch, view
from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import (
    AppendSummary,
    ArchiveRuns,
    Contradiction,
    Effect,
    Evidence,
    OpenCase,
    PostEpoch,
    ProveEquivocation,
    Send,
    StoreReceipt,
    StoreSpec,
)
from quorate_coordinator.core.state import State
from quorate_coordinator.storage.documents import JobDocuments
from quorate_protocol.limits import Limits
from quorate_protocol.messages import frames
from quorate_protocol.ports import Clock, Peers
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Amount, Seconds, UnixSeconds, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender, Unfunded

log = logging.getLogger(__name__)
ANSWER_WITHIN = Seconds(3)
SEND_SECONDS = 60.0
FUNDS_SECONDS = 15.0
RECONNECT_LOOKS = 8
RECONNECT_LOOK_SECONDS = 0.25


@dataclass(slots=True)
class EffectPerformer:
    """Performs effects, one method for each kind. The outbox tries again after Unavailable. Refused
    ends the effect.
    """

    coordinator: Address
    contracts: Contracts
    client: ChainClient
    limits: Limits
    peers: Peers
    documents: JobDocuments
    sender: Sender
    clock: Clock
    archive_writer: Callable[[ArchiveRuns | AppendSummary], Awaitable[None]]
    submit: Callable[[ev.Event], Awaitable[object]]
    state: State
    # One case at a time checks for its bond and opens: two would count the same money. A case that
    # waits for money does not have it.
    bonds: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, effect: Effect) -> None:
        """Performs one effect. Performing it twice does no harm."""
        match effect:
            case Send():
                await self._send(effect)
            case StoreSpec() | StoreReceipt():
                await self.documents.store_for(effect)
            case PostEpoch():
                await self._post(effect)
            case OpenCase():
                await self._open_case(effect)
            case ProveEquivocation():
                await self._prove(effect)
            case ArchiveRuns() | AppendSummary():
                await self.archive_writer(effect)

    async def _send(self, effect: Send) -> None:
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

    async def _post(self, effect: PostEpoch) -> None:
        epochs = self.contracts.epochs
        vouchers = [SignedVoucher(item.session, item.voucher) for item in effect.vouchers]
        # The chain stores a session that it has proven. Leaving that session out saves 7,000 gas
        # for each voucher.
        clients = [item.voucher.message.payer for item in effect.vouchers]
        known = {
            client: await view(self.client, epochs.session(self.coordinator, client))
            for client in clients
        }
        call = epochs.post(self.coordinator, effect.number, effect.root, vouchers, known)
        try:
            await self._transact(effect.key, call)
        except Refused:
            # The state differs from the chain's. So the chain's state is queried before the core
            # builds the next epoch from it.
            await self.submit(
                await everything(self.client, self.contracts, self.coordinator, backers(self.state))
            )
            raise
        # A chain node may withhold the log of the posting, and then all pay would wait. So the
        # epoch is queried.
        await self.submit(
            ev.ChainStateQueried(
                (await newest_epoch(self.client, self.contracts, self.coordinator),)
            )
        )

    async def _open_case(self, effect: OpenCase) -> None:
        executions = [_execution(item) for item in effect.executions]
        bond = case_bond(executions, self.limits)
        async with self.bonds:
            if not await self.sender.known(effect.key):
                runs = [run for each in executions for run in (each.run, each.contradiction)]
                await self._must_be_past(max(run.assignment.message.accept_by for run in runs))
                await self._must_hold(bond, executions)
            # Without a limit: an exact approval would replace that of another case. The court pulls
            # a bond only for a case that its sender opens.
            court = self.contracts.deployment.court
            await self._transact(f"{effect.key}-approve", self.contracts.token.approve(court))
            await self._transact(effect.key, self.contracts.cases.open_case(executions))

    async def _prove(self, effect: ProveEquivocation) -> None:
        """Shows two Commits to the chain, and withdraws what it pays for the gas."""
        faults, me = self.contracts.faults, self.sender.address
        if not await self.sender.known(effect.key):
            await self._must_be_past(effect.assignment.message.accept_by)
        call = faults.equivocation(effect.assignment, effect.one, effect.other)
        await self._transact(effect.key, call)
        if await view(self.client, faults.credit_of(me)):
            await self._transact(f"{effect.key}-withdraw", faults.withdraw(me))

    async def _must_be_past(self, latest: UnixSeconds) -> None:
        """Raises Unavailable until the last `acceptBy` lies before the newest block."""
        now = (await self.client.head()).time
        if now <= latest:
            raise Unavailable(
                f"the chain hears this after its last acceptBy, in {latest - now + 1} s",
                float(latest - now + 1),
            )

    async def _must_hold(self, bond: Amount, executions: Sequence[CaseExecution]) -> None:
        """Raises Unavailable while the posting key has too little money for a case's bond.

        Once the court would refuse the case as too late, it raises nothing. Then the court's
        refusal tells the core.
        """
        held = await view(self.client, self.contracts.token.balance_of(self.sender.address))
        if held >= bond:
            return
        heard_until = min(
            item.run.assignment.message.accept_by + item.run.assignment.message.max_duration
            for item in executions
        )
        if (await self.client.head()).time <= heard_until + self.limits.case_evidence_age:
            deployment = self.contracts.deployment
            currency = await read_currency(self.client, deployment.chain_id, deployment.token)
            told = (
                f"the posting key 0x{self.sender.address.hex()} needs {usd(bond)} USD for the "
                f"bond of a case, and has {usd(held)}: "
                f"{currency.send(self.sender.address, bond - held)}"
            )
            raise Unavailable(told, FUNDS_SECONDS)

    async def _transact(self, purpose: str, call: Call) -> None:
        try:
            receipt = await self.sender.send(
                purpose, call.to, call.data, gas=call.gas, deadline_seconds=SEND_SECONDS
            )
        except Unfunded as error:
            # A case must not be given up because our own key has no coins.
            raise Unavailable(
                f"the posting key 0x{self.sender.address.hex()} needs "
                f"{currency_of(self.contracts.deployment).coin} for gas on "
                f"{currency_of(self.contracts.deployment).chain}: {error}",
                FUNDS_SECONDS,
            ) from error
        log.info("%s: %d gas", purpose, receipt.gas_used)


def purpose_of(effect: Effect, refused: Refused) -> tuple[str, str] | None:
    """Returns (purpose, reason) of an epoch or a case that the chain refused; None for other
    effects, of which the core need not hear.
    """
    return (
        (effect.key, refused.detail or str(refused))
        if isinstance(effect, PostEpoch | OpenCase)
        else None
    )


def _execution(item: Evidence) -> CaseExecution:
    job = CaseJob(item.session, item.order)
    return CaseExecution(job, _run(item), _run(item.contradiction))


def _run(item: Evidence | Contradiction) -> CaseRun:
    return CaseRun(item.index, item.blind, item.assignment, item.commit)
