"""What the API answers beyond the shared views: lists, small facts, and the one form of every
refusal. Encoded by the codec.
"""

from dataclasses import dataclass

from quorate_protocol.messages.views import CaseView, OfferView, RunView
from quorate_protocol.rules.epoch_tree import Leaf, Proof
from quorate_protocol.units import Hash32
from quorate_runtime.process.health import Problem


@dataclass(frozen=True, slots=True)
class Refusal:
    """Every answer of 400 and above. `code` is one of `refusals.Code`, or `unavailable`,
    `internal`.
    """

    code: str
    sentence: str
    detail: str


@dataclass(frozen=True, slots=True)
class Done:
    """Taken note of, durably; repeating the request changes nothing."""


@dataclass(frozen=True, slots=True)
class Health:
    """GET /v1/health. `live`: jobs under way. `ok`: there is no problem."""

    ok: bool
    block: int
    chain_lag_seconds: int
    live: int
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Offers:
    """GET /v1/offers"""

    offers: tuple[OfferView, ...]


@dataclass(frozen=True, slots=True)
class Runs:
    """GET /v1/runs"""

    runs: tuple[RunView, ...]


@dataclass(frozen=True, slots=True)
class Cases:
    """GET /v1/cases"""

    cases: tuple[CaseView, ...]


@dataclass(frozen=True, slots=True)
class EpochView:
    """One row of GET /v1/epochs. `leaves`: how many accounts it credits."""

    number: int
    root: Hash32
    is_posted: bool
    leaves: int


@dataclass(frozen=True, slots=True)
class EpochsKept:
    """GET /v1/epochs: those that proofs are kept for."""

    epochs: tuple[EpochView, ...]


@dataclass(frozen=True, slots=True)
class LeafProof:
    """GET /v1/epochs/{number}/proofs/{address}, for `Epochs.claim`."""

    leaf: Leaf
    proof: Proof
    epoch: int


@dataclass(frozen=True, slots=True)
class Stored:
    """PUT /v1/content: the CID of what came, and the bytes of its files."""

    cid: str
    size: int
