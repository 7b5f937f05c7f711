"""The Settlement contract: jobs paid from their signed evidence (PROTOCOL §6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import astuple

from quorate_contracts.bindings.calls import Call, Contract, Query, words
from quorate_protocol.codec.canonical import Json
from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.crypto.merkle import Inclusion
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import (
    Assignment,
    Commit,
    CommitReceipt,
    Order,
    Reveal,
    Session,
)
from quorate_protocol.rules.epoch_tree import Leaf, Proof
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, Hash32, Nonce, UnixSeconds

JOBS_MAX = 32  # of one settle_many
SETTLED_EXECUTIONS_MAX = 3  # of one job in one settlement
NONCE_MAX = 2**36 - 2  # of an order that can be settled


class SettledExecution(Struct, frozen=True):
    """Evidence of one execution. `index` and `blind` open its assignmentId.

    Without `receipt` it is enough for the coordinator alone.
    """

    index: int
    blind: Hash32
    assignment: Envelope[Assignment]
    commit: Envelope[Commit]
    reveal: Reveal
    receipt: Envelope[CommitReceipt] | None = None


class JobEvidence(Struct, frozen=True):
    """Evidence of one job: its order, and two or three executions with one result."""

    session: Envelope[Session]
    order: Envelope[Order]
    executions: tuple[SettledExecution, ...]


class Share(Struct, frozen=True):
    """What a settlement would credit for one execution."""

    assignment_id: Hash32  # zero once somebody answered
    provider: Address
    index: int
    amount: Amount


class Opening(Struct, frozen=True):
    """An announced settlement, as its events tell it. The chain stores its hash only."""

    job_id: Hash32
    coordinator: Address
    client: Address
    nonce: Nonce
    up_to: Amount  # of the client's session
    result: Hash32
    ready_at: UnixSeconds  # it can be executed from then on
    shares: tuple[Share, ...]

    @classmethod
    def of(cls, values: Sequence[Json]) -> "Opening":
        """Returns the opening in an event."""
        named: dict[str, Json] = dict(zip(cls.__struct_fields__, values, strict=True))
        return cls(**{**named, "shares": tuple(Share(*each) for each in named["shares"])})


class ShownCredit(Struct, frozen=True):
    """Proof that an epoch credits an execution: the provider's leaf, and an entry of its log."""

    epoch: int
    leaf: Leaf
    proof: Proof
    pay: Amount
    inclusion: Inclusion


