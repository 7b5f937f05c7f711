"""Receipts that are signed again after a change, and the checks that then fail."""

from quorate_protocol.codec import canonical
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages.envelope import Sign, seal
from quorate_protocol.messages.receipt import Receipt, Report, document
from quorate_protocol.rules.receipts import receipt_checks
from quorate_protocol.values import replace
from quorate_runtime.keys.bls import verify_round
from quorate_runtime.keys.crypto import recover
from support.markets.scripted_market import DOMAIN, STATEMENT


def verdict_again(body: Receipt, domain: Domain, sign: Sign, **changes: object) -> Receipt:
    """Returns the receipt with a Verdict that has the hash of its present evidence.

    `changes` replace fields of the Verdict. `sign` is the coordinator's.
    """
    said = replace(
        body.verdict.message,
        **{"evidence_hash": body.evidence().digest()} | changes,  # type: ignore[arg-type]
    )
    return replace(body, verdict=seal(domain, said, sign))


def with_batch(body: Receipt, batch: int = 0, **changes: object) -> Receipt:
    """Returns the receipt with one of its commit sets changed and signed again."""
    message = replace(body.batches[batch].message, **changes)  # type: ignore[arg-type]
    batches = list(body.batches)
    batches[batch] = seal(DOMAIN, message, STATEMENT.sign)
    return verdict_again(replace(body, batches=tuple(batches)), DOMAIN, STATEMENT.sign)


def report_of(body: bytes) -> Report:
    """What `quorate verify` finds in a receipt's body."""
    data = canonical.canonical({"body": canonical.parse(body, 1 << 20), "cid": document_cid(body)})
    return receipt_checks.verify(data, recover, verify_round)


def failures(body: Receipt) -> set[str]:
    """The names of the checks that a receipt fails."""
    report = receipt_checks.verify(document(body), recover, verify_round)
    return {check.name for check in report.failures}
