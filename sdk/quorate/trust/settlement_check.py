"""Compares a payroll or a redemption with its coordinator's public log: was what it paid earned?

The transaction names the log's root at that time. Up to that root each provider's pay in the log is
summed. `compare` is pure.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from quorate.base.errors import EvidenceError, UsageError, translated
from quorate_contracts.abi_codec import decode
from quorate_contracts.artifact import artifact
from quorate_contracts.deploy import Deployment
from quorate_contracts.encodings import read_pair
from quorate_contracts.events import decode_log
from quorate_contracts.generated.escrow import Payroll, Receipts, Redeemed
from quorate_protocol.messages import envelope
from quorate_protocol.messages.signed import Summary
from quorate_protocol.messages.views import ReputationHead
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.types import Receipt
from quorate_runtime.http import log_file

PAYROLL, REDEMPTION = "payroll", "redemption"


class Settlement(Struct, frozen=True):
    """What one transaction paid, by the chain. `paid` is cumulative, by the other account.

    In a payroll these are the payees of `coordinator`; in a redemption, its clients. A provider
    that redeems states no root: then `coordinator` is its payer, and the whole log counts.
    """

    kind: str
    coordinator: Address
    root: Hash32
    paid: Mapping[Address, Amount]
    of_providers: bool


class Row(Struct, frozen=True):
    """One account of a settlement. `logged` is None if the log does not name it."""

    account: Address
    paid: Amount
    logged: Amount | None
    verdict: str  # covered | more | unknown


class Comparison(Struct, frozen=True):
    """What a settlement and the log say together. `lines` of the log have the settlement's root."""

    lines: int | None
    rows: tuple[Row, ...]
    unproven: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether the root is the log's, and no provider was paid more than the log says."""
        return self.lines is not None and all(row.verdict != "more" for row in self.rows)


class PayLog(Struct, frozen=True):
    """A checked log: its root after each line, and what each line credited."""

    head: ReputationHead
    roots: tuple[Hash32, ...]  # `roots[n]`: of the first n lines
    credits: tuple[tuple[tuple[Address, Amount], ...], ...]

    def pay_until(self, lines: int) -> dict[Address, Amount]:
        found: dict[Address, Amount] = {}
        for line in self.credits[:lines]:
            for provider, pay in line:
                found[provider] = Amount(found.get(provider, 0) + pay)
        return found


def compare(settlement: Settlement, log: PayLog) -> Comparison:
    lines: int | None = len(log.credits)
    if settlement.root != ZERO_HASH:
        lines = next((n for n, root in enumerate(log.roots) if root == settlement.root), None)
    if lines is None:
        return Comparison(
            None, (), ("the log has no root like the one that the transaction names",)
        )
    logged = log.pay_until(lines)
    unproven = ["an order with an escrow of its own is in the log too, and `Jobs` pays it"]
    if not settlement.of_providers:
        unproven = ["the log names no clients: what each of them owed is known to it alone"]
    rows = []
    for account, paid in sorted(settlement.paid.items()):
        known = logged.get(account) if settlement.of_providers else None
        verdict = "unknown" if known is None else "covered" if paid <= known else "more"
        rows.append(Row(account, paid, known, verdict))
        if known is None and settlement.of_providers:
            unproven.append(
                f"0x{account.hex()} is in no line of the log: a client that left gets its refunds "
                "by payroll, which only that client can check"
            )
    if settlement.root == ZERO_HASH and settlement.of_providers:
        unproven.append("the transaction names no root, so it is compared with the whole log")
        unproven.append("what a running rental earned since the last payroll is in no line yet")
    return Comparison(lines, tuple(rows), tuple(unproven))


def read_pay(path: Path) -> PayLog:
    """Reads and checks a saved log. Raises EvidenceError, UsageError."""
    try:
        with path.open("rb") as file:
            head = log_file.head_line(file)
            return pay_log(head, file)
    except OSError as error:
        raise UsageError(f"--log {path}: {error.strerror or error}") from error
    except Refused as refused:
        raise EvidenceError(f"{path}: {refused.detail}") from refused


def pay_log(head: ReputationHead, body: BinaryIO) -> PayLog:
    """Checks the lines from the file's place on, and sums their pay. Raises Refused."""
    begin = body.tell()
    folded = log_file.folded_file(head, body)
    body.seek(begin)
    lines = [envelope.decode(line, Summary).message for line in log_file.lines_of(body)]
    credits = tuple(tuple((one.provider, one.pay) for one in each.executions) for each in lines)
    return PayLog(head, folded.roots, credits)


async def read_settlement(
    client: ChainClient, deployment: Deployment, transaction: Hash32
) -> Settlement:
    """Reads what a transaction paid. Raises RefusedError if it is no payroll and no redemption."""
    with translated():
        receipt = await client.receipt(transaction)
        if receipt is None or not receipt.success:
            told = "reverted" if receipt else "is in no block"
            raise Refused(Code.UNKNOWN, f"transaction 0x{transaction.hex()} {told}")
        call = await client.call_data(transaction)
        found = _payroll(deployment, receipt, call) or _redemption(deployment, receipt)
        if found is None:
            raise Refused(
                Code.UNSUPPORTED,
                f"transaction 0x{transaction.hex()} is no payroll and no redemption that was sent "
                "to the Escrow itself",
            )
        return found


def _payroll(deployment: Deployment, receipt: Receipt, call: bytes) -> Settlement | None:
    """Whom it paid stands in the call's data; that it was paid, in the event."""
    form = artifact("Escrow").functions["payroll"]
    events = [event for event in _events(deployment, receipt) if isinstance(event, Payroll)]
    if call[:4] != form.selector or len(events) != 1:
        return None
    payer, root, pays = decode(form.inputs, call[4:])
    if (events[0].payer, events[0].root) != (payer, root):
        return None
    return Settlement(PAYROLL, events[0].payer, events[0].root, dict(map(read_pair, pays)), True)


def _redemption(deployment: Deployment, receipt: Receipt) -> Settlement | None:
    events = list(_events(deployment, receipt))
    redeemed = [event for event in events if isinstance(event, Redeemed)]
    roots = [event.root for event in events if isinstance(event, Receipts)]
    if not redeemed:
        return None
    if roots:
        paid = {event.payer: event.paid for event in redeemed}
        return Settlement(REDEMPTION, redeemed[0].payee, roots[0], paid, False)
    first = redeemed[0]
    return Settlement(REDEMPTION, first.payer, ZERO_HASH, {first.payee: first.paid}, True)


def _events(deployment: Deployment, receipt: Receipt) -> list[object]:
    names = {deployment.escrow: "Escrow"}
    found = (decode_log(names, log.address, log.topics, log.data) for log in receipt.logs)
    return [event for event in found if event is not None]
