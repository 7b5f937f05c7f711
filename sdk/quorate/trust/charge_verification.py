"""Checks from signed messages alone what a coordinator says about our job: who agreed, and what it
may cost.

`quorate_protocol.rules.receipt_checks.verify` checks that a receipt is consistent. This module
compares it with what only the client knows: its own order and session, the pinned keys, and the
prices it signed. It does no input or output. Whether drawn slots were staked needs the chain and is
not checked here.
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
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.messages.signed import Ack, Commit, Order, Reveal, Verdict
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import receipt_checks, settlement, verdict
from quorate_protocol.rules.beacon_rounds import Timing
from quorate_protocol.rules.classes import CPU_ENVIRONMENT, GPU_ENVIRONMENT, determinism_class
from quorate_protocol.rules.receipt_draws import VerifyRound
from quorate_protocol.rules.settlement import Credit
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, Label, Outcome

HasWitnessed = Callable[[Hash32, Hash32], bool]
"""(assignment hash, commit digest) -> whether the coordinator took our witness of that commit."""


def none_witnessed(_assignment: Hash32, _commit: Hash32) -> bool:
    """Returns False; for clients that sign no witnesses."""
    return False


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """What the client knows by itself: the order and spec it signed, and the identity in its
    profile.
    """

    order: Order
    ack: Ack | None  # the coordinator's answer to the order; None if the answer was lost
    spec: JobSpec
    domain: Domain
    statement_key: Address
    beacon_key: bytes
    timing: Timing
    recover: Recover
    verify_round: VerifyRound
    has_witnessed: HasWitnessed = none_witnessed


@dataclass(frozen=True, slots=True)
class CheckedVerdict:
    """What the evidence shows. `charged` is the most that this verdict may cost; `group` holds the
    agreeing executions.
    """

    verdict: Verdict
    rule: Label
    group: tuple[ExecutionEvidence, ...]
    charged: Amount
    receipt: bytes  # the canonical file {body, cid}
    cid: str
    is_stopped: bool  # our own Stop ended it before a result


def check_receipt(known: OwnRecord, data: bytes, told: Envelope[Verdict]) -> CheckedVerdict:
    """Checks a receipt file against our own order. Raises `EvidenceError`, which says what does not
    hold.
    """
    found, canonical = _read(known, data)
    ack, decided = found.ack.message, found.verdict.message
    _require(
        found.verdict.message == told.message,
        "verdict: the receipt holds another verdict than the run",
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
    return CheckedVerdict(
        decided,
        ack.rule,
        tuple(group),
        _charge(known, found, paid),
        canonical,
        found.cid(),
        _is_stopped(found),
    )


def _read(known: OwnRecord, data: bytes) -> tuple[Receipt, bytes]:
    try:
        tree = canonical_module.parse(data, receipt.RECEIPT_BYTES_MAX)
        canonical = canonical_module.canonical(tree)
        report = receipt_checks.verify(canonical, known.recover, known.verify_round)
        if not report.valid:
            failed = "; ".join(f"{check.name} ({check.detail})" for check in report.failures[:4])
            raise EvidenceError(f"receipt: these checks fail: {failed or 'none was made'}")
        return canonical_module.from_json(Receipt, tree["body"]), canonical
    except Refused as refused:
        raise EvidenceError(f"receipt: {refused}") from refused


def _check_pins(known: OwnRecord, found: Receipt) -> None:
    _require(found.order.message == known.order, "receipt: it holds another order than ours")
    # A second Ack could be made when the beacon is known, and its secret decides who audits
    # (PROTOCOL §3: once per job).
    _require(
        known.ack in (None, found.ack.message),
        "receipt: it holds another Ack than the coordinator's answer to our order",
    )
    _require(
        Domain(found.chain_id, found.stakes) == known.domain,
        "receipt: it is of another chain or deployment",
    )
    _require(
        found.coordinator_key == known.statement_key,
        "receipt: another statement key signed it than the profile's",
    )
    _require(
        found.beacon_key == known.beacon_key, "receipt: it uses another beacon than the profile's"
    )
    _require(
        found.timing == known.timing,
        "receipt: its times of rounds, reveals or holds differ from the profile's deployment",
    )
    _require(
        found.ack.message.fee_bps <= known.order.max_fee_bps,
        "ack: the fee is above the order's maxFeeBps",
    )


def check_ordered(ack: Ack, order: Order) -> None:
    """Raises EvidenceError if an Ack names another rule or host class than the order."""
    _require(ack.rule is not Label.NONE, "ack: rule none was not ordered")
    _require(
        order.host_class in (ZERO_HASH, ack.host_class),
        "ack: its host class is not the ordered one",
    )
    _require(
        ack.rule is not Label.UNVERIFIED or order.accept_unverified,
        "ack: it names rule unverified, which was not ordered (acceptUnverified)",
    )


def _check_terms(known: OwnRecord, found: Receipt) -> None:
    order, ack = known.order, found.ack.message
    for item in found.executions:
        sent = item.assignment.message
        _require(
            sent.spec_hash == order.spec_hash and sent.host_class == ack.host_class,
            "assignment: its spec or host class differs from the order",
        )
        _require(sent.coordinator == order.coordinator, "assignment: it is of another coordinator")
        _require(
            sent.price_per_hour <= order.max_price_per_hour,
            "assignment: its price is above the order's",
        )
        _require(
            sent.max_duration <= known.spec.max_duration,
            "assignment: it is longer than the spec allows",
        )
        _require(
            is_our_class(item.commit.message, ack, known.spec),
            "commit: it was made in another determinism class",
        )


def _group(known: OwnRecord, found: Receipt) -> list[ExecutionEvidence]:
    decided = found.verdict.message
    if decided.outcome is not Outcome.ACCEPTED:
        return []
    by_hash = {item.commit.message.assignment_hash: item for item in found.executions}
    _require(len(by_hash) == len(found.executions), "receipt: one execution is listed twice")
    group = [by_hash[name] for name in decided.group]
    _require(
        len({item.assignment.message.provider for item in group}) == len(group) > 0,
        "verdict: one provider is in the group twice",
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
    """Returns the execution that our own Stop ended. Its elapsed time is paid, and its result
    counts for nothing (I4).
    """
    # The receipt's check has verified that our session key signed the Stop. Without one, a lapse
    # costs nothing.
    return (
        [item for item in found.executions if item.reveal is not None][:1]
        if _is_stopped(found)
        else []
    )


def _is_stopped(found: Receipt) -> bool:
    return found.verdict.message.outcome is Outcome.LAPSED and found.stop is not None


def _paid_unresolved(found: Receipt) -> list[ExecutionEvidence]:
    """Returns the executions to pay after three owners gave three answers.

    The client's program is then not deterministic, and PROTOCOL §5 has it pay for what ran.
    """
    ran = [item for item in found.executions if item.reveal is not None]
    different = {_result(item.reveal) for item in ran}
    return (
        ran if found.verdict.message.outcome is Outcome.UNRESOLVED and len(different) >= 3 else []
    )


def _charge(known: OwnRecord, found: Receipt, paid: list[ExecutionEvidence]) -> Amount:
    """Returns what the order allows to charge for these executions."""
    order, ack = known.order, found.ack.message
    credits = [Credit(_hash(item), _pay(order, found, item)) for item in paid]
    # Under the adaptive rule the premium's fund pays auditors. The client pays the first execution,
    # and a second one if it was not witnessed.
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
    """Returns one execution's pay, from the time that it had, whatever usage it claims."""
    named, assignment = _hash(item), item.assignment.message
    sets = (batch.message for batch in found.batches)
    closed = next(
        closed for closed in sets if any(entry.assignment_hash == named for entry in closed.ordered)
    )
    by = settlement.committed_by(closed, named, found.timing)
    return settlement.pay_of(
        order, assignment, settlement.payable_usage(item.commit.message.usage_ms, assignment, by)
    )


def _is_witnessed(known: OwnRecord, found: Receipt) -> bool:
    """Returns whether our witness counts, even if the receipt omits it. Otherwise we would pay for
    an audit that we did not cause.
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
    """Returns whether a commit was made with our image on the Ack's host class."""
    image = image_digest(spec.image)
    classes = (
        determinism_class(ack.host_class, image, tuple(sorted(env)))
        for env in (CPU_ENVIRONMENT, GPU_ENVIRONMENT)
    )
    return commit.class_id in classes


def _require(good: bool, what: str) -> None:
    if not good:
        raise EvidenceError(what)
