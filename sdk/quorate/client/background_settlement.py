"""What a client does for its runs while it is attached: witnesses commits, and signs vouchers
for charges that it checked itself.

One task and one event stream for all runs of a client. Losing it loses no money: an unwitnessed
commit is audited, and an unsigned voucher is signed at the next contact.
"""

import asyncio

from quorate.client.client_ledger import Entry
from quorate.client.session import ClientSession
from quorate.errors import EvidenceError, QuorateError, RefusedError, UnavailableError
from quorate.trust.charge_verification import Agreement
from quorate.trust.witnessing import consider
from quorate_protocol.messages import envelope, job_spec
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Ack, Session, Voucher
from quorate_protocol.messages.views import JobEvent, RunView
from quorate_protocol.refusals import Code
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import Amount, Hash32, Sequence
from quorate_runtime.keys.crypto import recover
from quorate_runtime.process.crash_points import crash_point

RECONNECT_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
RECEIPT_TRIES = 20
RECEIPT_RETRY_SECONDS = 0.5
ENDING = frozenset({"verdict", "ended", "stopped", "final", "charged"})
SETTLED_MAX = 10_000
ENDED_MAX = 10_000
ENDED_PHASE = "ended"
COPIED = (
    "more was signed for than these books know; is a copy of this profile in use elsewhere, "
    "or were the books restored? Use one only"
)
NOT_THERE_YET = frozenset({Code.UNKNOWN.value, Code.TOO_EARLY.value})


def is_over(view: RunView) -> bool:
    """Decided, or ended without results."""
    return view.verdict is not None or view.phase.lower() == ENDED_PHASE


