"""Witnesses commits and signs vouchers for checked charges, while a client is connected.

One task and one event stream serve all runs of a client. A crash loses no money: an unwitnessed
commit is audited, and an unsigned voucher is signed at the next contact.
"""

import asyncio
from collections.abc import Callable

from quorate.base.errors import EvidenceError, QuorateError, RefusedError, UnavailableError
from quorate.client.base.client_ledger import OrderRecord
from quorate.client.base.session import ClientSession
from quorate.client.money.vouchers import Vouchers
from quorate.client.rental_keeper import Keeper
from quorate.client.secret_sender import SecretSender
from quorate.trust.charge_verification import CheckedVerdict
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.eip712 import digest as digest_of
from quorate_protocol.limits import BEACON_AHEAD_MAX
from quorate_protocol.messages import beacon_rounds, envelope, job_spec
from quorate_protocol.messages.envelope import Envelope, Recover, seal, signer
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.messages.signed import Ack, Commit, Session, Witness
from quorate_protocol.messages.views import JobEvent, RunView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import Amount, Hash32, Sequence, UnixSeconds, usd
from quorate_runtime.keys.crypto import recover
from quorate_runtime.process.crash_points import crash_point

# Decides whether the client countersigns a commit of its job (PROTOCOL §5 Draw). Reads no clock
# and keeps no state.
#
# A witness says that this commit existed before its beacon round. If the client signed it later,
# or for two commits of one assignment, a provider could choose its auditors. So in doubt the
# client signs nothing, and the job is audited.

Claim = Callable[[Hash32, Hash32], Hash32]
"""(assignment hash, commit digest) -> the one commit of that assignment that may be witnessed: this
or an earlier one.
"""
ROUNDS_SLACK = 1  # the provider's clock may be one period ahead of ours


class Refusals:
    """Why the client signed no witness. The user sees these sentences."""

    BAD_SIGNATURE = "the commit's signature does not verify"
    TOO_LATE = "its beacon round has already appeared"
    TOO_FAR = "its beacon round is too far in the future"
    SECOND = "another commit of this assignment was witnessed before"


def consider(
    commit: Envelope[Commit],
    ack: Ack,
    spec: JobSpec,
    info: BeaconInfo,
    now: float,
    domain: Domain,
    recover: Recover,
    claim: Claim,
) -> Witness | str:
    """Returns the Witness to sign, or a sentence that says why not."""
    message = commit.message
    digest = commit.digest(domain)
    try:
        signer(domain, commit, recover)
    # Not re-raised: a bad commit is simply not witnessed, and the coordinator refuses the
    # provider's message.
    except Refused:
        return Refusals.BAD_SIGNATURE
    newest = beacon_rounds.round_at(info, int(now))
    if message.beacon_round <= newest:
        return Refusals.TOO_LATE
    if message.beacon_round > newest + BEACON_AHEAD_MAX + ROUNDS_SLACK:
        return Refusals.TOO_FAR
    if claim(message.assignment_hash, digest) != digest:
        return Refusals.SECOND
    return Witness(digest, digest_of(domain, ack), message.beacon_round, UnixSeconds(int(now)))


RECONNECT_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
RECEIPT_TRIES = 20
RECEIPT_RETRY_SECONDS = 0.5
ENDING = frozenset({"verdict", "ended", "stopped", "final", "charged"})
SETTLED_MAX = 10_000
ENDED_MAX = 10_000
ENDED_PHASE = "ended"
NOT_THERE_YET = frozenset({Code.UNKNOWN.value, Code.TOO_EARLY.value})


def is_over(view: RunView) -> bool:
    """Returns whether the run is decided, or ended without results."""
    return view.verdict is not None or view.phase.lower() == ENDED_PHASE


