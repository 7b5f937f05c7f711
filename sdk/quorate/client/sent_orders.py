"""Signs and sends orders, and finds them again by name or id."""

from quorate.base.errors import EvidenceError, RefusedError, UnavailableError, UsageError
from quorate.client.base.client_ledger import OrderRecord
from quorate.client.base.session import ClientSession
from quorate.client.base.signed_requests import OrderDraft, job_id_of
from quorate.client.money import rental_charges
from quorate.client.money.vouchers import Vouchers
from quorate.job.job import Job
from quorate.rentals.secrets import keep
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_protocol.limits import BEACON_AHEAD_MAX
from quorate_protocol.messages import beacon_rounds, envelope
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.signed import Ack, Order, Witness
from quorate_protocol.rules.orders import Submission, escrow_until, is_fast
from quorate_protocol.units import ZERO_HASH, Hash32, Nonce, UnixSeconds
from quorate_runtime.process.crash_points import crash_point

SUBMIT_TRIES = 3
FUNDED_TRIES = 6  # the coordinator's chain node may be behind ours
SUBMIT_RETRY_SECONDS = 1.0
# No new try begins after this time. Even without any answer, submitting then ends within a minute.
SUBMIT_SECONDS = 20.0
PREFIX_MIN = 4
JOB_ID_DIGITS = 64
_DIGITS = frozenset("0123456789abcdef")
_FUNDED = (
    "run 0x{0}: the coordinator refuses this order; its budget stays in its own escrow until "
    "`quorate reclaim {0}` can take it back"
)
_MAYBE_TAKEN = (
    "run 0x{}: the coordinator may have taken this order; check `quorate ps` before you order again"
)


async def place_order(
    session: ClientSession,
    vouchers: Vouchers,
    job: Job,
    spec: JobSpec,
    draft: OrderDraft,
    known_nonce: Nonce,
    chain_url: str,
) -> Hash32:
    """Signs an order once the lead has room for it, covers it by a voucher and sends it. One with
    an escrow of its own is funded on chain instead. Returns its job id.

    Raises UsageError if the lead is too small, and the errors of `send_order`.
    """
    submissions: list[Submission] = []

    def signed() -> OrderRecord:
        # Signed first: an order that the keys do not sign must not stay in the ledger as a promise.
        now = session.clock.now()
        order = draft.stamped(Nonce(session.next_nonce(known_nonce)), now)
        terms, under = OrderTerms(job.name), session.session_for(draft.reserved)
        submissions.append(Submission(session.seal_order(order), under, spec, terms, job.escrow))
        if job.secrets is not None:
            keep(session.profile.home, job_id_of(session.identity.domain, order), job.secrets)
        until = escrow_until(order, session.identity.constants) if job.escrow else UnixSeconds(0)
        return OrderRecord(
            job_id=job_id_of(session.identity.domain, order),
            name=job.name,
            order=order,
            spec=spec.encode(),
            session=envelope.encode(under),
            submitted_at=int(now),
            charged=None,
            outputs=job.outputs,
            reserved=draft.reserved,
            funded_until=until,
        )

    crash_point("client.before-record")
    if job.escrow:
        from quorate.client.money.order_escrow import fund_order

        entry = signed()
        session.ledger.record(entry)
        crash_point("client.after-record")
        async with session.funding:
            await fund_order(session.profile, session.identity, chain_url, session.clock, entry)
        crash_point("client.after-fund")
        await send_order(session, entry.job_id, submissions[-1])
        return entry.job_id
    await vouchers.record_when_it_fits(draft.reserved, signed)
    crash_point("client.after-record")
    submission = submissions[-1]
    job_id = job_id_of(session.identity.domain, submission.order.message)
    try:
        await vouchers.cover()
    except UnavailableError:
        session.ledger.forget(job_id)  # it was never sent
        raise
    await send_order(session, job_id, submission)
    entry = session.entry(job_id)
    # Another time is allowed once the price is known.
    if spec.kind.is_rental and rental_charges.is_least(entry, session.identity.constants):
        await session.api.allow(job_id, entry.reserved)
    return job_id


async def send_order(session: ClientSession, job_id: Hash32, submission: Submission) -> None:
    """Sends a recorded order, again if no answer comes. The same order gives the same job.

    Raises RefusedError, or UnavailableError if the last try had no answer either.
    """
    began, tries = session.clock.now(), FUNDED_TRIES if submission.escrowed else SUBMIT_TRIES
    for attempt in range(tries):
        try:
            crash_point("client.before-send")
            answer = await session.api.submit(submission)
            crash_point("client.after-send")
        except UnavailableError:
            # The same order gives the same job, so repeating is safe. The last failure is
            # reported.
            if attempt == tries - 1 or session.clock.now() - began > SUBMIT_SECONDS:
                session.notice(_MAYBE_TAKEN.format(job_id.hex()[:12]))
                raise
            await session.clock.sleep(SUBMIT_RETRY_SECONDS * 2**attempt)
        except RefusedError:
            # After the first try, an earlier one may have been taken and only its answer lost.
            if submission.escrowed:
                session.notice(_FUNDED.format(job_id.hex()[:12]))
            elif attempt == 0:
                session.ledger.forget(job_id)
            else:
                session.notice(_MAYBE_TAKEN.format(job_id.hex()[:12]))
            raise
        else:
            session.keep_ack(job_id, submission, answer)
            await _witness_ack(session, submission.order.message, answer.ack)
            return


