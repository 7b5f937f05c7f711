"""Checks of a receipt that need nobody but the receipt itself (PROTOCOL §7).

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
