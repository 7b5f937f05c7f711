"""Checks of a receipt that need only the receipt itself (PROTOCOL §7).

`verify` reports each check by name, so that a changed byte names the signature or hash that it
breaks. `receipt_draws` has the checks of what the beacon drew, `receipt_dates` those of times, and
`receipt_outcomes` those of the decision. Counts are bounded before any signature is checked.
"""

from collections.abc import Iterator

from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.codec.hashing import hash_list, hash_tuple
from quorate_protocol.limits import EXECUTIONS_MAX, POOLS_MAX
from quorate_protocol.messages.classes import determinism_class, pools_id
from quorate_protocol.messages.commitment import (
    assignment_id,
    commitment,
    result_digest,
    secret_hash,
)
from quorate_protocol.messages.envelope import AnyEnvelope, Recover, check_signature_form
from quorate_protocol.messages.offer import WITHDRAWN
from quorate_protocol.messages.receipt import RECEIPT_BYTES_MAX, VERSION, Check, Receipt, Report
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.agreement import PAIRS_MAX
from quorate_protocol.rules.receipts import (
    receipt_dates,
    receipt_draws,
    receipt_outcomes,
    repeat_batch,
)
from quorate_protocol.rules.receipts.receipt_draws import VerifyRound
from quorate_protocol.units import ZERO_HASH, Address, Comparator, Hash32

DRAWS_MAX = EXECUTIONS_MAX + 1
TRIES_MAX = DRAWS_MAX * len(receipt_draws.ALL_TRIES)
WITHDRAWALS_MAX = 4096