def consider_ack(
    order: Order, ack: Envelope[Ack], identity: CoordinatorIdentity, now: float
) -> Witness | str | None:
    """Returns the Witness to sign for a fast order's Ack, or a sentence that says why not. None: it
    needs none.

    It says that this Ack existed before the round that draws both executions. Signed later, it
    would let the coordinator choose an Ack that draws its friends.
    """
    message = ack.message
    if not is_fast(order, message.rule):
        return None
    due = identity.timing.round_after_ack(message.ack_time)
    newest = beacon_rounds.round_at(identity.beacon, int(now))
    if due <= newest:
        return "the beacon round that draws its providers has already appeared"
    if due > newest + BEACON_AHEAD_MAX:
        return "the beacon round that draws its providers is too far in the future"
    return Witness(ZERO_HASH, ack.digest(identity.domain), due, UnixSeconds(int(now)))


async def _witness_ack(session: ClientSession, order: Order, ack: Envelope[Ack]) -> None:
    """Countersigns a fast order's Ack at once. Without that the run ends and costs nothing."""
    run = f"run 0x{ack.message.job_id.hex()[:12]}"
    answer = consider_ack(order, ack, session.identity, session.clock.now())
    if answer is None:
        return
    if isinstance(answer, str):
        session.notice(f"{run}: Ack not witnessed, so it ends unpaid: {answer}; order again")
        return
    if session.ledger.witnessing(ack.message.job_id, answer.ack_hash) != answer.ack_hash:
        raise EvidenceError(f"{run}: ack: the coordinator answered with another one before")
    crash_point("client.before-witness")
    try:
        await session.api.witness(
            seal(session.identity.domain, answer, session.profile.session.sign)
        )
    except (RefusedError, UnavailableError) as error:
        # Not re-raised: the order is taken. It ends unpaid if this witness did not arrive.
        session.notice(f"{run}: the coordinator did not take the witness: {error}")
    crash_point("client.after-witness")


def whole_job_id(name: str | bytes) -> Hash32 | None:
    """Returns the job id if the name is a whole one, in bytes or as 0x-hex; else None."""
    digits = name.hex() if isinstance(name, bytes) else name.removeprefix("0x").lower()
    is_whole = len(digits) == JOB_ID_DIGITS and _DIGITS.issuperset(digits)
    return Hash32(bytes.fromhex(digits)) if is_whole else None


def find_order(session: ClientSession, name: str | bytes) -> OrderRecord:
    """Returns the order by job id (bytes, 0x-hex or a prefix of four digits) or newest name.

    Raises UsageError if none or several match.
    """
    coordinator, ledger = session.identity.coordinator, session.ledger
    digits = name.hex() if isinstance(name, bytes) else name.removeprefix("0x").lower()
    is_id = isinstance(name, bytes) or (len(digits) >= PREFIX_MIN and _DIGITS.issuperset(digits))
    found = ledger.beginning(coordinator, digits) if is_id else []
    if not found and isinstance(name, str):
        newest = ledger.named(coordinator, name)
        found = [newest] if newest is not None else []
    if len(found) != 1:
        shown = name.hex() if isinstance(name, bytes) else name
        if any(letter in shown for letter in "*?["):
            raise UsageError(
                f"run: {shown[:80]!r} is a pattern, and this takes one run; `quorate ps` lists "
                "those that it fits"
            )
        raise UsageError(
            f"run: {shown[:80]!r} matches {'no run' if not found else 'several runs'} of "
            "this profile; see `quorate ps`, or give a whole job id"
        )
    return found[0]


async def find_run(session: ClientSession, name: str | bytes) -> tuple[Hash32, str]:
    """Returns id and name of a run that this account may read.

    It finds runs of this profile as `find_order` does, and other runs by their whole job id.

    Raises UsageError if none or several match, RefusedError if the run is private.
    """
    try:
        entry = find_order(session, name)
    except UsageError:
        job_id = whole_job_id(name)
        if job_id is None:
            raise
        # Not re-raised: the coordinator may know it.
        return job_id, (await session.api.run(job_id)).name
    return entry.job_id, entry.name
