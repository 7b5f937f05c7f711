"""Lets rentals go on while a program uses them, and settles them at their end (PROTOCOL 12.27).

It signs ahead what 120 s cost, and again before they are over. A client that is killed signs
nothing more: its rental ends by itself, and any other command of the profile goes on with it.
"""

from contextlib import suppress

from quorate.base.errors import QuorateError, RefusedError, UsageError
from quorate.client.base.client_ledger import OrderRecord
from quorate.client.base.session import ClientSession
from quorate.client.money import rental_charges
from quorate.client.money.lead import HOW_TO_SET
from quorate.client.money.vouchers import Vouchers
from quorate.job.quantities import format_amount, format_duration
from quorate_protocol.messages import envelope, job_spec
from quorate_protocol.messages.views import RentalView, RunView
from quorate_protocol.refusals import MEANINGS, Code
from quorate_protocol.rules import rentals
from quorate_protocol.units import Amount, Hash32, usd

LOOKS = 3  # between two meters
ENDED = "ended"


class Keeper:
    """Of one Market. `keep` names the rentals that this program uses."""

    def __init__(self, client_session: ClientSession, vouchers: Vouchers) -> None:
        self._session, self._vouchers = client_session, vouchers
        self._kept: set[Hash32] = set()
        self._told: set[Hash32] = set()

    def keep(self, job_id: Hash32) -> None:
        self._kept.add(job_id)

    def release(self, job_id: Hash32) -> None:
        """Signs nothing more for it."""
        self._kept.discard(job_id)

    async def run(self) -> None:
        limits = self._session.identity.constants
        await self._allow_all()
        while True:
            for job_id in list(self._kept):
                try:
                    await self._look(job_id)
                except QuorateError as error:
                    # Not re-raised: what was signed lasts for a while, and it looks again.
                    self._tell(job_id, str(error))
            await self._session.clock.sleep(limits.meter_every / LOOKS)

    async def _allow_all(self) -> None:
        """The client may have been killed between an order and its allowance."""
        session = self._session
        for entry in session.ledger.open_orders(session.identity.coordinator):
            if job_spec.decode(entry.spec).kind.is_rental:
                with suppress(QuorateError):  # it may be over, or never arrived
                    await self.allow(await session.api.run(entry.job_id))

    async def allow(self, view: RunView) -> None:
        """Once it runs: names what the time that was ordered costs at its real price."""
        if view.rental is not None and view.rental.started_at:
            entry = self._session.entry(view.job_id)
            self._meter(entry, view, view.rental)
            await self._session.api.allow(view.job_id, self._session.entry(view.job_id).reserved)

    async def _look(self, job_id: Hash32) -> None:
        view = await self._session.api.run(job_id)
        if view.phase == ENDED:
            self._kept.discard(job_id)
            return
        if view.rental is not None:
            await self.reserve(view, view.rental, self._session.identity.constants.rental_ahead)
            self._told.discard(job_id)

    async def reserve(self, view: RunView, rental: RentalView, ahead: int) -> None:
        """Signs what it was charged, and so many seconds more.

        Raises UsageError if the lead is too small, RefusedError if the tab is.
        """
        ledger, job_id = self._session.ledger, view.job_id
        most, entry = self.most(view, rental, ahead), self._session.entry(job_id)
        lead = self._vouchers.lead
        if not ledger.reserve(job_id, most, lead.most):
            wanted = Amount(most - entry.reserved + lead.in_use)
            raise UsageError(
                f"lead: {format_duration(ahead)} more reserve {format_amount(wanted)} in all, and "
                f"you pay at most {format_amount(lead.most)} ahead; "
                f"{HOW_TO_SET.format(usd(wanted))} allows more, or name a shorter time"
            )
        self._reach_by_session()
        await self._vouchers.cover()
        await self._session.api.allow(job_id, self._session.entry(job_id).reserved)
        totals = ledger.debt(self._session.identity.coordinator)
        if totals.signed < totals.charged + totals.promised:
            code, lacking = Code.INSUFFICIENT_FUNDS, totals.charged + totals.promised
            raise RefusedError(
                code.value,
                MEANINGS[code].sentence,
                f"your tab does not cover {format_duration(ahead)} more of {view.name}",
                f"`quorate deposit {usd(Amount(lacking - totals.signed))}`",
            )

    def most(self, view: RunView, rental: RentalView, ahead: int) -> Amount:
        """What it costs in all if it goes on for so many seconds, as far as its order reaches."""
        self._meter(self._session.entry(view.job_id), view, rental)
        entry = self._session.entry(view.job_id)
        ran = rental_charges.elapsed(entry, rental, self._session.clock.now())
        price, fee = rental_charges.price_of(entry, rental), rental_charges.fee_of(entry)
        return rentals.reserved_by_client(entry.order, fee, ran + ahead, price)

    def _meter(self, entry: OrderRecord, view: RunView, rental: RentalView) -> Amount:
        """Returns what this client believes of its charge, and records it."""
        now, limits = self._session.clock.now(), self._session.identity.constants
        believed = rental_charges.believed(entry, rental, view.charged, now, limits)
        if believed < view.charged:
            self._tell(
                view.job_id,
                f"charge: the coordinator charged {usd(view.charged)} USD, and its time costs "
                f"{usd(believed)} USD; this client vouches for that alone",
            )
        most = rental_charges.at_its_price(entry, rental, believed, limits)
        self._session.ledger.meter(view.job_id, believed, most)
        return believed

    def _reach_by_session(self) -> None:
        """A voucher goes no farther than the session under which it is signed."""
        fresh = self._session.session_for(Amount(0))
        if fresh != self._session.newest_session():
            coordinator = self._session.identity.coordinator
            self._session.ledger.renew_session(coordinator, envelope.encode(fresh))

    def settle(self, view: RunView) -> None:
        """Settles a rental that is over at what it cost, as this client believes it."""
        entry = self._session.entry(view.job_id)
        self._kept.discard(view.job_id)
        cost = Amount(0) if view.rental is None else self._meter(entry, view, view.rental)
        self._session.ledger.settle(view.job_id, cost)

    def _tell(self, job_id: Hash32, text: str) -> None:
        """Once until it works again."""
        if job_id not in self._told:
            self._told.add(job_id)
            self._session.notice(f"rental 0x{job_id.hex()[:12]}: {text}")
