"""Refusals: what a peer asked for and the rules forbid. One enum, one total table.

`Refused` is raised by the rules and by decoders, changes nothing, and is caught in one place per
program. Every code has an HTTP status, the contracts' revert reason where the chain enforces the
same rule, and a sentence for people.
"""

from enum import StrEnum

from msgspec import Struct


class Code(StrEnum):
    """Why something was refused. Wire form is the value."""

    MALFORMED = "malformed"
    NOT_CANONICAL = "not-canonical"
    UNKNOWN_FIELD = "unknown-field"
    OVERSIZE = "oversize"
    BAD_SIGNATURE = "bad-signature"
    WRONG_SIGNER = "wrong-signer"
    WRONG_CHAIN = "wrong-chain"
    EXPIRED = "expired"
    REPLAYED = "replayed"
    STALE = "stale"
    UNKNOWN = "unknown"
    WRONG_PHASE = "wrong-phase"
    TOO_LATE = "too-late"
    TOO_EARLY = "too-early"
    EQUIVOCATION = "equivocation"
    DOES_NOT_OPEN = "does-not-open"
    NOT_STORED = "not-stored"
    WRONG_CLASS = "wrong-class"
    PRICE_TOO_HIGH = "price-too-high"
    OVER_ALLOCATION = "over-allocation"
    BAD_AMOUNT = "bad-amount"
    UNSUPPORTED = "unsupported"
    NO_OFFER = "no-offer"
    TOO_FEW_OWNERS = "too-few-owners"
    NOT_REGISTERED = "not-registered"
    FROZEN = "frozen"
    BUSY = "busy"
    QUOTA = "quota"
    NOT_YOURS = "not-yours"
    CHAIN = "chain"


class Meaning(Struct, frozen=True):
    """What one code maps to: HTTP status, contract revert reason ("" where the chain has no such
    rule), a sentence.
    """

    status: int
    revert: str
    sentence: str


MEANINGS: dict[Code, Meaning] = {
    Code.MALFORMED: Meaning(400, "", "The message cannot be read."),
    Code.NOT_CANONICAL: Meaning(400, "", "The message is not in canonical form."),
    Code.UNKNOWN_FIELD: Meaning(400, "", "The message has a field that nobody knows."),
    Code.OVERSIZE: Meaning(413, "", "The message is larger than allowed."),
    Code.BAD_SIGNATURE: Meaning(401, "signature", "The signature does not verify."),
    Code.WRONG_SIGNER: Meaning(403, "signer", "The key that signed may not sign this."),
    Code.WRONG_CHAIN: Meaning(
        400, "domain", "The signature was made for another chain or deployment."
    ),
    Code.EXPIRED: Meaning(410, "expired", "It has expired; sign a new one."),
    Code.REPLAYED: Meaning(409, "nonce", "It was used before."),
    Code.STALE: Meaning(409, "stale", "A newer one is known."),
    Code.UNKNOWN: Meaning(404, "unknown", "Nobody here knows it."),
    Code.WRONG_PHASE: Meaning(409, "phase", "That cannot happen in this phase."),
    Code.TOO_LATE: Meaning(409, "late", "The deadline has passed."),
    Code.TOO_EARLY: Meaning(409, "early", "It is too early for that."),
    Code.EQUIVOCATION: Meaning(
        409, "equivocation", "Two different messages were signed for one place."
    ),
    Code.DOES_NOT_OPEN: Meaning(422, "reveal", "The reveal does not open the commitment."),
    Code.NOT_STORED: Meaning(409, "", "The content is not stored; upload it first."),
    Code.WRONG_CLASS: Meaning(
        422, "class", "The determinism class is not the one the assignment gives."
    ),
    Code.PRICE_TOO_HIGH: Meaning(422, "price", "The price is above what was signed."),
    Code.OVER_ALLOCATION: Meaning(
        402, "allocation", "The client's allocation does not cover it; deposit and allocate more."
    ),
    Code.BAD_AMOUNT: Meaning(422, "amount", "The amount is not one the rules allow."),
    Code.UNSUPPORTED: Meaning(501, "", "This coordinator or provider does not offer that."),
    Code.NO_OFFER: Meaning(409, "", "No live offer fits; relax the named limit."),
    Code.TOO_FEW_OWNERS: Meaning(
        409,
        "owners",
        "Too few owners to verify by redundancy; set acceptUnverified or another host class.",
    ),
    Code.NOT_REGISTERED: Meaning(403, "registered", "The account is not registered on chain."),
    Code.FROZEN: Meaning(
        403, "frozen", "The account is frozen while a case is open or for strikes."
    ),
    Code.BUSY: Meaning(429, "", "Too many requests; retry later."),
    Code.QUOTA: Meaning(507, "", "The store is full for this account."),
    Code.NOT_YOURS: Meaning(403, "", "It belongs to somebody else."),
    Code.CHAIN: Meaning(502, "", "The chain refused the transaction."),
}


class Refused(Exception):
    """A peer asked for what the rules forbid. `detail` says what was wrong, where, and what to
    do; it can be written as UTF-8, although strangers' names in it need not be (JSON and file
    systems allow lone surrogates).
    """

    def __init__(self, code: Code, detail: str = "") -> None:
        if not detail.isascii():
            detail = detail.encode(errors="backslashreplace").decode()
        super().__init__(f"{code.value}: {MEANINGS[code].sentence}{' ' + detail if detail else ''}")
        self.code = code
        self.detail = detail


class Unavailable(Exception):
    """The world failed (a node away, a full disk, a busy engine); the shell retries after
    `retry_after` seconds.
    """

    def __init__(self, what: str, retry_after: float = 1.0) -> None:
        super().__init__(what)
        self.retry_after = retry_after
