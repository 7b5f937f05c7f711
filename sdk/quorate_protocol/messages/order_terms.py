"""The terms of an order: what client and coordinator agree on, and no provider needs to know.

Terms are a canonical document of their own. `Order.terms_hash` is its digest, so an execution's
spec is the same whatever its order is called. Providers, auditors and jurors never get this
document.
"""

import re

from quorate_protocol.codec import canonical
from quorate_protocol.messages.document import Document
from quorate_protocol.refusals import Code, Refused

NAME_DEFAULT = "job"
TERMS_BYTES_MAX = 4096
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class OrderTerms(Document, frozen=True):
    """What the client calls its job."""

    name: str = NAME_DEFAULT
    version: int = 1


def decode(data: bytes) -> OrderTerms:
    terms = canonical.decode(OrderTerms, data, TERMS_BYTES_MAX)
    validate(terms)
    return terms


def validate(terms: OrderTerms) -> None:
    """Raises `Refused` with the field's name for terms that no coordinator takes."""
    if terms.version != 1:
        raise Refused(Code.MALFORMED, "terms.version: it must be 1")
    if _NAME.fullmatch(terms.name) is None:
        raise Refused(
            Code.MALFORMED,
            f"name: {terms.name[:64]!r} is no name; use lower-case letters, digits and inner "
            "hyphens, at most 63, such as train-2",
        )
