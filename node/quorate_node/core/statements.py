"""Checks a coordinator's statement of its debt to this provider."""

from quorate_node.core import events
from quorate_node.core.terms import Terms
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.refusals import Code, Refused


def check_statement(
    event: events.StatementReceived, known: Envelope[Statement] | None, terms: Terms
) -> None:
    """Raises Refused unless the statement is the known one or a newer one that fits it.

    With EQUIVOCATION and BAD_AMOUNT the two statements contradict each other. The coordinator's own
    signatures then prove its fault.
    """
    message = event.statement.message
    if terms.statement_keys.get(event.coordinator) != event.signer:
        raise Refused(Code.WRONG_SIGNER, "statement: not signed by the coordinator's statement key")
    if message.provider != terms.provider:
        raise Refused(Code.NOT_YOURS, "statement: it is for another provider")
    if known is None:
        return
    before = known.message
    if message.seq < before.seq:
        raise Refused(Code.STALE, f"statement: the newest one here has number {before.seq}")
    if message.seq == before.seq and message != before:
        raise Refused(
            Code.EQUIVOCATION,
            f"statement: the coordinator signed another one with number {message.seq}",
        )
    if message.final < before.final:
        raise Refused(
            Code.BAD_AMOUNT, f"statement: final fell from {before.final} to {message.final}"
        )