class BackgroundSettlement:
    """The task and what it knows. `changed(job_id)` lets a run wait for news instead of asking."""

    def __init__(self, client_session: ClientSession) -> None:
        self._client_session = client_session
        self._after = Sequence(0)
        self._agreements: dict[Hash32, Agreement] = {}
        self._news: dict[Hash32, asyncio.Event] = {}
        self._books = asyncio.Lock()
        self._ended: asyncio.Queue[Hash32] = asyncio.Queue(ENDED_MAX)

    async def run(self) -> None:
        """Works for ever, until cancelled: follows events, and settles what has ended beside it,
        so that a witness is never late.
        """
        for job_id in self._client_session.ledger.open_jobs(self._client_session.pins.coordinator)[
            :ENDED_MAX
        ]:
            self._ended.put_nowait(job_id)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._settle_ended())

    async def _follow(self) -> None:
        """All our runs' events, reconnecting with growing pauses."""
        failures = 0
        while True:
            try:
                await self._resend_voucher()
                async for event in self._client_session.api.events(None, self._after):
                    failures = 0
                    await self._take(event)
                    self._after = event.seq
            except UnavailableError as error:
                # Not re-raised: the coordinator may be restarting. Nothing is lost meanwhile, and
                # waiting runs ask for themselves.
                if failures == len(RECONNECT_SECONDS):
                    self._client_session.notice(f"attached again as soon as it answers: {error}")
                failures += 1
            except QuorateError as error:
                # Not re-raised: refused, or evidence that does not verify. The person is told;
                # other runs still need attending.
                self._client_session.notice(str(error))
                failures += 1
            await self._client_session.clock.sleep(
                RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)]
            )

    def news(self, job_id: Hash32) -> asyncio.Event:
        """Set whenever something that may end the run happened; whoever waits clears it."""
        return self._news.setdefault(job_id, asyncio.Event())

    def forget(self, job_id: Hash32) -> None:
        """Nobody waits for this run any more."""
        self._news.pop(job_id, None)

    async def settle(self, view: RunView) -> Agreement:
        """Checks a decided run's evidence and charge, and vouches for it, once. EvidenceError
        when it does not hold.
        """
        known = self._agreements.get(view.job_id)
        if known is not None:
            return known
        agreement = await self._evidence(view)
        async with self._books:
            if view.job_id in self._agreements:
                return agreement
            if view.charged > agreement.charged:
                told, allowed = view.charged, agreement.charged
                self._client_session.notice(
                    f"charge: {told} was charged, the evidence allows {allowed}; only that is "
                    f"vouched for"
                )
            if len(self._agreements) >= SETTLED_MAX:
                self._agreements.pop(next(iter(self._agreements)))
            crash_point("client.before-settle")
            self._client_session.ledger.settle(
                view.job_id, Amount(min(view.charged, agreement.charged))
            )
            crash_point("client.after-settle")
            self._agreements[view.job_id] = agreement
            await self._vouch()
            return agreement

    async def note_uncharged(self, view: RunView) -> None:
        """A run that ended without a verdict costs nothing; anything else is not vouched for."""
        if view.charged == 0:
            self._client_session.ledger.settle(view.job_id, Amount(0))
        else:
            self._client_session.notice(
                f"charge: {view.charged} for a run without a verdict; it is not vouched for"
            )

    async def _take(self, event: JobEvent) -> None:
        if event.name == "committed" and event.commit is not None:
            await self._witness(event)
        if event.name in ENDING:
            waiting = self._news.get(event.job_id)
            if waiting is not None:
                waiting.set()
            if event.name in ("verdict", "ended"):
                await self._ended.put(event.job_id)

    async def _settle_ended(self) -> None:
        while True:
            job_id = await self._ended.get()
            entry = self._client_session.ledger.entry(job_id)
            if entry is None or entry.charged is not None:
                continue
            try:
                await self._settle_one(job_id, entry.order.expiry)
            except QuorateError as error:
                # Not re-raised: other runs go on. Nothing is vouched for, and whoever waits for
                # this run's result gets the error.
                self._client_session.notice(f"run 0x{job_id.hex()[:12]}: {error}")

    async def _settle_one(self, job_id: Hash32, expiry: int) -> None:
        try:
            view = await self._client_session.api.run(job_id)
        except RefusedError as error:
            # An order that never arrived, and by now never can: it costs nothing.
            if error.code != Code.UNKNOWN.value or self._client_session.clock.now() < expiry:
                raise
            self._client_session.ledger.forget(job_id)
            return
        if view.verdict is not None:
            await self.settle(view)
        elif is_over(view):
            await self.note_uncharged(view)

    async def _witness(self, event: JobEvent) -> None:
        client_session, commit = self._client_session, event.commit
        entry = client_session.ledger.entry(event.job_id)
        if commit is None or entry is None or entry.charged is not None:
            return
        try:
            ack = (
                await self._ask_ack(entry)
                if entry.ack is None
                else envelope.decode(entry.ack, Ack).message
            )
        except (EvidenceError, RefusedError) as error:
            # Not re-raised: other runs still need attending, and this one is audited at worst.
            client_session.notice(f"run 0x{event.job_id.hex()[:12]}: commit not witnessed: {error}")
            return
        pins = client_session.pins
        spec = job_spec.decode(entry.spec)
        answer = consider(
            commit,
            ack,
            spec,
            pins.beacon,
            client_session.clock.now(),
            pins.domain,
            recover,
            client_session.ledger.witnessing,
        )
        if isinstance(answer, str):
            # Old commits of a replayed history are no news.
            if client_session.clock.now() - event.at < 60:
                client_session.notice(
                    f"run 0x{event.job_id.hex()[:12]}: commit not witnessed: {answer}"
                )
            return
        try:
            crash_point("client.before-witness")
            await client_session.api.witness(
                seal(pins.domain, answer, client_session.profile.session.sign)
            )
            crash_point("client.after-witness")
            client_session.ledger.witness_taken(commit.message.assignment_hash)
        except RefusedError as error:
            # Not re-raised: too late, or another program of this profile was first; the job is
            # audited at worst.
            client_session.notice(f"run 0x{event.job_id.hex()[:12]}: witness refused: {error}")

    async def _ask_ack(self, entry: Entry) -> Ack:
        """The Ack of an order that was taken while its answer was lost: the same order again
        gives the same one. Without it nothing is witnessed, and the client would pay for an
        audit.
        """
        client_session = self._client_session
        session = envelope.decode(entry.session, Session)
        answer = await client_session.api.submit(
            Submission(client_session.seal_order(entry.order), session, job_spec.decode(entry.spec))
        )
        client_session.check_ack(entry.job_id, entry.order, answer)
        client_session.ledger.acknowledge(entry.job_id, envelope.encode(answer.ack))
        return answer.ack.message

    async def _evidence(self, view: RunView) -> Agreement:
        for attempt in range(RECEIPT_TRIES):
            try:
                return await self._client_session.agreement(view)
            except RefusedError as error:
                # The receipt is stored just after the verdict is told.
                if error.code not in NOT_THERE_YET or attempt == RECEIPT_TRIES - 1:
                    raise
                await self._client_session.clock.sleep(RECEIPT_RETRY_SECONDS)
        raise AssertionError("the loop returns or raises")

    async def _vouch(self) -> None:
        client_session = self._client_session
        session = client_session.newest_session()
        if session is None:
            return
        crash_point("client.before-draft")
        voucher = client_session.ledger.draft_voucher(
            client_session.client, client_session.pins.coordinator, session.message.up_to
        )
        if voucher is None:
            return
        crash_point("client.after-draft")
        try:
            crash_point("client.before-voucher")
            await self._send(voucher)
            crash_point("client.after-voucher")
        except RefusedError as error:
            # Not re-raised: another program of this profile sent a newer one, or the coordinator
            # disagrees; the latter is told, not hidden.
            if error.code != Code.STALE.value:
                client_session.notice(f"voucher refused: {error}")
            elif (
                client_session.ledger.last_voucher(
                    client_session.client, client_session.pins.coordinator
                )
                == voucher
            ):
                client_session.notice(f"voucher refused: {error}: {COPIED}")

    async def _resend_voucher(self) -> None:
        client_session = self._client_session
        try:
            await (
                self._vouch()
            )  # for what was checked and not signed for when this program was killed
        except EvidenceError as error:
            # Not re-raised: it is told, and runs go on being attended.
            client_session.notice(str(error))
        last = client_session.ledger.last_voucher(
            client_session.client, client_session.pins.coordinator
        )
        if last is None:
            return
        account = await client_session.api.account(client_session.client)
        if account.vouched < last.cumulative <= account.charged:
            try:
                await self._send(last)
            except RefusedError as error:
                # Not re-raised: it is told, with what helps, and runs go on being attended.
                client_session.notice(f"voucher refused: {error}")

    async def _send(self, voucher: Voucher) -> None:
        """Sends a voucher; once more under a new session when the last one ends too soon for an
        epoch.
        """
        client_session = self._client_session
        signed = seal(client_session.pins.domain, voucher, client_session.profile.session.sign)
        try:
            await client_session.api.voucher(signed)
        except RefusedError as error:
            if error.code != Code.EXPIRED.value:
                raise
            await client_session.api.session(client_session.session_for(Amount(0)))
            await client_session.api.voucher(signed)
