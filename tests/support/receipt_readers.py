"""The three readers of a receipt: `quorate verify`, the job's client, and one of its providers."""

from quorate.base.errors import EvidenceError
from quorate.trust import charge_verification
from quorate.trust.charge_verification import HasWitnessed, OwnRecord, none_witnessed
from quorate.trust.receipt_verification import verify
from quorate_node.core.phases import Done, Execution
from quorate_node.market import verdict_checks
from quorate_protocol.messages.receipt import Receipt, document
from quorate_protocol.refusals import Refused
from quorate_protocol.units import UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.bls import verify_round
from quorate_runtime.keys.crypto import recover
from support.markets.provider_world import make_terms
from support.markets.scripted_market import COORDINATOR, DOMAIN, INFO, STATEMENT, Market

VERIFY, CLIENT, PROVIDER = "verify", "client", "provider"
READERS = (VERIFY, CLIENT, PROVIDER)


def refused_by(market: Market, body: Receipt) -> tuple[str, ...]:
    """Returns which readers refuse a receipt. The client knows nothing but its order and Ack, and
    the provider got exactly this Verdict and CommitSet.
    """
    found = [] if verify(document(body)).valid else [VERIFY]
    try:
        charge_verification.check_receipt(own_record(market, body), document(body), body.verdict)
    except EvidenceError:
        found.append(CLIENT)
    try:
        check_as_provider(market, body, executed(market, body))
    except Refused:
        found.append(PROVIDER)
    return tuple(found)


def own_record(
    market: Market, body: Receipt, has_witnessed: HasWitnessed = none_witnessed
) -> OwnRecord:
    """What the client of a receipt knows by itself."""
    order = body.order.message
    return OwnRecord(
        order,
        body.ack.message,
        market.specs[order.spec_hash],
        DOMAIN,
        STATEMENT.address,
        INFO.public_key,
        market.core.rules.timing,
        recover,
        verify_round,
        has_witnessed,
    )


def executed(market: Market, body: Receipt, member: int = 0) -> Execution:
    """Returns a provider's record of an execution of this receipt, with Verdict and CommitSet."""
    item = body.executions[member]
    count, batch = 0, body.batches[0]
    for batch in body.batches:
        count += len(batch.message.ordered)
        if member < count:
            break
    commit = item.commit.message
    return Execution(
        item.assignment,
        commit.assignment_hash,
        market.specs[body.order.message.spec_hash],
        (),
        commit.class_id,
        item.accept.message,
        UnixSeconds(0),
        Done(commit, body.verdict, UnixSeconds(0), batch),
    )


def check_as_provider(market: Market, body: Receipt, execution: Execution) -> None:
    """Checks a receipt as the daemon of that execution does. Raises Refused or Unavailable."""
    keys = {COORDINATOR.address: STATEMENT.address}
    terms = replace(make_terms(), domain=DOMAIN, beacon=INFO, statement_keys=keys)
    verdict_checks.check_receipt(execution, terms, document(body))