class BackgroundSettlement:
    """The background task and the verdicts that it checked. `news(job_id)` lets a run wait for its
    events.
    """

    def __init__(self, client_session: ClientSession) -> None:
        self._client_session = client_session
        self.vouchers = Vouchers(client_session)
        self.keeper = Keeper(client_session, self.vouchers)
        self._after = Sequence(0)
        self._checked_verdicts: dict[Hash32, CheckedVerdict] = {}
        self._news: dict[Hash32, asyncio.Event] = {}
        self._settle_lock = asyncio.Lock()
        self._ended_jobs: asyncio.Queue[Hash32] = asyncio.Queue(ENDED_MAX)

    async def run(self) -> None:
        """Works until cancelled: follows events, and settles ended runs in a second task so that no
        witness is late.
        """
        for job_id in self._client_session.ledger.open_jobs(
            self._client_session.identity.coordinator
        )[:ENDED_MAX]:
            self._ended_jobs.put_nowait(job_id)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._settle_ended())
            group.create_task(SecretSender(self._client_session).run())
            group.create_task(self.keeper.run())

    async def _follow(self) -> None:
        """Follows the events of all runs and reconnects with growing pauses."""
        failures = 0
        while True:
            try:
                await self.vouchers.resend()
                async for event in self._client_session.api.events(None, self._after):
                    failures = 0
                    await self._handle_event(event)
                    self._after = event.seq
            except UnavailableError as error:
                # Not re-raised: the coordinator may be restarting. Nothing is lost, and waiting
                # runs ask by themselves.
                if failures == len(RECONNECT_SECONDS):
                    self._client_session.notice(
                        f"connection to the coordinator lost: {error}. Reconnecting"
                    )
                failures += 1
            except QuorateError as error:
                # Not re-raised: a refusal, or evidence that does not verify. The user is told, and
                # other runs continue.
                self._client_session.notice(str(error))
                failures += 1
            await self._client_session.clock.sleep(
                RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)]
            )

    async def settle_all(self) -> None:
        """Settles every ended run whose charge is not known yet, and sends the newest voucher."""
        ledger, coordinator = (
            self._client_session.ledger,
            self._client_session.identity.coordinator,
        )
        for entry in ledger.open_orders(coordinator):
            try:
                await self._settle_one(entry.job_id, entry.order.expiry)
            except UnavailableError:
                raise
            except QuorateError as error:
                # Not re-raised: other runs are settled, and this one stays promised.
                self._client_session.notice(f"run 0x{entry.job_id.hex()[:12]}: {error}")
        await self.vouchers.resend()

    def news(self, job_id: Hash32) -> asyncio.Event:
        """Returns an event that is set when the run may have ended. The waiter clears it."""
        return self._news.setdefault(job_id, asyncio.Event())

    def forget(self, job_id: Hash32) -> None:
        """Removes the event of a run that no one waits for."""
        self._news.pop(job_id, None)

    async def settle(self, view: RunView) -> CheckedVerdict:
        """Checks a decided run's evidence and charge once, and signs what no voucher covers yet.

        Raises EvidenceError if the evidence does not hold.
        """
        known = self._checked_verdicts.get(view.job_id)
        if known is not None:
            return known
        checked = await self._evidence(view)
        async with self._settle_lock:
            if view.job_id in self._checked_verdicts:
                return checked
            if view.charged > checked.charged:
                told, allowed = usd(view.charged), usd(checked.charged)
                self._client_session.notice(
                    f"charge: the coordinator charged {told} USD, but the evidence allows "
                    f"{allowed} USD; this client vouches only for {allowed} USD"
                )
            if len(self._checked_verdicts) >= SETTLED_MAX:
                self._checked_verdicts.pop(next(iter(self._checked_verdicts)))
            crash_point("client.before-settle")
            self._client_session.ledger.settle(
                view.job_id, Amount(min(view.charged, checked.charged))
            )
            self.vouchers.settled.set()
            crash_point("client.after-settle")
            self._checked_verdicts[view.job_id] = checked
            await self.vouchers.cover()
            return checked

    async def note_uncharged(self, view: RunView) -> None:
        """Records that a run without a verdict costs nothing, and a rental its time. Any other
        charge gets no voucher.
        """
        entry = self._client_session.ledger.entry(view.job_id)
        if entry is not None and job_spec.decode(entry.spec).kind.is_rental:
            self.keeper.settle(view)
            self.vouchers.settled.set()
            await self.vouchers.cover()
        elif view.charged == 0:
            self._client_session.ledger.settle(view.job_id, Amount(0))
            self.vouchers.settled.set()
        else:
            self._client_session.notice(
                f"charge: the coordinator charged {usd(view.charged)} USD for a run without a "
                "verdict; this client does not vouch for it"
            )

    async def _handle_event(self, event: JobEvent) -> None:
        if event.name == "committed" and event.commit is not None:
            await self._witness(event)
        if event.name in ENDING:
            waiting = self._news.get(event.job_id)
            if waiting is not None:
                waiting.set()
            if event.name in ("verdict", "ended"):
                await self._ended_jobs.put(event.job_id)

    async def _settle_ended(self) -> None:
        while True:
            job_id = await self._ended_jobs.get()
            entry = self._client_session.ledger.entry(job_id)
            if entry is None or entry.charged is not None:
                continue
            try:
                await self._settle_one(job_id, entry.order.expiry)
            except QuorateError as error:
                # Not re-raised: other runs continue. No voucher is signed, and a caller that waits
                # for this result gets the error.
                self._client_session.notice(f"run 0x{job_id.hex()[:12]}: {error}")

    async def _settle_one(self, job_id: Hash32, expiry: int) -> None:
        try:
            view = await self._client_session.api.run(job_id)
        except RefusedError as error:
            # This order never arrived and is now too old to arrive, so it costs nothing.
            if error.code != Code.UNKNOWN.value or self._client_session.clock.now() < expiry:
                raise
            self._client_session.ledger.forget(job_id)
            self._client_session.ledger.settle(job_id, Amount(0))  # of a funded one
            self.vouchers.settled.set()
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
            # Not re-raised: other runs continue, and this one is audited at worst.
            client_session.notice(f"run 0x{event.job_id.hex()[:12]}: commit not witnessed: {error}")
            return
        identity = client_session.identity
        spec = job_spec.decode(entry.spec)
        answer = consider(
            commit,
            ack,
            spec,
            identity.beacon,
            client_session.clock.now(),
            identity.domain,
            recover,
            client_session.ledger.witnessing,
        )
        if isinstance(answer, str):
            # Old commits of a replayed history need no notice.
            if client_session.clock.now() - event.at < 60:
                client_session.notice(
                    f"run 0x{event.job_id.hex()[:12]}: commit not witnessed: {answer}"
                )
            return
        try:
            crash_point("client.before-witness")
            await client_session.api.witness(
                seal(identity.domain, answer, client_session.profile.session.sign)
            )
            crash_point("client.after-witness")
            client_session.ledger.witness_taken(commit.message.assignment_hash)
        except RefusedError as error:
            # Not re-raised: the witness was too late, or another program of this profile sent one.
            # At worst the job is audited.
            client_session.notice(
                f"run 0x{event.job_id.hex()[:12]}: the coordinator refused the witness: {error}"
            )

    async def _ask_ack(self, entry: OrderRecord) -> Ack:
        """Fetches the Ack of an order whose answer was lost, by sending the same order again.

        Without the Ack nothing can be witnessed, and the client would pay for an audit.
        """
        client_session = self._client_session
        session = envelope.decode(entry.session, Session)
        submission = Submission(
            client_session.seal_order(entry.order),
            session,
            job_spec.decode(entry.spec),
            OrderTerms(entry.name),
            entry.funded_until > 0,
        )
        answer = await client_session.api.submit(submission)
        client_session.keep_ack(entry.job_id, submission, answer)
        return answer.ack.message

    async def _evidence(self, view: RunView) -> CheckedVerdict:
        for attempt in range(RECEIPT_TRIES):
            try:
                return await self._client_session.checked_verdict(view)
            except RefusedError as error:
                # The coordinator stores the receipt shortly after it announces the verdict.
                if error.code not in NOT_THERE_YET or attempt == RECEIPT_TRIES - 1:
                    raise
                await self._client_session.clock.sleep(RECEIPT_RETRY_SECONDS)
        raise AssertionError("the loop returns or raises")
