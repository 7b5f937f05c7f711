"""`quorate node settle`: settles one job from its receipt, without the coordinator (PROTOCOL §6).

The first call announces the settlement on chain. A file remembers the announcement. Once the time
for answers is over, the next call executes it and takes the credit.
"""

from pathlib import Path

from msgspec import Struct

from quorate_contracts.bindings.settlement import JobEvidence, Opening
from quorate_contracts.bindings.settlement_events import SettlementAnswered, SettlementOpened
from quorate_node.chain.calls import ask, transact
from quorate_node.chain.owner_desk import SEND_SECONDS, OwnerDesk
from quorate_node.ops.withdrawal import Wait
from quorate_protocol.codec import canonical
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.messages.receipt import RECEIPT_BYTES_MAX, Receipt
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, Hash32, UnixSeconds, usd
from quorate_runtime.chain import Sender
from quorate_runtime.chain.types import RawLog
from quorate_runtime.files import private_folder, write_atomic

FOLDER = "settlements"  # in the provider's home


class Attempt(Struct, frozen=True):
    """The announcements of one job so far. `opening` is the open one."""

    number: int = 0
    opening: Opening | None = None
    block: int = 0  # of the announcement


class Settling(Struct, frozen=True):
    """What a command did."""

    job_id: Hash32
    done: tuple[str, ...]
    waits: tuple[Wait, ...]


def receipt_of(data: bytes) -> Receipt:
    """Returns the receipt in a file. Raises Refused for anything else."""
    tree = canonical.parse(data, RECEIPT_BYTES_MAX)
    if not isinstance(tree, dict) or "body" not in tree:
        raise Refused(Code.MALFORMED, "this file is no receipt")
    return canonical.from_json(Receipt, tree["body"])


async def settle(desk: OwnerDesk, evidence: JobEvidence) -> Settling:
    """Takes the next step of settling a job, whose first execution is the owner's. Raises Refused
    if nothing can be settled.
    """
    order = evidence.order.message
    job_id = digest(desk.contracts.deployment.domain(), order)
    if desk.keys.owner is None:
        raise Refused(
            Code.UNSUPPORTED, "the owner's key is not here: settle where the owner's key is"
        )
    place = desk.config.path(FOLDER) / f"{job_id.hex()}.json"
    with desk.sender() as sender:
        done, waits = await _step(desk, sender, evidence, place)
        done += await _take_credit(desk, sender)
    return Settling(job_id, tuple(done), tuple(waits))


async def _step(
    desk: OwnerDesk, sender: Sender, evidence: JobEvidence, place: Path
) -> tuple[list[str], list[Wait]]:
    order = evidence.order.message
    query = desk.contracts.settlement.settled(order.client, order.coordinator, order.nonce)
    if evidence.executions[0].index in await ask(desk.client, query):
        _forget(place)
        return ["this job is settled"], []
    attempt = _read(place)
    done: list[str] = []
    if attempt.opening is None:
        attempt = await _announce(desk, sender, evidence, place, attempt.number + 1)
        done = ["announced the settlement"]
    opening = attempt.opening
    assert opening is not None, "it was announced just now or before"
    now = (await desk.client.head()).time
    if now < opening.ready_at:
        until = UnixSeconds(opening.ready_at)
        return done, [Wait("the coordinator may answer; then type this again", until)]
    executed, waits = await _execute(desk, sender, attempt, place)
    return done + executed, waits


async def _announce(
    desk: OwnerDesk, sender: Sender, evidence: JobEvidence, place: Path, number: int
) -> Attempt:
    order = evidence.order.message
    left, floor = await ask(
        desk.client, desk.contracts.escrow.settleable(order.client, order.coordinator)
    )
    if order.nonce < floor:
        raise Refused(
            Code.STALE,
            "a voucher of the client covers this order, so the coordinator's epochs owe the pay",
        )
    if not left:
        raise Refused(Code.OVER_ALLOCATION, "the client has nothing allocated that is not charged")
    call = desk.contracts.settlement.open(evidence)
    purpose = f"settle/{place.stem}/{number}"
    receipt = await transact(sender, purpose, call, SEND_SECONDS)
    opening = next(
        Opening.of(event.opening)
        for event in (_event(desk, item) for item in receipt.logs)
        if isinstance(event, SettlementOpened)
    )
    attempt = Attempt(number, opening, receipt.block)
    _write(place, attempt)
    return attempt


async def _execute(
    desk: OwnerDesk, sender: Sender, attempt: Attempt, place: Path
) -> tuple[list[str], list[Wait]]:
    opening = await _answered(desk, attempt)
    purpose = f"settle-execute/{place.stem}/{attempt.number}"
    try:
        await transact(sender, purpose, desk.contracts.settlement.execute(opening), SEND_SECONDS)
    except Refused as refused:
        if refused.detail not in ("opened", "covered", "settled"):
            raise
        # The announcement is over: the next call may make another one.
        _write(place, Attempt(attempt.number))
        why = {
            "opened": "somebody showed that an epoch pays this job, or that others outvoted it",
            "covered": "a voucher of the client covers this order, so epochs owe the pay",
            "settled": "this job is settled",
        }[refused.detail]
        raise Refused(Code.STALE, why) from refused
    _forget(place)
    return ["settled the job"], []


async def _answered(desk: OwnerDesk, attempt: Attempt) -> Opening:
    """The opening as the newest answer left it."""
    assert attempt.opening is not None, "only announced settlements are answered"
    found, place = attempt.opening, desk.contracts.settlement.address
    head = await desk.client.head()
    first = type(head.number)(attempt.block)
    for item in await desk.client.logs(first, head.number, (place,)):
        event = _event(desk, item)
        if isinstance(event, SettlementAnswered) and event.job_id == found.job_id:
            changed = Opening.of(event.opening)
            found = changed if changed.ready_at == found.ready_at else found
    return found


async def _take_credit(desk: OwnerDesk, sender: Sender) -> list[str]:
    """Sends what settlements credited to the payout address."""
    account, escrow = desk.keys.account, desk.contracts.escrow
    amount: Amount = await ask(desk.client, escrow.credit_of(account))
    if not amount:
        return []
    nonce = await desk.client.nonce(account)
    await transact(sender, f"credit/{nonce}", escrow.pay_credit(account), SEND_SECONDS)
    return [f"took {usd(amount)} USD of settled jobs"]


def _event(desk: OwnerDesk, item: RawLog) -> object:
    return desk.contracts.event(item.address, item.topics, item.data)


def _read(place: Path) -> Attempt:
    try:
        return canonical.decode(Attempt, place.read_bytes())
    except FileNotFoundError:
        return Attempt()
    except Refused as refused:
        raise Refused(
            Code.MALFORMED, f"{place} is damaged ({refused.detail}): remove the file"
        ) from refused


def _write(place: Path, attempt: Attempt) -> None:
    private_folder(place.parent)
    write_atomic(place, canonical.encode(attempt), 0o600)


def _forget(place: Path) -> None:
    place.unlink(missing_ok=True)
