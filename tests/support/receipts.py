"""Signs receipts again after a change, so that only the change itself is wrong."""

from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.messages.envelope import Sign, seal
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.values import replace


def verdict_again(body: Receipt, domain: Domain, sign: Sign, **changes: object) -> Receipt:
    """Returns the receipt with a Verdict that has the hash of its present evidence.

    `changes` replace fields of the Verdict. `sign` is the coordinator's.
    """
    said = replace(
        body.verdict.message,
        **{"evidence_hash": body.evidence().digest()} | changes,  # type: ignore[arg-type]
    )
    return replace(body, verdict=seal(domain, said, sign))
