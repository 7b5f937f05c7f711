"""Watches the epochs of coordinators for one account, and challenges them by itself (PROTOCOL §6).

A look reads one word of the chain for each coordinator, and more only if something changed or is
open.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.epochs import Epoch, Head
from quorate_contracts.watch.acting import Acting, Deed
from quorate_contracts.watch.decisions import Decision, Kind, judge
from quorate_contracts.watch.evidence import Evidence
from quorate_contracts.watch.halted import HaltedPay
from quorate_contracts.watch.watch_file import ShownLeaf
from quorate_protocol.limits import Limits
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Amount
from quorate_protocol.values import replace

LOOKS_PER_WINDOW = 4
PAUSE_SECONDS_MAX = 600.0
STATEMENT_SECONDS = 0.5  # between two looks at the newest Statements, which are in memory
# So long a coordinator may be late with an epoch before it is demanded.
LATE_SECONDS_LEAST = 60

log = logging.getLogger(__name__)


def pause_seconds(limits: Limits) -> float:
    """Returns how long a watcher waits between two looks at the chain."""
    return min(PAUSE_SECONDS_MAX, max(1.0, limits.challenge_window / LOOKS_PER_WINDOW))


@dataclass(slots=True)
class EpochWatcher:
    """One watcher of one account. It asks for `coordinators` at every look.

    With `is_eager` it looks for leaves of an account that has no evidence yet.
    """

    acting: Acting
    evidence: Evidence
    coordinators: Callable[[], Iterable[Address]]
    is_eager: bool = False
    pause_seconds: float = field(init=False)  # between two looks at the chain
    late_seconds: float = field(init=False)  # until an epoch is demanded
    _in_order: dict[Address, int] = field(default_factory=dict)  # up to this epoch all is well

    def __post_init__(self) -> None:
        """Sets how often it looks, and how late an epoch may be."""
        self.pause_seconds = pause_seconds(self.acting.limits)
        self.late_seconds = max(LATE_SECONDS_LEAST, 2 * self.acting.limits.epoch_every)

    async def run(self) -> None:
        """Looks until cancelled."""
        clock, looked_at = self.acting.clock, 0.0
        while True:
            self.note_statements()
            if clock.now() - looked_at >= self.pause_seconds:
                looked_at = clock.now()
                await self.look_at_all()
            await clock.sleep(min(self.pause_seconds, STATEMENT_SECONDS))

    async def look_at_all(self) -> None:
        """Looks once at every coordinator. What fails is tried again at the next look."""
        for coordinator in list(self.coordinators()):
            try:
                await self.look(coordinator)
            except Unavailable as error:
                log.debug("the watch of 0x%s waits: %s", coordinator.hex(), error)
            except Refused as refused:
                # Not re-raised: another account may have sent the same challenge first.
                log.info("the watch of 0x%s: %s", coordinator.hex(), refused)
            except OSError as error:
                # Not re-raised: the disk may have room again, and the daemon goes on.
                log.warning("the watch of 0x%s cannot keep its file: %s", coordinator.hex(), error)

    def note_statements(self) -> None:
        """Keeps the newest Statement of each coordinator."""
        try:
            for coordinator in list(self.coordinators()):
                self.evidence.note_statement(coordinator)
        except OSError as error:
            log.debug("the newest Statements are in memory only: %s", error)

    async def look(self, coordinator: Address) -> None:
        """Looks once at one coordinator, and does what is due."""
        self.evidence.note_statement(coordinator)
        kept, acting = self.acting.state.of(coordinator), self.acting
        if not (kept.statements or kept.leaves or self.is_eager):
            return  # it owes this account nothing that could be shown
        head = await acting.ask(acting.contracts.epochs.head(coordinator))
        pay = HaltedPay(acting)
        await self._close_demands(coordinator)
        await self._check_epochs(coordinator, head)
        if head.halted_at:
            await pay.take(coordinator, head)
        else:
            await self._demand_epoch(coordinator, head)
        await pay.take_credits(coordinator)

    # -------------------------------------------------------------------------------------- epochs

    async def _check_epochs(self, coordinator: Address, head: Head) -> None:
        """Checks every epoch that is not final and not known to be in order, the oldest first."""
        if self._in_order.get(coordinator, 0) >= head.valid:
            return
        epochs = self.acting.contracts.epochs
        final = await self.acting.ask(epochs.newest_final(coordinator))
        if final.number:
            await self._keep_leaf(coordinator, final)
        first = max(final.number, self._in_order.get(coordinator, 0)) + 1
        for number in range(first, head.valid + 1):
            epoch = await self.acting.ask(epochs.epoch(coordinator, number))
            if epoch.number and not await self._is_in_order(coordinator, epoch):
                return
            self._in_order[coordinator] = number

    async def _keep_leaf(self, coordinator: Address, epoch: Epoch) -> None:
        shown = await self.evidence.shown(coordinator, epoch)
        if shown is not None:
            self.acting.keep(self.acting.state.of(coordinator).with_leaf(shown))

    async def _is_in_order(self, coordinator: Address, epoch: Epoch) -> bool:
        """Whether nothing is left to do about an epoch. If not, it does what the evidence
        allows.
        """
        shown = await self.evidence.shown(coordinator, epoch)
        kept = self.acting.state.of(coordinator)
        old = await self.evidence.newest_leaf(kept, epoch.number)
        decision = judge(epoch, shown, kept, old)
        if decision.kind in (Kind.DEMAND, Kind.DEMAND_OLD):
            return await self._demand_leaf(coordinator, epoch, decision)
        if decision.kind is not Kind.NOTHING:
            assert shown is not None, "only a leaf that is shown is challenged"
            await self._challenge(coordinator, epoch.number, decision, shown)
            return False
        await self._keep_leaf(coordinator, epoch)
        return True

    async def _challenge(
        self, coordinator: Address, number: int, decision: Decision, shown: ShownLeaf
    ) -> None:
        challenges, after = self.acting.contracts.challenges, await self._after(coordinator, number)
        pair = shown.leaf, shown.proof
        if decision.statement is not None:
            signed = decision.statement
            call = challenges.challenge_statement(coordinator, number, signed, *pair, after)
        else:
            assert decision.old is not None, "a leaf falls against an older one"
            old = decision.old.leaf, decision.old.proof
            call = challenges.challenge_leaf(
                coordinator, number, pair, decision.old.epoch, old, after
            )
        await self.acting.act(
            Deed(coordinator, decision.kind.value, number, decision.missing, call)
        )

    async def _demand_leaf(self, coordinator: Address, epoch: Epoch, decision: Decision) -> bool:
        """Demands a leaf that nobody shows, a while after the posting. Returns False until then.
        A demand that is open is followed by itself.
        """
        number, acting = epoch.number, self.acting
        if number in acting.state.of(coordinator).demands:
            return True
        bond = acting.limits.jury_gas_fee
        if not acting.has_waited(coordinator, "leaf", number, self.pause_seconds):
            await acting.sender.prepare(bond)
            return False
        found = await acting.ask(
            acting.contracts.challenges.demand(coordinator, number, acting.account)
        )
        if not found.answer_by:
            call = self._demand_call(coordinator, number, decision)
            what = decision.kind.value
            await acting.act(Deed(coordinator, what, number, decision.missing, call, bond))
        kept = acting.state.of(coordinator)
        acting.keep(replace(kept, demands=(*kept.demands, number)))
        return True

    def _demand_call(self, coordinator: Address, number: int, decision: Decision) -> Call:
        challenges = self.acting.contracts.challenges
        if decision.statement is not None:
            return challenges.demand_leaf(coordinator, number, decision.statement)
        assert decision.old is not None, "demanded by an older leaf"
        old = decision.old
        return challenges.demand_old_leaf(coordinator, number, old.epoch, old.leaf, old.proof)

    async def _close_demands(self, coordinator: Address) -> None:
        """Ends the demands that nobody answered in time. Each voids its epoch."""
        acting = self.acting
        for number in acting.state.of(coordinator).demands:
            query = acting.contracts.challenges.demand(coordinator, number, acting.account)
            found = await acting.ask(query)
            if found.answer_by:
                epoch = await acting.ask(acting.contracts.epochs.epoch(coordinator, number))
                if epoch.number and await acting.chain_time() <= found.answer_by:
                    continue
                after = await self._after(coordinator, number)
                call = acting.contracts.challenges.close_demand(
                    coordinator, number, acting.account, after
                )
                await acting.act(Deed(coordinator, "close_demand", number, found.due, call))
            kept = acting.state.of(coordinator)
            acting.keep(replace(kept, demands=tuple(n for n in kept.demands if n != number)))

    async def _after(self, coordinator: Address, number: int) -> int:
        """How many epochs follow an epoch. They become void with it, which costs gas."""
        newest = await self.acting.ask(self.acting.contracts.epochs.newest(coordinator))
        return max(1, newest - number)

    # ---------------------------------------------------------------------------------- next epoch

    async def _demand_epoch(self, coordinator: Address, head: Head) -> None:
        """Demands the epoch of a Statement that is long due, and halts a coordinator that does not
        post it.
        """
        acting, kept = self.acting, self.acting.state.of(coordinator)
        newest = kept.newest()
        if newest is None or newest.message.epoch <= head.valid:
            return
        number = newest.message.epoch
        if not acting.has_waited(coordinator, "epoch", number, self.late_seconds):
            return
        paid = await self.evidence.newest_leaf(kept, head.valid + 1)
        missing = newest.message.final - (paid.leaf.final if paid is not None else 0)
        if missing <= 0:
            return
        challenges, due = acting.contracts.challenges, Amount(missing)
        found = await acting.ask(challenges.epoch_demand(coordinator))
        if not found.post_by:
            bond = acting.limits.jury_gas_fee
            call = challenges.demand_epoch(coordinator, newest)
            await acting.act(Deed(coordinator, "demand_epoch", number, due, call, bond))
        elif head.valid < found.epoch and await acting.chain_time() > found.post_by:
            call = challenges.halt(coordinator)
            await acting.act(Deed(coordinator, "halt", found.epoch, due, call))
