"""Signs vouchers: ahead of orders as far as the lead reaches, and for checked charges.

Every sum comes from this client's own ledger. What the coordinator says about the tab can only
lower it. A ledger restored from a backup takes over the newest voucher that its key signed.
"""

import asyncio
from collections.abc import Callable

from quorate.base.errors import RefusedError, translated
from quorate.client.base.client_ledger import OrderRecord, SpendingTotals
from quorate.client.base.session import ClientSession
from quorate.client.money.lead import Lead, lead_of
from quorate_protocol.limits import EXECUTIONS_MAX
from quorate_protocol.messages.envelope import Envelope, seal, signer
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.refusals import Code
from quorate_protocol.units import Amount
from quorate_runtime.keys.crypto import recover
from quorate_runtime.process.crash_points import crash_point

LOOK_SECONDS = 5.0  # another program of the profile may settle runs too
SLACK_SECONDS = 600  # of each execution, beside its longest run
COPIED = (
    "the coordinator has a newer one than this ledger, which goes on from it: the profile was "
    "copied or restored; use only one copy"
)


class Vouchers:
    """The vouchers of one client for one coordinator. `settled` is set when a run was settled."""

    def __init__(self, client_session: ClientSession) -> None:
        self._client_session = client_session
        self._locked = Amount(0)  # by the coordinator; it only lowers what is signed ahead
        self._arrived = Amount(0)  # the newest voucher that the coordinator has
        self._lock = asyncio.Lock()
        self._sent_session: Envelope[Session] | None = None
        self._has_told = False
        self.settled = asyncio.Event()

    @property
    def lead(self) -> Lead:
        session = self._client_session
        return lead_of(session.profile.lead, self._totals(), session.identity.constants)

    async def record_when_it_fits(self, reserved: Amount, make: Callable[[], OrderRecord]) -> None:
        """Records an order once open orders leave room for it in the lead.

        Raises UsageError if none of them can free enough any more.
        """
        ledger = self._client_session.ledger
        while True:
            self.settled.clear()
            lead = self.lead
            if lead.fits(reserved) and ledger.record(make(), lead.most):
                return
            lead.check(reserved, self._stuck())
            if not self._has_told:
                self._has_told = True
                self._client_session.notice(
                    f"lead: {lead.text(reserved)}. `quorate lead USD` sets a larger one"
                )
            try:
                await asyncio.wait_for(self.settled.wait(), LOOK_SECONDS)
            except TimeoutError:
                continue  # not re-raised: it looks again

    def _stuck(self) -> Amount:
        """Returns what is reserved for orders whose last execution must be over."""
        session = self._client_session
        now, reserved = session.clock.now(), 0
        for entry in session.ledger.open_orders(session.identity.coordinator):
            longest = entry.order.max_duration + SLACK_SECONDS
            if entry.order.expiry + EXECUTIONS_MAX * longest < now:
                reserved += entry.reserved
        return Amount(reserved)

    async def cover(self) -> None:
        """Signs and sends the next voucher, if the ledger has one: for checked charges, and for
        what open orders may still be charged. Sends an older one again that did not arrive.
        """
        client_session = self._client_session
        # A read with closed keys leaves the voucher to the next command that signs.
        if not client_session.can_sign:
            return
        async with self._lock:  # an order must not overtake the voucher that covers it
            session, totals, lead = client_session.newest_session(), self._totals(), self.lead
            if session is None:
                return
            if totals.charged + min(totals.promised, lead.most) > self._locked:
                await self._look()
            crash_point("client.before-draft")
            voucher = client_session.ledger.draft_voucher(
                client_session.client,
                client_session.identity.coordinator,
                lead.most,
                self._locked,
                session.message.up_to,
            )
            crash_point("client.after-draft")
            voucher = voucher or self._last()
            if voucher is not None and voucher.cumulative > self._arrived:
                await self._deliver(voucher, session)

    async def resend(self) -> None:
        """Asks what the coordinator has, and sends the newest voucher if it has a smaller one."""
        if self._client_session.can_sign and self._client_session.newest_session() is not None:
            await self._look()
        await self.cover()

    async def _look(self) -> None:
        session = self._client_session
        account = await session.api.account(session.client)
        # On a closing tab nothing is signed ahead: what is owed counts until it ends.
        self._locked = Amount(0) if account.closes_at else account.locked
        self._arrived = Amount(0)
        newest = account.voucher
        if newest is None or newest.message.payee != session.identity.coordinator:
            return
        with translated():
            by = signer(session.identity.domain, newest, recover)
        if by != session.profile.session.address or newest.message.payer != session.client:
            return
        self._arrived = newest.message.cumulative
        if self._arrived <= self._totals().signed:
            return
        runs = await session.api.runs()
        unknown = sum(run.charged for run in runs if session.ledger.entry(run.job_id) is None)
        session.ledger.adopt_voucher(session.identity.coordinator, self._arrived, Amount(unknown))
        session.notice(f"voucher: {COPIED}")

    async def _deliver(self, voucher: Voucher, session: Envelope[Session]) -> None:
        client_session = self._client_session
        try:
            crash_point("client.before-voucher")
            await self._send(voucher, session)
            crash_point("client.after-voucher")
            self._arrived = voucher.cumulative
        except RefusedError as error:
            # Not re-raised: another program of this profile sent a newer one, or the coordinator
            # disagrees. The user is told of the latter.
            if error.code == Code.STALE.value and self._last() != voucher:
                self._arrived = voucher.cumulative
                return
            client_session.notice(f"the coordinator refused the voucher: {error}")

    def _totals(self) -> SpendingTotals:
        return self._client_session.ledger.debt(self._client_session.identity.coordinator)

    def _last(self) -> Voucher | None:
        session = self._client_session
        return session.ledger.last_voucher(session.client, session.identity.coordinator)

    async def _send(self, voucher: Voucher, session: Envelope[Session]) -> None:
        """Sends a voucher, after its session. If that has ended, sends the voucher again under
        a new session.
        """
        client_session = self._client_session
        signed = seal(client_session.identity.domain, voucher, client_session.profile.session.sign)
        try:
            await self._send_session(session)
            await client_session.api.voucher(signed)
        except RefusedError as error:
            if error.code != Code.EXPIRED.value:
                raise
            self._sent_session = None
            await self._send_session(client_session.session_for(Amount(0)))
            await client_session.api.voucher(signed)

    async def _send_session(self, session: Envelope[Session]) -> None:
        if session != self._sent_session:
            await self._client_session.api.session(session)
            self._sent_session = session
