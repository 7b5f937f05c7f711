"""Answers of the API beside the shared views: lists, small facts, and the one form of all refusals.
The codec encodes them.
"""

from msgspec import Struct

from quorate_protocol.messages.views import CaseView, OfferView, RunView
from quorate_runtime.process.health import Problem


class Refusal(Struct, frozen=True):
    """The answer of every status of 400 and above. `code` is one of `refusals.Code`, or
    `unavailable`, or `internal`.
    """

    code: str
    sentence: str
    detail: str


class Done(Struct, frozen=True):
    """The request was accepted and is durable. Repeating it changes nothing."""


class Health(Struct, frozen=True):
    """GET /v1/health. `live` counts jobs under way; `ok` means that there is no problem."""

    ok: bool
    block: int
    chain_lag_seconds: int
    live: int
    problems: tuple[Problem, ...]


class Offers(Struct, frozen=True):
    """GET /v1/offers"""

    offers: tuple[OfferView, ...]


class Runs(Struct, frozen=True):
    """GET /v1/runs"""

    runs: tuple[RunView, ...]


class Cases(Struct, frozen=True):
    """GET /v1/cases"""

    cases: tuple[CaseView, ...]


class Stored(Struct, frozen=True):
    """PUT /v1/content: the CID of the upload, and the size of its files in bytes."""

    cid: str
    size: int
