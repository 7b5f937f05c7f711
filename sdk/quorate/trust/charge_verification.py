"""Checks from signed messages alone what a coordinator says about our job: who agreed, and what it
may cost.

`quorate_protocol.rules.receipts` checks that a receipt is consistent. This module compares it with
what only the client knows: its own order and session, the pinned keys, and the prices it signed. It
does no input or output. Whether drawn slots were staked needs the chain and is not checked here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from quorate.base.errors import EvidenceError
from quorate_attestation.fits import are_pools_fitting
from quorate_protocol.codec import canonical as canonical_module
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages import receipt
from quorate_protocol.messages.beacon_rounds import Timing
from quorate_protocol.messages.envelope import Envelope, Recover
from quorate_protocol.messages.job_spec import JobSpec, image_digest
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.messages.signed import Ack, Order, Verdict
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import orders
from quorate_protocol.rules.receipts import receipt_checks, receipt_pins
from quorate_protocol.rules.receipts.receipt_bill import bill_of
from quorate_protocol.rules.receipts.receipt_draws import VerifyRound
from quorate_protocol.rules.receipts.receipt_pins import Pins
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

    @property
    def pins(self) -> Pins:
        return Pins(self.domain, self.beacon_key, self.timing, self.statement_key)


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
    _check_spec(known, found)
    check_ordered(ack, known.order)
    group = _group(found)
    return CheckedVerdict(
        verdict=decided,
        rule=ack.rule,
        group=tuple(group),
        charged=_charge(known, found),
        receipt=canonical,
        cid=found.cid(),
        is_stopped=_is_stopped(found),
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
    for check in receipt_pins.checks(found, known.pins):
        _require(check.is_good, f"receipt: it differs from the profile ({check.detail})")


def check_ordered(ack: Ack, order: Order) -> None:
    """Raises EvidenceError if an Ack names another rule or pool than the order."""
    _require(order.pool in (ZERO_HASH, ack.pool), "ack: its pool is not the ordered one")
    said = ack.rule.name.lower().replace("_", "-")
    tier = order.verify_tier.name.lower().replace("_", "-")
    _require(
        orders.allows(order, ack.rule),
        f"ack: it names rule {said}, which was not ordered (verifyTier {tier})",
    )


def check_rented(ack: Ack, order: Order) -> None:
    """As `check_ordered`, for the order of a rental."""
    _require(order.pool in (ZERO_HASH, ack.pool), "ack: its pool is not the ordered one")
    _require(ack.rule is Label.NONE, "ack: a rental has no rule")


def check_escrowed(ack: Ack, is_escrowed: bool) -> None:
    """Raises EvidenceError if an Ack does not settle the order as its client ordered it."""
    _require(
        ack.escrowed == is_escrowed,
        "ack: it does not say as the order does whether the order has an escrow of its own",
    )
    _require(
        not is_escrowed or ack.rule is Label.QUORUM_2,
        "ack: an order with an escrow of its own needs two executions (rule quorum-2)",
    )


def _check_spec(known: OwnRecord, found: Receipt) -> None:
    """Compares the receipt with the spec, which it does not contain."""
    _require(
        found.image == image_digest(known.spec.image),
        "receipt: its image is not the one of our spec",
    )
    _require(
        found.profile == known.spec.profile().digest(),
        "receipt: its determinism profile is not the one of our spec",
    )
    _require(
        found.compare == known.spec.compare,
        "receipt: it compares results in another way than our spec",
    )
    _require(
        are_pools_fitting(known.spec, found.pools),
        "receipt: it draws auditors from a pool that does not fit our spec",
    )


def _group(found: Receipt) -> list[ExecutionEvidence]:
    decided = found.verdict.message
    if decided.outcome is not Outcome.ACCEPTED:
        return []
    by_hash = {item.commit.message.assignment_hash: item for item in found.executions}
    return [by_hash[name] for name in decided.group]


def _is_stopped(found: Receipt) -> bool:
    return found.verdict.message.outcome is not Outcome.ACCEPTED and found.stop is not None


def _charge(known: OwnRecord, found: Receipt) -> Amount:
    """Returns what the order allows to charge for these executions."""
    _check_witness(known, found)
    charged = bill_of(found).split.charged
    _require(charged <= known.order.budget, "charge: above the order's budget")
    return charged


def _check_witness(known: OwnRecord, found: Receipt) -> None:
    """Raises EvidenceError if the coordinator took our witness and its CommitSet names none: we
    would pay for an audit that we did not cause.
    """
    primary = found.executions[0].commit
    _require(
        found.witness is not None
        or not known.has_witnessed(primary.message.assignment_hash, primary.digest(known.domain)),
        "witness: the coordinator took our witness, and its CommitSet names none",
    )


def _require(good: bool, what: str) -> None:
    if not good:
        raise EvidenceError(what)
