"""What an owner's daemon does about money by itself: tabs, receipts, vouchers, funded orders.

Its files survive the daemon. Every transaction is its own: no coordinator is needed for any.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorate_coordinator.core.model.effects import ShownRun
from quorate_node.core import effects, events
from quorate_node.core.phases import Done, Revealed
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Order
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import tabs
from quorate_protocol.rules.receipts.receipt_bill import paid_by_client
from quorate_protocol.units import Amount, Hash32, UnixSeconds
from sim.escrow import Tab
from sim.funded import Funded
from sim.parties import DOMAIN
from sim.process import Again

if TYPE_CHECKING:
    from sim.provider import Provider

LEAST = Amount(1)  # this market's sums are small, so every one is worth its gas


@dataclass(frozen=True, slots=True)
class Kept:
    """The evidence of an execution whose order has an escrow of its own."""

    order: Order
    run: ShownRun
    since: int


@dataclass(slots=True)
class OwnerMoney:
    """The money of one provider."""

    provider: Provider
    kept: dict[Hash32, Kept] = field(default_factory=dict)
    read: dict[Hash32, int] = field(default_factory=dict)  # lease -> Verdict of its checked receipt
    shown: int = 0  # executions that the owner showed itself
    redeemed: int = 0  # vouchers that it sent itself
    busy: set[str] = field(default_factory=set)

    def start(self) -> None:
        """A new life: what was under way is found on chain, and the newest voucher goes back.

        Receipts are read again, because an event that says one was read may be lost.
        """
        self.busy.clear()
        self.read.clear()
        newest = self.provider.core.debt(self.provider.coordinator).voucher
        if newest is not None:
            self.provider.send(frames.VoucherSent(newest), lambda answer: None)

    def look(self) -> None:
        """Does what is due."""
        for act in (self._see_tab, self._read_receipts, self._redeem, self._draw, self._settle):
            if self.provider.is_up:
                act()

    # ----------------------------------------------------------------------------------------- tabs

    def _tab(self) -> Tab:
        books = self.provider.chain.final_money().escrow
        return books.tabs.get((self.provider.coordinator, self.provider.owner), Tab())

    def _see_tab(self) -> None:
        found, debt = self._tab(), self.provider.core.debt(self.provider.coordinator)
        seen = tabs.Tab(Amount(found.locked), Amount(found.paid), UnixSeconds(found.closes_at))
        if seen != debt.tab or not debt.is_tab_known:
            self.provider.report(
                events.TabSeen(self.provider.coordinator, seen.locked, seen.paid, seen.closes_at)
            )

    def _redeem(self) -> None:
        debt, now = self.provider.core.debt(self.provider.coordinator), self.provider.now
        limits = self.provider.terms.limits
        if debt.voucher is not None and tabs.is_redeem_due(
            debt.tab, debt.waiting(UnixSeconds(0)), now, LEAST, limits
        ):
            voucher = debt.voucher
            self.redeemed += "redeem" not in self.busy
            self._once(
                "redeem",
                lambda done: self.provider.chain.redeem_of(self.provider.owner, voucher, done),
            )

    def _draw(self) -> None:
        tab = self._tab()
        if tab.paid > tab.drawn:
            self._once("draw", lambda done: self.provider.chain.draw(self.provider.owner, done))

    def _once(self, what: str, send: object) -> None:
        """Sends a transaction, unless one of its kind is under way."""
        if what in self.busy:
            return
        self.busy.add(what)
        life = self.provider.life

        def done(result: Again | Refused | None) -> None:
            if self.provider.life == life:
                self.busy.discard(what)

        send(done)  # type: ignore[operator]

    # ------------------------------------------------------------------------------------- receipts

    def _read_receipts(self) -> None:
        for lease, item in list(self.provider.core.executions.items()):
            if not isinstance(item.phase, Done) or item.coordinator != self.provider.coordinator:
                continue
            told = item.phase.verdict.message
            if self.read.get(lease) == told.seq:
                continue
            body = self.provider.receipt_of(told.job_id)
            if body is not None and body.verdict.message.seq == told.seq:
                self.read[lease] = told.seq
                pay = paid_by_client(body).get(lease, Amount(0))
                self.provider.report(events.ReceiptChecked(lease, told.seq, pay))

    # -------------------------------------------------------------------------------- funded orders

    def keep(self, effect: effects.KeepEvidence) -> None:
        """Keeps what shows an execution on chain, before it is revealed."""
        item = self.provider.core.executions[effect.assignment_hash]
        phase = item.phase
        assert isinstance(phase, Revealed) and phase.receipt is not None, "I3: nothing to show"
        signed = seal(DOMAIN, phase.commit, self.provider.signer_of(effect.assignment_hash).sign)
        run = ShownRun(
            effect.index, effect.blind, item.assignment, signed, phase.receipt, phase.reveal
        )
        since = self.provider.schedule.now
        self.kept.setdefault(effect.assignment_hash, Kept(effect.order, run, since))

    def _settle(self) -> None:
        books = self.provider.chain.final_money().jobs
        limits, now = self.provider.terms.limits, self.provider.schedule.now
        for lease, kept in self.kept.items():
            job = books.jobs.get((kept.order.client, digest(DOMAIN, kept.order)))
            if job is None:
                continue
            known = self.provider.core.pays.get(lease)
            if known is None or not known.is_escrowed:
                self.provider.report(events.OrderFunded(lease))
            if job.is_over or now < kept.since + limits.show_after:
                continue
            self._settle_one(kept, job)

    def _settle_one(self, kept: Kept, job: Funded) -> None:
        name, chain = self.provider.name, self.provider.chain
        limits, now = self.provider.terms.limits, self.provider.schedule.now
        if self.provider.owner not in {owner for owner, _, _ in job.shown}:
            if now <= job.until:
                self.shown += 1
                self._once("show", lambda done: chain.show(name, kept.order, kept.run, done))
        elif now > job.last + limits.evidence_window:
            self._once("pay", lambda done: chain.pay_order(name, kept.order, done))
