"""Receipts: all signed evidence of one job, content-addressed; anyone can recheck one without
asking anybody (PROTOCOL §3, §7).

Every byte of the body is covered by a signature or hash inside it, or is marked
`taken_from_chain`. `verify` reports each check by name, so that a flipped byte names the
signature or hash that it breaks.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from msgspec import Struct

from quorate_protocol import cids
from quorate_protocol.codec import canonical, text_writer
from quorate_protocol.crypto.commitment import assignment_id, commitment, result_digest, secret_hash
from quorate_protocol.crypto.eip712 import Domain, digest, struct_hash
from quorate_protocol.crypto.hashing import hash_list, sha256
from quorate_protocol.limits import DRAW_TRIES, TIERS
from quorate_protocol.messages.envelope import AnyEnvelope, Envelope, Recover, check_signature_form
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import (
    Accept,
    Ack,
    Assignment,
    Commit,
    CommitSet,
    Order,
    Reveal,
    Session,
    Stop,
    Verdict,
    Witness,
)
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import audit
from quorate_protocol.rules.audit import StakeSlot
from quorate_protocol.rules.beacon_rounds import Timing
from quorate_protocol.rules.eligible import ShownSlot
from quorate_protocol.units import (
    KILLED,
    PPM_ONE,
    ZERO_HASH,
    Address,
    Hash32,
    Label,
    Outcome,
    Round,
)

RECEIPT_BYTES_MAX = 4 << 20
VerifyRound = Callable[[bytes, int, bytes], bool]
"""(public key, round, signature) -> whether the beacon signed that round."""


class ExecutionEvidence(Struct, frozen=True):
    """Everything signed for one committed execution. `operator_key` is taken from the chain."""

    index: int
    assignment: Envelope[Assignment]
    accept: Envelope[Accept]
    commit: Envelope[Commit]
    reveal: Reveal | None
    operator_key: Address


class BeaconEvidence(Struct, frozen=True):
    """One round that decided a draw."""

    round: Round
    signature: bytes


class Party(Struct, frozen=True):
    """Who stands behind one execution, as registered when it was placed."""

    owner: Address
    operator_key: Address
    payout: Address
    network: Hash32


class TakenFromChain(Struct, frozen=True):
    """What only the chain can vouch for; `quorate verify` compares it when online. `parties` in
    order of the executions.
    """

    block: int
    list_length: int
    parties: tuple[Party, ...]


class Receipt(Struct, frozen=True):
    """The body. `batches` in order; executions in CommitSet order over all batches.

    `slots`: what every try of a draw met, up to the last one taken; each index of the list once,
    in order, with its proof. So the size of a receipt grows with the tries and the logarithm of
    the list (docs/decisions/0007).
    """

    chain_id: int
    stakes: Address
    beacon_key: bytes
    timing: Timing
    coordinator_key: Address
    spec: JobSpec
    session: Envelope[Session]
    order: Envelope[Order]
    ack: Envelope[Ack]
    batches: tuple[Envelope[CommitSet], ...]
    beacons: tuple[BeaconEvidence, ...]
    executions: tuple[ExecutionEvidence, ...]
    witness: Envelope[Witness] | None
    verdict: Envelope[Verdict]
    slots: tuple[ShownSlot, ...]
    taken_from_chain: TakenFromChain
    stop: Envelope[Stop] | None = None  # the client's, when it ended the job
    version: int = 1

    def encode(self) -> bytes:
        """Canonical bytes."""
        return text_writer.encode(self)

    def cid(self) -> str:
        """CIDv1 raw of the canonical bytes."""
        return cids.document_cid(self.encode())


class Check(Struct, frozen=True):
    """One named check and how it went."""

    name: str
    is_good: bool
    detail: str = ""


class Report(Struct, frozen=True):
    """All checks; valid when every one is good. `chain_checked` is false: nothing here asks the
    chain.
    """

    checks: tuple[Check, ...]
    chain_checked: bool = False

    @property
    def valid(self) -> bool:
        """True when every check is good."""
        return bool(self.checks) and all(check.is_good for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.is_good)


def document(receipt: Receipt) -> bytes:
    """The file `{body, cid}`."""
    return canonical.canonical({"body": canonical.to_json(receipt), "cid": receipt.cid()})


def verify(data: bytes, recover: Recover, verify_round: VerifyRound) -> Report:
    """Rechecks a receipt file. Never raises for bad content: what cannot be read is one failed
    check named `form`.
    """
    try:
        tree = canonical.parse(data, RECEIPT_BYTES_MAX)
        if (
            not isinstance(tree, dict)
            or set(tree) != {"body", "cid"}
            or canonical.canonical(tree) != data.strip()
        ):
            raise Refused(Code.MALFORMED, "a receipt is canonical JSON with exactly body and cid")
        receipt = canonical.from_json(Receipt, tree["body"])
        cid = str(tree["cid"])
    except Refused as refused:
        return Report((Check("form", False, refused.detail or refused.code.value),))
    # A re-encoding that differs from what was read would hide bytes from every hash below.
    whole = Check(
        "cid",
        canonical.canonical(tree["body"]) == receipt.encode() and cid == receipt.cid(),
        "cid of the body",
    )
    try:
        return Report((whole, *_checks(receipt, recover, verify_round)))
    except (Refused, KeyError, IndexError, AssertionError, ArithmeticError) as error:
        # A body that is well-formed but inconsistent (missing members, numbers that fit no word):
        # reported, never raised to the caller.
        return Report((whole, Check("consistency", False, str(error)[:200])))


def _checks(receipt: Receipt, recover: Recover, verify_round: VerifyRound) -> Iterator[Check]:
    domain = Domain(receipt.chain_id, receipt.stakes)
    yield Check(
        "version",
        receipt.version == 1,
        "only 1 is known: what a later one means, nobody can say here",
    )
    yield from _signatures(receipt, domain, recover)
    yield from _orders(receipt, domain)
    yield from _executions(receipt, domain)
    yield from _terms(receipt)
    yield from _draws(receipt, domain, verify_round)
    yield from _verdict(receipt)


def _signed(
    name: str, envelope: AnyEnvelope, expected: Address, domain: Domain, recover: Recover
) -> Check:
    try:
        check_signature_form(envelope.sig)
        actual = recover(envelope.digest(domain), envelope.sig)
    except Refused as refused:
        return Check(f"signature:{name}", False, refused.detail or refused.code.value)
    return Check(
        f"signature:{name}",
        actual == expected,
        f"signed by 0x{actual.hex()}, expected 0x{expected.hex()}",
    )


def _signatures(receipt: Receipt, domain: Domain, recover: Recover) -> Iterator[Check]:
    session = receipt.session.message
    yield _signed("session", receipt.session, session.client, domain, recover)
    yield _signed("order", receipt.order, session.session_key, domain, recover)
    for name, envelope in (("ack", receipt.ack), ("verdict", receipt.verdict)):
        yield _signed(name, envelope, receipt.coordinator_key, domain, recover)
    for number, batch in enumerate(receipt.batches):
        yield _signed(f"commitSet[{number}]", batch, receipt.coordinator_key, domain, recover)
    for number, item in enumerate(receipt.executions):
        yield _signed(
            f"assignment[{number}]", item.assignment, receipt.coordinator_key, domain, recover
        )
        yield _signed(f"accept[{number}]", item.accept, item.operator_key, domain, recover)
        yield _signed(f"commit[{number}]", item.commit, item.operator_key, domain, recover)
    if receipt.witness is not None:
        order = receipt.order.message
        key = order.witness if order.witness != bytes(20) else session.session_key
        yield _signed("witness", receipt.witness, key, domain, recover)
    if receipt.stop is not None:
        yield _signed("stop", receipt.stop, session.session_key, domain, recover)


def _orders(receipt: Receipt, domain: Domain) -> Iterator[Check]:
    order, ack = receipt.order.message, receipt.ack.message
    yield Check(
        "hash:spec",
        sha256(receipt.spec.encode()) == order.spec_hash,
        "spec document against order.specHash",
    )
    yield Check(
        "hash:jobId",
        digest(domain, order) == ack.job_id == receipt.verdict.message.job_id,
        "order digest",
    )
    yield Check(
        "order:session",
        order.client == receipt.session.message.client,
        "order and session name one client",
    )
    if receipt.stop is not None:
        yield Check(
            "stop:jobId", receipt.stop.message.job_id == ack.job_id, "the Stop is for this job"
        )
    for number, batch in enumerate(receipt.batches):
        message = batch.message
        yield Check(
            f"hash:secret[{number}]",
            secret_hash(message.secret) == ack.secret_hash,
            "x against Ack.secretHash",
        )
        # Both go into the seed of the draw: whoever may choose them may try until the beacon draws
        # its friends.
        yield Check(
            f"batch[{number}]",
            message.job_id == ack.job_id and message.batch == number,
            "this job's batches, in order from 0",
        )


def _executions(receipt: Receipt, domain: Domain) -> Iterator[Check]:
    entries = [entry for batch in receipt.batches for entry in batch.message.ordered]
    blinds = [blind for batch in receipt.batches for blind in batch.message.blinds]
    yield Check(
        "commitSet:members",
        len(entries) == len(blinds) == len(receipt.executions),
        "one execution an entry",
    )
    job_id = receipt.ack.message.job_id
    for number, (entry, blind, item) in enumerate(
        zip(entries, blinds, receipt.executions, strict=False)
    ):
        assignment, commit = item.assignment.message, item.commit.message
        hashed = digest(domain, assignment)
        yield Check(
            f"hash:assignment[{number}]",
            hashed == entry.assignment_hash == commit.assignment_hash,
            "assignment digest",
        )
        yield Check(
            f"hash:accept[{number}]",
            item.accept.message.assignment_hash == hashed,
            "accept is for this assignment",
        )
        yield Check(
            f"hash:commit[{number}]",
            digest(domain, commit) == entry.commit_hash,
            "commit digest against CommitSet",
        )
        yield Check(
            f"hash:blind[{number}]",
            assignment_id(job_id, item.index, blind) == assignment.assignment_id,
            "blind",
        )
        yield Check(
            f"provider[{number}]", entry.provider == assignment.provider, "provider of the entry"
        )
        if item.reveal is not None:
            result = result_digest(item.reveal.exit_status, item.reveal.output_digest)
            opened = commitment(hashed, assignment.provider, item.reveal.salt, result)
            same = (
                item.reveal.provider == assignment.provider
                and item.reveal.assignment_hash == hashed
            )
            yield Check(
                f"hash:reveal[{number}]",
                same and opened == commit.commitment,
                "reveal opens the commitment",
            )


def _terms(receipt: Receipt) -> Iterator[Check]:
    """Every execution was of this order, at no more than it allows, and no party had two of them
    (PROTOCOL §4, §5 Draw).
    """
    order, ack, spec = receipt.order.message, receipt.ack.message, receipt.spec
    for number, item in enumerate(receipt.executions):
        message = item.assignment.message
        named = (message.coordinator, message.spec_hash, message.host_class, message.max_duration)
        ordered = (order.coordinator, order.spec_hash, ack.host_class, spec.max_duration)
        good = named == ordered and message.price_per_hour <= order.max_price_per_hour
        yield Check(f"terms[{number}]", good, "the assignment is of this order, at no higher price")
    yield Check(
        "hostClass",
        order.host_class in (ZERO_HASH, ack.host_class),
        "the host class is the one that the order names, if any",
    )
    classes = {item.commit.message.class_id for item in receipt.executions}
    yield Check("class", len(classes) <= 1, "all executions are of one determinism class")
    yield Check("parties", _are_distinct(receipt), "owners, payouts and networks are distinct")


def _are_distinct(receipt: Receipt) -> bool:
    parties = receipt.taken_from_chain.parties
    if [(item.assignment.message.provider, item.operator_key) for item in receipt.executions] != [
        (party.owner, party.operator_key) for party in parties
    ]:
        return False
    members = (
        {party.owner for party in parties},
        {party.payout for party in parties},
        {party.network for party in parties},
    )
    return all(len(found) == len(parties) for found in members)


def _draws(receipt: Receipt, domain: Domain, verify_round: VerifyRound) -> Iterator[Check]:
    randomness = {}
    for number, beacon in enumerate(receipt.beacons):
        good = verify_round(receipt.beacon_key, beacon.round, beacon.signature)
        randomness[beacon.round] = sha256(beacon.signature)
        yield Check(f"signature:beacon[{number}]", good, f"round {beacon.round}")
    shown = {item.proof.index: item.slot for item in receipt.slots}
    touched: set[int] = set()
    for number, batch in enumerate(receipt.batches):
        message = batch.message
        owners = [entry.provider for entry in message.ordered]
        if message.beacon_round == 0 and receipt.verdict.message.outcome is Outcome.LAPSED:
            # Stopped by the client: what was cut short cannot be repeated, so nobody is drawn and
            # nothing is claimed of it.
            alone = receipt.stop is not None and not message.slots and len(owners) == 1
            yield Check(
                f"draw[{number}]",
                alone,
                "a job stopped by its client has one execution and no draw",
            )
            continue
        if message.beacon_round not in randomness:
            yield Check(f"draw[{number}]", False, f"beacon round {message.beacon_round} is missing")
            continue
        seed = audit.seed(
            randomness[message.beacon_round], message.job_id, message.secret, message.batch
        )
        audited = audit.is_audited(seed, message.audit_ppm) or message.batch > 0
        indices = audit.touched(seed, message.slots, receipt.taken_from_chain.list_length)
        touched.update(indices)
        met = [shown.get(indices[attempt]) for attempt in message.slots]
        drawn = [slot for slot in met if slot is not None]
        expected = sorted(owners[1:] if message.batch == 0 else owners)
        is_theirs = sorted(slot.owner for slot in drawn) == expected and len(drawn) == len(
            message.slots
        )
        yield Check(
            f"draw[{number}]",
            is_theirs and _are_parties(receipt, drawn),
            "drawn slots are the auditors",
        )
        tries = len(set(message.slots)) == len(message.slots) and all(
            attempt < DRAW_TRIES for attempt in message.slots
        )
        yield Check(f"tries[{number}]", tries, f"distinct tries of the draw, below {DRAW_TRIES}")
        is_rate = message.audit_ppm >= _least_rate(receipt) and (audited or not message.slots)
        yield Check(
            f"rate[{number}]",
            is_rate,
            f"auditPpm {message.audit_ppm}, at least {_least_rate(receipt)}",
        )
    yield from _shown(receipt, touched)
    rounds = [batch.message.beacon_round for batch in receipt.batches]
    yield from _rounds(receipt)
    if receipt.witness is not None and receipt.executions:
        witness, primary = (
            receipt.witness.message,
            digest(domain, receipt.executions[0].commit.message),
        )
        yield Check(
            "witness:commit", witness.commit_hash == primary, "witness is for the primary's commit"
        )
        yield Check(
            "witness:round",
            rounds[:1] in ([witness.beacon_round], [0]),
            "the first draw is by the round that was witnessed",
        )


def _rounds(receipt: Receipt) -> Iterator[Check]:
    """By which round a later batch is drawn follows from when the one before was closed: who
    might wait for a round would wait for one that draws its friends. A batch cannot be closed
    before its own round, so nor can that moment be any.
    """
    timing, batches = receipt.timing, [batch.message for batch in receipt.batches]
    for number, batch in enumerate(batches):
        if batch.beacon_round:
            is_after = batch.closed_at >= timing.appears_at(batch.beacon_round)
            yield Check(
                f"closedAt[{number}]",
                is_after,
                f"closed no earlier than beacon round {batch.beacon_round} appeared",
            )
    for number, (one, following) in enumerate(pairwise(batches), 1):
        first = last = timing.later_round(one.closed_at)
        if number == 1 and _was_held(receipt):
            # Looked at again when a fault of its provider was found, at its exit, or when the hold
            # was over.
            last = timing.later_round(one.closed_at + timing.max_hold)
        is_due = (
            one.beacon_round < following.beacon_round and first <= following.beacon_round <= last
        )
        due = f"{first}" if first == last else f"{first} to {last}"
        yield Check(
            f"round[{number}]",
            is_due,
            f"batch {number} is drawn by beacon round {due}: revealBy and a period later",
        )


def _was_held(receipt: Receipt) -> bool:
    """Whether the first batch alone was accepted, unaudited: the job was held, and executed
    again later.
    """
    reveal = receipt.executions[0].reveal
    is_alone = (
        len(receipt.batches[0].message.ordered) == 1 and receipt.ack.message.rule is Label.ADAPTIVE
    )
    return is_alone and reveal is not None and reveal.exit_status not in KILLED


def _least_rate(receipt: Receipt) -> int:
    """The least auditPpm that rule, tier and witness allow, whatever trust the provider has
    earned.
    """
    order = receipt.order.message
    match receipt.ack.message.rule:
        case Label.QUORUM_2:
            return PPM_ONE
        case Label.ADAPTIVE:
            return (
                TIERS[order.verify_tier].p_min
                if receipt.witness is not None or order.accept_unwitnessed
                else PPM_ONE
            )
        case Label.UNVERIFIED | Label.NONE:
            return 0


def _are_parties(receipt: Receipt, drawn: list[StakeSlot]) -> bool:
    """Whether the auditors are said to be who their slots are."""
    known = {
        party.owner: (party.payout, party.network) for party in receipt.taken_from_chain.parties
    }
    return all(known.get(slot.owner) == (slot.payout, slot.network) for slot in drawn)


def _shown(receipt: Receipt, touched: set[int]) -> Iterator[Check]:
    """Of every try it is shown whom it met, and of nothing else: what was passed over, a
    stranger sees as the coordinator had to.
    """
    ack, chain = receipt.ack.message, receipt.taken_from_chain
    yield Check(
        "slots",
        [item.proof.index for item in receipt.slots] == sorted(touched),
        "one slot for each index that the tries met",
    )
    for number, item in enumerate(receipt.slots):
        is_listed = (
            item.is_under(ack.eligible_root)
            and item.proof.count == chain.list_length
            and chain.block == ack.slot_block
        )
        is_active = item.slot is None or item.slot.is_active(ack.slot_block)
        yield Check(
            f"hash:slot[{number}]",
            is_listed and is_active,
            f"index {item.proof.index} under Ack.eligibleRoot and active",
        )


def _verdict(receipt: Receipt) -> Iterator[Check]:
    verdict = receipt.verdict.message
    reveals = [item.reveal for item in receipt.executions if item.reveal is not None]
    hashed = hash_list(tuple(struct_hash(reveal) for reveal in reveals))
    yield Check(
        "hash:evidence", hashed == verdict.evidence_hash, "reveals against Verdict.evidenceHash"
    )
    results: dict[Hash32, Hash32] = {}
    for reveal in reveals:
        results[reveal.assignment_hash] = result_digest(reveal.exit_status, reveal.output_digest)
    members = {item.commit.message.assignment_hash for item in receipt.executions}
    yield Check(
        "verdict:members",
        set(verdict.group) | set(verdict.faulted) <= members,
        "group and faulted are executions",
    )
    yield Check(
        "verdict:label", verdict.label is receipt.ack.message.rule, "label is the Ack's rule"
    )
    yield Check(
        "verdict:batches",
        verdict.batches == len(receipt.batches),
        "as many batches as the verdict rests on",
    )
    if verdict.outcome is Outcome.ACCEPTED:
        yield Check(
            "verdict:group", _is_agreed(receipt, results), "the group agrees, the faulted differ"
        )
        yield Check(
            "verdict:enough",
            _is_enough(receipt, results),
            "no other result has more executions, and the rule needs no more",
        )


def _is_agreed(receipt: Receipt, results: dict[Hash32, Hash32]) -> bool:
    """Whether group and faulted share the executions out by their results, each of them once and
    in the order of the executions.
    """
    verdict = receipt.verdict.message
    agreed = {results.get(item) for item in verdict.group}
    outside = all(results.get(item) not in agreed for item in verdict.faulted)
    alone = {
        batch.message.ordered[0].assignment_hash
        for batch in receipt.batches
        if len(batch.message.ordered) == 1
    }
    everybody = [item.commit.message.assignment_hash for item in receipt.executions]
    members = [
        item for item in everybody if item in results or item not in alone
    ]  # alone and silent, it is in neither
    shared_out = [(item, item in verdict.group) for item in members]
    named = [(item, True) for item in verdict.group] + [(item, False) for item in verdict.faulted]
    return (
        len(agreed) == 1
        and None not in agreed
        and outside
        and sorted(shared_out, key=lambda pair: not pair[1]) == named
    )


def _is_enough(receipt: Receipt, results: dict[Hash32, Hash32]) -> bool:
    """What every accepted group needs, whatever is thought of its members: that depends on the
    coordinator's log (PROTOCOL §5 Batches).
    """
    verdict = receipt.verdict.message
    most = max(Counter(results.values()).values(), default=0)
    is_outnumbered = verdict.label is not Label.ADAPTIVE and most > len(
        verdict.group
    )  # there the trusted count for more
    if verdict.label is Label.ADAPTIVE and len(receipt.executions) == 1:
        reveal = receipt.executions[0].reveal
        return (
            reveal is not None and reveal.exit_status not in KILLED
        )  # a kill can be claimed by who ran nothing: always audited
    least = 2 if verdict.label in (Label.QUORUM_2, Label.ADAPTIVE) else 1
    return not is_outnumbered and len(verdict.group) >= least
