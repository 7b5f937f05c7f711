"""Checks of a receipt that need only the receipt itself (PROTOCOL §7).

`verify` reports each check by name, so that a changed byte names the signature or hash that it
breaks. `receipt_draws` has the checks of what the beacon drew.
"""

from collections import Counter
from collections.abc import Iterator

from quorate_protocol.codec import canonical
from quorate_protocol.crypto.commitment import assignment_id, commitment, result_digest, secret_hash
from quorate_protocol.crypto.eip712 import Domain, digest, struct_hash
from quorate_protocol.crypto.hashing import hash_list, sha256
from quorate_protocol.messages.envelope import AnyEnvelope, Recover, check_signature_form
from quorate_protocol.messages.receipt import RECEIPT_BYTES_MAX, Check, Receipt, Report
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import receipt_draws
from quorate_protocol.rules.receipt_draws import VerifyRound
from quorate_protocol.units import KILLED, ZERO_HASH, Address, Hash32, Label, Outcome


def verify(data: bytes, recover: Recover, verify_round: VerifyRound) -> Report:
    """Checks a receipt's file and reports each check.

    Bad content never raises. A file that cannot be read gives one failed check named `form`.
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
    # If the body encoded again had other bytes, the checks below would not cover all bytes read.
    whole = Check(
        "cid",
        canonical.canonical(tree["body"]) == receipt.encode() and cid == receipt.cid(),
        "cid of the body",
    )
    try:
        return Report((whole, *_checks(receipt, recover, verify_round)))
    except (Refused, KeyError, IndexError, AssertionError, ArithmeticError) as error:
        # The body is well-formed but inconsistent: a member is missing, or a number is too large
        # for its type.
        return Report((whole, Check("consistency", False, str(error)[:200])))


def _checks(receipt: Receipt, recover: Recover, verify_round: VerifyRound) -> Iterator[Check]:
    domain = Domain(receipt.chain_id, receipt.stakes)
    yield Check("version", receipt.version == 1, "this program knows only version 1")
    yield from _signatures(receipt, domain, recover)
    yield from _orders(receipt, domain)
    yield from _executions(receipt, domain)
    yield from _terms(receipt)
    yield from receipt_draws.checks(receipt, domain, verify_round)
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
        "the spec has the digest order.specHash",
    )
    yield Check(
        "hash:jobId",
        digest(domain, order) == ack.job_id == receipt.verdict.message.job_id,
        "the order's digest is the jobId",
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
            "the secret x has the hash Ack.secretHash",
        )
        # Both go into the seed of the draw. A coordinator that could choose them would try values
        # until the beacon draws its friends.
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
        "one execution for each entry",
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
            "entry and commit name the assignment's digest",
        )
        yield Check(
            f"hash:accept[{number}]",
            item.accept.message.assignment_hash == hashed,
            "the accept is for this assignment",
        )
        yield Check(
            f"hash:commit[{number}]",
            digest(domain, commit) == entry.commit_hash,
            "the CommitSet has the commit's digest",
        )
        yield Check(
            f"hash:blind[{number}]",
            assignment_id(job_id, item.index, blind) == assignment.assignment_id,
            "the blind gives the assignmentId",
        )
        yield Check(
            f"provider[{number}]",
            entry.provider == assignment.provider,
            "entry and assignment name one provider",
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
                "the reveal opens the commitment",
            )


def _terms(receipt: Receipt) -> Iterator[Check]:
    """Checks that all executions are of this order and by distinct parties (PROTOCOL §4, §5 Draw).

    No execution may cost more than the order allows.
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


def _verdict(receipt: Receipt) -> Iterator[Check]:
    verdict = receipt.verdict.message
    reveals = [item.reveal for item in receipt.executions if item.reveal is not None]
    hashed = hash_list(tuple(struct_hash(reveal) for reveal in reveals))
    yield Check(
        "hash:evidence",
        hashed == verdict.evidence_hash,
        "the reveals have the hash Verdict.evidenceHash",
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
        "the receipt has as many batches as the verdict says",
    )
    if verdict.outcome is Outcome.ACCEPTED:
        yield Check(
            "verdict:group", _is_agreed(receipt, results), "the group agrees, the faulted differ"
        )
        yield Check(
            "verdict:enough",
            _is_enough(receipt, results),
            "no other result has more executions, and the group is large enough",
        )


def _is_agreed(receipt: Receipt, results: dict[Hash32, Hash32]) -> bool:
    """Whether the group has one result, and the faulted executions have other results or none.

    Group and faulted must together name each execution once, each in the order of the executions.
    An execution that was alone in its batch and not revealed is in neither.
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
    members = [item for item in everybody if item in results or item not in alone]
    shared_out = [(item, item in verdict.group) for item in members]
    named = [(item, True) for item in verdict.group] + [(item, False) for item in verdict.faulted]
    return (
        len(agreed) == 1
        and None not in agreed
        and outside
        and sorted(shared_out, key=lambda pair: not pair[1]) == named
    )


def _is_enough(receipt: Receipt, results: dict[Hash32, Hash32]) -> bool:
    """Whether the accepted group is as large as it must be for any trust of its members.

    A receipt does not show trust. Trust follows from the coordinator's log (PROTOCOL §5 Batches).
    """
    verdict = receipt.verdict.message
    most = max(Counter(results.values()).values(), default=0)
    # Under the adaptive rule trusted owners count for more, so a smaller group may be accepted.
    is_outnumbered = verdict.label is not Label.ADAPTIVE and most > len(verdict.group)
    if verdict.label is Label.ADAPTIVE and len(receipt.executions) == 1:
        reveal = receipt.executions[0].reveal
        # A provider that ran nothing can claim a kill, so a kill is always audited.
        return reveal is not None and reveal.exit_status not in KILLED
    least = 2 if verdict.label in (Label.QUORUM_2, Label.ADAPTIVE) else 1
    return not is_outnumbered and len(verdict.group) >= least
