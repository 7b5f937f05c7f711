"""Rechecks what a coordinator says about one of our jobs, from the signed messages alone: who
agreed, and what it may cost. Pure.

`quorate_protocol.messages.receipt.verify` checks that a receipt is consistent in itself. Here it
is held against what only the client knows: its own order and session, the keys pinned in its
profile, and the prices it signed. What needs the chain (whether the slots drawn were staked) is
`quorate verify`'s business.
"""

from collections.abc import Callable
from dataclasses import dataclass

from quorate.errors import EvidenceError
from quorate_protocol.codec import canonical as canonical_module
from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.messages import receipt
from quorate_protocol.messages.envelope import Envelope, Recover
from quorate_protocol.messages.job_spec import JobSpec, image_digest
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt, VerifyRound
from quorate_protocol.messages.signed import Ack, Commit, Order, Reveal, Verdict
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import settlement, verdict
from quorate_protocol.rules.beacon_rounds import Timing
from quorate_protocol.rules.classes import CPU_ENVIRONMENT, GPU_ENVIRONMENT, determinism_class
from quorate_protocol.rules.settlement import Credit
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, Label, Outcome

HasWitnessed = Callable[[Hash32, Hash32], bool]
"""(assignment hash, commit digest) -> whether the coordinator took our witness of that commit."""


def nothing_witnessed(_assignment: Hash32, _commit: Hash32) -> bool:
    """For whoever signs no witnesses."""
    return False