def verify(data: bytes, recover: Recover, verify_round: VerifyRound) -> Report:
    """Checks a receipt's file and reports each check. Bad content never raises. A file that cannot
    be read gives one failed check named `form`.
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
    bounds = _bounds(receipt)
    if not bounds.is_good:
        return Report((whole, bounds))
    try:
        return Report((whole, bounds, *_checks(receipt, recover, verify_round)))
    except (Refused, KeyError, IndexError, AssertionError, ArithmeticError) as error:
        # The body is well-formed but inconsistent: a member is missing, or a number is too large
        # for its type.
        return Report((whole, bounds, Check("consistency", False, str(error)[:200])))


def _checks(receipt: Receipt, recover: Recover, verify_round: VerifyRound) -> Iterator[Check]:
    domain = Domain(receipt.chain_id, receipt.stakes)
    yield Check("version", receipt.version == VERSION, f"this program knows only {VERSION}")
    yield Check(
        "hash:evidence",
        receipt.evidence().digest() == receipt.verdict.message.evidence_hash,
        "the rest of the receipt has the hash Verdict.evidenceHash",
    )
    yield from _signatures(receipt, domain, recover)
    yield from _orders(receipt, domain)
    yield from _executions(receipt, domain)
    yield from _terms(receipt)
    yield from _skips(receipt, domain)
    yield _withdrawals(receipt)
    yield from receipt_draws.checks(receipt, domain, verify_round)
    yield from repeat_batch.checks(receipt)
    yield from receipt_dates.checks(receipt)
    yield from _verdict(receipt)
    yield from receipt_outcomes.checks(receipt)


def _bounds(receipt: Receipt) -> Check:
    """Checks the counts of what costs work to check: signatures, pairings and proofs."""
    counts = (
        (len(receipt.batches), repeat_batch.ALL_EXECUTIONS_MAX),
        (len(receipt.executions), repeat_batch.ALL_EXECUTIONS_MAX),
        (
            sum(len(batch.message.ordered) for batch in receipt.batches),
            repeat_batch.ALL_EXECUTIONS_MAX,
        ),
        (len(repeat_batch.drawn_executions(receipt)), EXECUTIONS_MAX),
        (len(receipt.beacons), DRAWS_MAX),
        (len(receipt.skips), TRIES_MAX),
        (len(receipt.slots), TRIES_MAX),
        (len(receipt.withdrawals), WITHDRAWALS_MAX),
        (len(receipt.distances), PAIRS_MAX),
        (len(receipt.pools), POOLS_MAX),
    )
    good = all(count <= most for count, most in counts)
    return Check("bounds", good, f"at most {EXECUTIONS_MAX} executions and {TRIES_MAX} tries")


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
        receipted = item.commit_receipt
        yield _signed(
            f"commitReceipt[{number}]", receipted, receipt.coordinator_key, domain, recover
        )
    for number, skip in enumerate(receipt.skips):
        yield _signed(f"skip[{number}]", skip.assignment, receipt.coordinator_key, domain, recover)
        if skip.decline is not None:
            yield _signed(f"decline[{number}]", skip.decline, skip.operator_key, domain, recover)
    for number, gone in enumerate(receipt.withdrawals):
        yield _signed(f"withdrawal[{number}]", gone.offer, gone.operator_key, domain, recover)
    if receipt.witness is not None:
        order = receipt.order.message
        key = order.witness if order.witness != bytes(20) else session.session_key
        yield _signed("witness", receipt.witness, key, domain, recover)
    if receipt.stop is not None:
        yield _signed("stop", receipt.stop, session.session_key, domain, recover)


def _orders(receipt: Receipt, domain: Domain) -> Iterator[Check]:
    order, ack = receipt.order.message, receipt.ack.message
    yield Check(
        "hash:jobId",
        digest(domain, order) == ack.job_id == receipt.verdict.message.job_id,
        "the order's digest is the jobId",
    )
    yield Check(
        "order:session",
        (order.client, order.coordinator)
        == (receipt.session.message.client, receipt.session.message.coordinator),
        "order and session name one client and one coordinator",
    )
    yield Check(
        "order:fee", ack.fee_bps <= order.max_fee_bps, "the fee is at most the order's maxFeeBps"
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
            f"hash:commitReceipt[{number}]",
            item.commit_receipt.message.commit_hash == entry.commit_hash,
            "the CommitReceipt is for this commit",
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
    """Checks that all assignments are of this order and the executions by distinct parties
    (PROTOCOL §4, §5 Draw). No execution may cost more than the order allows.
    """
    order, pools = receipt.order.message, [pool.id() for pool in receipt.pools]
    sent = [item.assignment.message for item in receipt.executions]
    asked = [*sent, *(skip.assignment.message for skip in receipt.skips)]
    for number, message in enumerate(asked):
        named = (message.coordinator, message.spec_hash, message.price_tier, message.max_duration)
        ordered = (order.coordinator, order.spec_hash, order.price_tier, order.max_duration)
        good = named == ordered and message.price_per_hour <= order.max_price_per_hour
        good = good and message.pool in pools
        yield Check(f"terms[{number}]", good, "the assignment is of this order, at no higher price")
    indices = [item.index for item in receipt.executions]
    indices += [skip.index for skip in receipt.skips]
    yield Check("index", len(set(indices)) == len(indices), "each assignment has its own index")
    yield Check(
        "pool",
        _are_acked(receipt, pools),
        "the pools are those of the Ack, and the only one is the order's, if it names one",
    )
    yield Check(
        "class",
        all(
            item.commit.message.class_id
            == determinism_class(pool, item.accept.message.host, receipt.image, receipt.profile)
            for item, pool in zip(receipt.executions, (it.pool for it in sent), strict=True)
        ),
        "each execution is of the determinism class of its Accept's host, image and profile",
    )
    yield Check("parties", _are_distinct(receipt), "owners, payouts and networks are distinct")


def _are_acked(receipt: Receipt, pools: list[Hash32]) -> bool:
    """Results of several pools agree only within a tolerance."""
    for pool in receipt.pools:
        pool.validate()
    order, named = receipt.order.message, receipt.ack.message.pool
    is_any = order.pool == ZERO_HASH
    may_be_several = is_any and order.comparator is not Comparator.EXACT
    return (
        pools == sorted(set(pools))
        and len(receipt.taken_from_chain.list_lengths) == len(pools)
        and (len(pools) == 1 or (may_be_several and len(pools) > 1))
        and pools_id(tuple(pools)) == named
        and (is_any or order.pool == named)
    )


def _skips(receipt: Receipt, domain: Domain) -> Iterator[Check]:
    job_id = receipt.ack.message.job_id
    hashes: dict[int, list[Hash32]] = {}
    for number, skip in enumerate(receipt.skips):
        hashed = digest(domain, skip.assignment.message)
        said = skip.decline.digest(domain) if skip.decline is not None else ZERO_HASH
        hashes.setdefault(skip.batch, []).append(hash_tuple(hashed, said))
        yield Check(
            f"hash:skip[{number}]",
            assignment_id(job_id, skip.index, skip.blind) == skip.assignment.message.assignment_id,
            "the blind gives the assignmentId",
        )
        if skip.decline is not None:
            yield Check(
                f"hash:decline[{number}]",
                skip.decline.message.assignment_hash == hashed,
                "the Decline is for this assignment",
            )
    for number, batch in enumerate(receipt.batches):
        yield Check(
            f"hash:skips[{number}]",
            batch.message.skips_hash == hash_list(tuple(hashes.get(number, ()))),
            "the skips have the hash CommitSet.skipsHash",
        )
    places = receipt_draws.attempts(receipt.skips)
    yield Check("skips:order", places == sorted(set(places)), "skips in order of their tries")


def _withdrawals(receipt: Receipt) -> Check:
    said = [item.offer.message for item in receipt.withdrawals]
    owners = [message.provider for message in said]
    listed = {item.slot.owner for item in receipt.slots if item.slot is not None}
    return Check(
        "withdrawals",
        all(message.expires == WITHDRAWN for message in said)
        and owners == sorted(set(owners))
        and not listed & set(owners),
        "each is a withdrawal of another owner, which no slot of the list belongs to",
    )


def _are_distinct(receipt: Receipt) -> bool:
    parties = receipt.taken_from_chain.parties
    if [(item.assignment.message.provider, item.operator_key) for item in receipt.executions] != [
        (party.owner, party.operator_key) for party in parties
    ]:
        return False
    drawn = [parties[place] for place in repeat_batch.drawn_executions(receipt)]
    members = (
        {party.owner for party in drawn},
        {party.payout for party in drawn},
        {party.network for party in drawn},
    )
    return all(len(found) == len(drawn) for found in members)


def _verdict(receipt: Receipt) -> Iterator[Check]:
    verdict = receipt.verdict.message
    members = [item.commit.message.assignment_hash for item in receipt.executions]
    named = (*verdict.group, *verdict.faulted)
    yield Check(
        "verdict:members",
        len(set(members)) == len(members)
        and len(set(named)) == len(named)
        and set(named) <= set(members),
        "group and faulted are executions, each named once",
    )