@dataclass(frozen=True, slots=True)
class Settlement(Contract):
    """Pays jobs that no epoch pays."""

    NAME: ClassVar[str] = "Settlement"

    def settle_job(self, job: JobEvidence, is_session_known: bool = False) -> Call:
        """Credits one job at once. The coordinator's posting key sends it.

        With `is_session_known` the chain takes the session that `Epochs.session` returns.
        """
        gas = 140_000 + 90_000 * len(job.executions)
        return self._call("settle_job", gas, _job_words(job), _session_words(job, is_session_known))

    def settle_many(self, coordinator: Address, jobs: Sequence[JobEvidence]) -> Call:
        """`settle_job` for at most 32 jobs, under sessions that `Epochs.session` returns."""
        assert 0 < len(jobs) <= JOBS_MAX, f"one to {JOBS_MAX} jobs"
        gas = 200_000 + sum(60_000 + 80_000 * len(job.executions) for job in jobs)
        return self._call("settle_many", gas, coordinator, [_job_words(job) for job in jobs])

    def open(self, job: JobEvidence, is_session_known: bool = False) -> Call:
        """Announces a settlement. Anyone may send it, with the coordinator's CommitReceipts."""
        gas = 180_000 + 90_000 * len(job.executions)
        return self._call(
            "open", gas, _job_words(job), _session_words(job, is_session_known), _countersigned(job)
        )

    def answer(self, opening: Opening, share: int, shown: ShownCredit) -> Call:
        """Shows that an epoch credits the execution of a share. Anyone may send it."""
        siblings = [(node.hash, node.final << 128 | node.held) for node in shown.proof.siblings]
        leaf = shown.leaf
        inclusion = shown.inclusion
        return self._call(
            "answer",
            250_000 + 4_000 * (len(siblings) + len(inclusion.siblings)),
            _opening_words(opening),
            shown.epoch,
            share,
            (leaf.index, leaf.account, leaf.final << 128 | leaf.held, leaf.receipts_root),
            shown.proof.position,
            siblings,
            (
                shown.pay,
                inclusion.index,
                inclusion.count,
                inclusion.siblings,
                inclusion.other_peaks,
            ),
        )

    def outvote(self, opening: Opening, job: JobEvidence, is_session_known: bool = False) -> Call:
        """Shows as many executions of the job with another result. Anyone may send it."""
        gas = 180_000 + 90_000 * len(job.executions)
        return self._call(
            "outvote",
            gas,
            _opening_words(opening),
            _job_words(job),
            _session_words(job, is_session_known),
            _countersigned(job),
        )

    def execute(self, opening: Opening) -> Call:
        """Credits what was not answered, once the time for it is over. Anyone may send it."""
        gas = 150_000 + 40_000 * len(opening.shares)
        return self._call("execute", gas, _opening_words(opening))

    def answered_of(self, coordinator: Address, provider: Address) -> Query[Amount]:
        """Asks how much pay all answers showed under a provider's leaves."""
        return self._query("answered_of", Amount, coordinator, provider)

    def settled(
        self, client: Address, coordinator: Address, nonce: Nonce
    ) -> Query[tuple[int, ...]]:
        """Indices of the executions of an order that settlements paid, at most three."""
        return self._query("settled", tuple, client, coordinator, nonce)


def _session_words(job: JobEvidence, is_session_known: bool) -> tuple[object, ...]:
    if is_session_known:
        return ZERO_ADDRESS, 0, 0, (0, 0, 0)
    session = job.session.message
    return session.session_key, session.up_to, session.expires, words(job.session.sig)


def _job_words(job: JobEvidence) -> tuple[object, ...]:
    """The job as the contract takes it; it computes again what follows from other fields."""
    first = job.executions[0]
    digests = {
        result_digest(each.reveal.exit_status, each.reveal.output_digest) for each in job.executions
    }
    assert len(digests) == 1, "the executions have one result"
    return (
        astuple(job.order.message),
        words(job.order.sig),
        first.assignment.message.host_class,
        first.commit.message.class_id,
        first.reveal.exit_status,
        first.reveal.output_digest,
        [_execution_words(each) for each in job.executions],
    )


def _execution_words(each: SettledExecution) -> tuple[object, ...]:
    assignment, commit = each.assignment.message, each.commit.message
    assert assignment.max_duration < 2**32 and assignment.accept_by < 2**48, "seconds"
    place = int.from_bytes(assignment.provider, "big") << 96
    place |= assignment.max_duration << 64 | assignment.accept_by << 16 | each.index
    terms = assignment.price_per_hour << 128 | commit.usage_ms << 64 | commit.beacon_round
    signature = words(each.commit.sig)
    return place, terms, each.blind, commit.encrypted_output, each.reveal.salt, signature


def _countersigned(job: JobEvidence) -> list[tuple[object, ...]]:
    listed: list[tuple[object, ...]] = []
    for each in job.executions:
        assert each.receipt is not None, "each execution needs its CommitReceipt"
        receipt = each.receipt
        listed.append((words(each.assignment.sig), receipt.message.time, words(receipt.sig)))
    return listed


def _opening_words(opening: Opening) -> tuple[object, ...]:
    shares = [(s.assignment_id, s.provider, s.index, s.amount) for s in opening.shares]
    return (
        opening.job_id,
        opening.coordinator,
        opening.client,
        opening.nonce,
        opening.up_to,
        opening.result,
        opening.ready_at,
        shares,
    )