@dataclass(frozen=True, slots=True)
class Known:
    """What the client knows by itself: the order and spec it signed, and what its profile
    pinned.
    """

    order: Order
    ack: (
        Ack | None
    )  # as the coordinator answered the order; None when that answer was lost on the way
    spec: JobSpec
    domain: Domain
    statement_key: Address
    beacon_key: bytes
    timing: Timing
    recover: Recover
    verify_round: VerifyRound
    has_witnessed: HasWitnessed = nothing_witnessed


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the evidence shows. `charged` is the most that this verdict may cost the client;
    `group` holds the agreeing executions.
    """

    verdict: Verdict
    rule: Label
    group: tuple[ExecutionEvidence, ...]
    charged: Amount
    receipt: bytes  # the canonical file {body, cid}
    cid: str
    is_stopped: bool  # our own Stop ended it before it had a result


def judge(known: Known, data: bytes, told: Envelope[Verdict]) -> Agreement:
    """Checks a receipt file against our own order. `EvidenceError` names what does not hold."""
    found, canonical = _read(known, data)
    ack, decided = found.ack.message, found.verdict.message
    _require(
        found.verdict.message == told.message, "verdict: the receipt holds another one than the run"
    )
    _check_pins(known, found)
    _check_terms(known, found)
    check_ordered(ack, known.order)
    group = _group(known, found)
    paid = (
        group
        if decided.outcome is Outcome.ACCEPTED
        else _paid_stopped(found) or _paid_unresolved(found)
    )
    return Agreement(
        decided,
        ack.rule,
        tuple(group),
        _charge(known, found, paid),
        canonical,
        found.cid(),
        _is_stopped(found),
    )


def _read(known: Known, data: bytes) -> tuple[Receipt, bytes]:
    try:
        tree = canonical_module.parse(data, receipt.RECEIPT_BYTES_MAX)
        canonical = canonical_module.canonical(tree)
        report = receipt.verify(canonical, known.recover, known.verify_round)
        if not report.valid:
            failed = "; ".join(f"{check.name} ({check.detail})" for check in report.failures[:4])
            raise EvidenceError(f"receipt: these checks fail: {failed or 'none was made'}")
        return canonical_module.from_json(Receipt, tree["body"]), canonical
    except Refused as refused:
        raise EvidenceError(f"receipt: {refused}") from refused


def _check_pins(known: Known, found: Receipt) -> None:
    _require(found.order.message == known.order, "receipt: holds another order than ours")
    # Of two Acks, the second could be made when the beacon is known: its secret decides who audits
    # (PROTOCOL §3: once per job).
    _require(
        known.ack in (None, found.ack.message),
        "receipt: holds another Ack than the one that answered our order",
    )
    _require(
        Domain(found.chain_id, found.stakes) == known.domain,
        "receipt: of another chain or deployment",
    )
    _require(
        found.coordinator_key == known.statement_key,
        "receipt: signed by another statement key than the profile's",
    )
    _require(found.beacon_key == known.beacon_key, "receipt: of another beacon than the profile's")
    _require(
        found.timing == known.timing,
        "receipt: with other times of rounds, reveals or holds than the profile's deployment",
    )
    _require(
        found.ack.message.fee_bps <= known.order.max_fee_bps,
        "ack: the fee is above the order's maxFeeBps",
    )


def check_ordered(ack: Ack, order: Order) -> None:
    """EvidenceError for an Ack of another rule or host class than was ordered."""
    _require(ack.rule is not Label.NONE, "ack: rule none was not ordered")
    _require(
        order.host_class in (ZERO_HASH, ack.host_class),
        "ack: of another host class than was ordered",
    )
    _require(
        ack.rule is not Label.UNVERIFIED or order.accept_unverified,
        "ack: rule unverified was not ordered (acceptUnverified)",
    )


def _check_terms(known: Known, found: Receipt) -> None:
    order, ack = known.order, found.ack.message
    for item in found.executions:
        sent = item.assignment.message
        _require(
            sent.spec_hash == order.spec_hash and sent.host_class == ack.host_class,
            "assignment: another spec or host class",
        )
        _require(sent.coordinator == order.coordinator, "assignment: of another coordinator")
        _require(
            sent.price_per_hour <= order.max_price_per_hour,
            "assignment: its price is above the order's",
        )
        _require(
            sent.max_duration <= known.spec.max_duration, "assignment: longer than the spec allows"
        )
        _require(
            is_our_class(item.commit.message, ack, known.spec),
            "commit: made in another determinism class",
        )


def _group(known: Known, found: Receipt) -> list[ExecutionEvidence]:
    decided = found.verdict.message
    if decided.outcome is not Outcome.ACCEPTED:
        return []
    by_hash = {item.commit.message.assignment_hash: item for item in found.executions}
    _require(len(by_hash) == len(found.executions), "receipt: one execution stands twice")
    group = [by_hash[name] for name in decided.group]
    _require(
        len({item.assignment.message.provider for item in group}) == len(group) > 0,
        "verdict: one provider twice in the group",
    )
    if decided.label is Label.QUORUM_2:
        runs = [
            verdict.Execution(_hash(item), item.assignment.message.provider, _result(item.reveal))
            for item in found.executions
        ]
        decision = verdict.decide(
            decided.label,
            known.order.verify_tier,
            runs,
            known.order.max_executions,
            is_exhausted=False,
        )
        same = isinstance(decision, verdict.Accepted) and {
            runs[i].assignment_hash for i in decision.group
        } == set(decided.group)
        _require(same, "verdict: the rule applied to the reveals gives another group")
    return group


def _paid_stopped(found: Receipt) -> list[ExecutionEvidence]:
    """Our own Stop cut it short: the one execution is paid its elapsed time, and nothing is
    claimed of its result (I4).
    """
    # Without a Stop that our session key signed (the receipt's check has verified it) a lapse costs
    # nothing.
    return (
        [item for item in found.executions if item.reveal is not None][:1]
        if _is_stopped(found)
        else []
    )


def _is_stopped(found: Receipt) -> bool:
    return found.verdict.message.outcome is Outcome.LAPSED and found.stop is not None


def _paid_unresolved(found: Receipt) -> list[ExecutionEvidence]:
    """Three owners, three answers: the client's program is not deterministic, and the executions
    that ran are paid (PROTOCOL §5).
    """
    ran = [item for item in found.executions if item.reveal is not None]
    different = {_result(item.reveal) for item in ran}
    return (
        ran if found.verdict.message.outcome is Outcome.UNRESOLVED and len(different) >= 3 else []
    )


def _charge(known: Known, found: Receipt, paid: list[ExecutionEvidence]) -> Amount:
    order, ack = known.order, found.ack.message
    credits = [Credit(_hash(item), _pay(order, found, item)) for item in paid]
    # Under the adaptive rule auditors are paid by the fund that the premium fills: only the first
    # execution is the client's to pay, and a second one when nobody witnessed it.
    first = len(found.batches[0].message.ordered) if found.batches else 0
    is_billed = settlement.is_audit_billed(order, ack.rule, _is_witnessed(known, found), first)
    is_agreed = len({_result(item.reveal) for item in paid}) == 1
    billed = (
        credits[: 2 if is_billed else 1] if ack.rule is Label.ADAPTIVE and is_agreed else credits
    )
    split = (
        settlement.split(order, ack.rule, ack.fee_bps, billed, not is_billed)
        if billed
        else settlement.NOTHING
    )
    _require(split.charged <= order.budget, "charge: above the order's budget")
    return split.charged


def _pay(order: Order, found: Receipt, item: ExecutionEvidence) -> Amount:
    """Of the time that it had, whatever it says."""
    named, assignment = _hash(item), item.assignment.message
    sets = (batch.message for batch in found.batches)
    closed = next(
        closed for closed in sets if any(entry.assignment_hash == named for entry in closed.ordered)
    )
    by = settlement.committed_by(closed, named, found.timing)
    return settlement.pay_of(
        order, assignment, settlement.believed(item.commit.message.usage_ms, assignment, by)
    )


def _is_witnessed(known: Known, found: Receipt) -> bool:
    """A witness that the coordinator took and its receipt leaves out would have us pay for an
    audit that we did not cause.
    """
    if found.witness is not None or not found.executions:
        return found.witness is not None
    primary = found.executions[0]
    return known.has_witnessed(_hash(primary), primary.commit.digest(known.domain))


def _hash(item: ExecutionEvidence) -> Hash32:
    return item.commit.message.assignment_hash


def _result(reveal: Reveal | None) -> Hash32 | None:
    return None if reveal is None else result_digest(reveal.exit_status, reveal.output_digest)


def is_our_class(commit: Commit, ack: Ack, spec: JobSpec) -> bool:
    """Whether a commit was made with our image on the host class of the Ack."""
    image = image_digest(spec.image)
    classes = (
        determinism_class(ack.host_class, image, tuple(sorted(env)))
        for env in (CPU_ENVIRONMENT, GPU_ENVIRONMENT)
    )
    return commit.class_id in classes


def _require(good: bool, what: str) -> None:
    if not good:
        raise EvidenceError(what)
