"""Refusals: the answers to requests that the rules forbid.

The rules and the decoders raise `Refused`, and the request then changes nothing. Each program
catches it in one place. Every code has an HTTP status and a sentence for people.
"""

from enum import StrEnum

from msgspec import Struct


class Code(StrEnum):
    """The reason of a refusal. Its value is the text on the wire."""

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
    INSUFFICIENT_FUNDS = "insufficient-funds"
    NO_VOUCHER = "no-voucher"
    OVER_STAKE = "over-stake"
    BAD_AMOUNT = "bad-amount"
    UNSUPPORTED = "unsupported"
    NO_OFFER = "no-offer"
    TOO_FEW_OWNERS = "too-few-owners"
    NOT_REGISTERED = "not-registered"
    BUSY = "busy"
    QUOTA = "quota"
    NOT_YOURS = "not-yours"
    CHAIN = "chain"


class Meaning(Struct, frozen=True):
    """The HTTP status and the sentence of one code."""

    status: int  # HTTP status
    sentence: str  # for people


MEANINGS: dict[Code, Meaning] = {
    Code.MALFORMED: Meaning(400, "The message cannot be read."),
    Code.NOT_CANONICAL: Meaning(400, "The message is not in canonical form."),
    Code.UNKNOWN_FIELD: Meaning(400, "The message has an unknown field."),
    Code.OVERSIZE: Meaning(413, "The message is larger than allowed."),
    Code.BAD_SIGNATURE: Meaning(401, "The signature does not verify."),
    Code.WRONG_SIGNER: Meaning(403, "This key may not sign this message."),
    Code.WRONG_CHAIN: Meaning(400, "The signature was made for another chain or deployment."),
    Code.EXPIRED: Meaning(410, "It has expired; sign a new one."),
    Code.REPLAYED: Meaning(409, "This nonce or message was used before."),
    Code.STALE: Meaning(409, "A newer message is already known."),
    Code.UNKNOWN: Meaning(404, "It is not known here."),
    Code.WRONG_PHASE: Meaning(409, "This is not possible in the present phase."),
    Code.TOO_LATE: Meaning(409, "The deadline has passed."),
    Code.TOO_EARLY: Meaning(409, "It is too early for that."),
    Code.EQUIVOCATION: Meaning(
        409, "Two different messages were signed where only one is allowed."
    ),
    Code.DOES_NOT_OPEN: Meaning(422, "The reveal does not open the commitment."),
    Code.NOT_STORED: Meaning(409, "The content is not stored; upload it first."),
    Code.WRONG_CLASS: Meaning(422, "The determinism class is not the one of the assignment."),
    Code.PRICE_TOO_HIGH: Meaning(422, "The price is above what was signed."),
    Code.INSUFFICIENT_FUNDS: Meaning(402, "The client's tab does not cover it; deposit more."),
    Code.NO_VOUCHER: Meaning(402, "The client's voucher does not cover it; sign a larger one."),
    Code.OVER_STAKE: Meaning(
        402, "The provider's stake slots do not cover its run slots; stake more or offer fewer."
    ),
    Code.BAD_AMOUNT: Meaning(422, "The rules do not allow this amount."),
    Code.UNSUPPORTED: Meaning(501, "This coordinator or provider does not offer that."),
    Code.NO_OFFER: Meaning(409, "No live offer fits; relax the named limit."),
    Code.TOO_FEW_OWNERS: Meaning(
        409, "Too few owners to verify by redundancy; set acceptUnverified or another pool."
    ),
    Code.NOT_REGISTERED: Meaning(403, "The account is not registered on chain."),
    Code.BUSY: Meaning(429, "Too many requests; retry later."),
    Code.QUOTA: Meaning(507, "The store has no room for it."),
    Code.NOT_YOURS: Meaning(403, "It belongs to another account."),
    Code.CHAIN: Meaning(502, "The chain refused the transaction."),
}


NAMING_WORDS_MAX = 3


def said(sentence: str, detail: str) -> str:
    """Returns what a person reads of a refusal: the detail, which says it in full, or else the
    sentence of its code. A detail of a few words only names what the sentence is about.
    """
    if not detail:
        return sentence.rstrip(".")
    if len(detail.split()) > NAMING_WORDS_MAX:
        return detail.rstrip(".")
    return f"{detail}: {sentence[:1].lower()}{sentence[1:].rstrip('.')}"


class Refused(Exception):
    """A peer asked for something that the rules forbid.

    `detail` says what was wrong, where, and what to do. It can always be encoded as UTF-8: JSON and
    file systems allow lone surrogates in names, and these are escaped in it.
    """

    def __init__(self, code: Code, detail: str = "") -> None:
        if not detail.isascii():
            detail = detail.encode(errors="backslashreplace").decode()
        super().__init__(f"{code.value}: {said(MEANINGS[code].sentence, detail)}")
        self.code = code
        self.detail = detail


class Unavailable(Exception):
    """Something outside failed, for example a chain node, a disk or a container engine. The caller
    may try again after `retry_after` seconds.
    """

    def __init__(self, what: str, retry_after: float = 1.0) -> None:
        super().__init__(what)
        self.retry_after = retry_after
