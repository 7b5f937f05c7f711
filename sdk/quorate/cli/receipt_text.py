"""What `quorate verify` prints of a receipt: who signed, what was decided, who is paid what."""

from quorate_protocol.codec.cids import RAW, cid_text
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.rules.receipts.receipt_bill import bill_of, paid_by_client, ran_of, result_of
from quorate_protocol.rules.receipts.receipt_draws import is_fast, is_round_missing
from quorate_protocol.rules.settlement import Bill
from quorate_protocol.units import Address, Amount, Hash32, usd

Json = dict[str, object]


def summary_of(body: Receipt) -> Json:
    """Returns the facts of a checked receipt, as JSON. Amounts are in millionths of a USD."""
    order, verdict = body.order.message, body.verdict.message
    bill = bill_of(body)
    return {
        "chain_id": body.chain_id,
        "stakes": _hex(body.stakes),
        "beacon_key": _hex(body.beacon_key),
        "coordinator": _hex(order.coordinator),
        "coordinator_key": _hex(body.coordinator_key),
        "client": _hex(order.client),
        "job": _hex(body.ack.message.job_id),
        "spec": cid_text(RAW, order.spec_hash),
        "rule": _name(verdict.label.name),
        "outcome": _name(verdict.outcome.name),
        "witnessed": body.witness is not None,
        "fast": is_fast(body),
        "executions": _executions(body, bill),
        "skipped": [_hex(skip.assignment.message.provider) for skip in body.skips],
        "silent": [
            _hex(skip.assignment.message.provider) for skip in body.skips if skip.decline is None
        ],
        "missing_round": body.exhausted_by if is_round_missing(body) else None,
        "withdrawn": [_hex(item.offer.message.provider) for item in body.withdrawals],
        "charged_micro_usd": bill.split.charged,
        "fee_micro_usd": bill.split.fee,
        "fund_micro_usd": bill.split.fund,
    }


def lines_of(summary: Json) -> list[str]:
    names = ("chain_id", "stakes", "beacon_key", "coordinator", "client", "job", "spec")
    silent, skipped = summary["silent"], summary["skipped"]
    assert isinstance(silent, list) and isinstance(skipped, list)
    is_seen, is_checked = summary["witnessed"], summary["rule"] != "unverified"
    text = "yes" if is_seen else "no: the coordinator and the primary could choose the beacon round"
    if is_seen and summary["fast"]:
        text = "yes: the client knew the Ack before the round that drew all executions"
    if not is_checked:
        text = "no: nobody was drawn to check the result"
    lines = [f"{'witnessed':12} {text}"]
    lines += [
        f"{'skipped':12} {provider}"
        + (": silent, by the coordinator's word" if provider in silent else ": declined")
        for provider in skipped
    ]
    if summary["missing_round"] is not None:
        told = f"beacon round {summary['missing_round']}, by the coordinator's word"
        lines.append(f"{'missing':12} {told}")
    lines += [f"{name.replace('_', ' '):12} {summary[name]}" for name in names]
    rule = f"{summary['rule']}" + ("" if is_seen or not is_checked else ", unwitnessed")
    lines.append(f"{'outcome':12} {summary['outcome']} (rule {rule})")
    executions = summary["executions"]
    assert isinstance(executions, list)
    for item in executions:
        lines.append(f"{'execution':12} {item['provider']} {item['role']}: {item['text']}")
    charged, fee, fund = (summary[f"{name}_micro_usd"] for name in ("charged", "fee", "fund"))
    assert isinstance(charged, int) and isinstance(fee, int) and isinstance(fund, int)
    lines.append(
        f"{'charged':12} {usd(charged)} USD, of it {usd(fee)} USD fee and {usd(fund)} USD "
        "to the audit fund"
    )
    return lines


def _executions(body: Receipt, bill: Bill) -> list[Json]:
    by_client = paid_by_client(body)
    by_fund = {credit.assignment_hash: credit.amount for credit in bill.by_fund}
    found: list[Json] = []
    first = "auditor" if is_fast(body) else "primary"
    for number, (item, ran) in enumerate(zip(body.executions, ran_of(body), strict=True)):
        named = ran.assignment_hash
        standing = _standing(body, named, ran.result)
        paid, owed = by_client.get(named, Amount(0)), by_fund.get(named, Amount(0))
        text = f"{standing}, {usd(paid)} USD from the client"
        text += f", up to {usd(owed)} USD from the fund" if owed else ""
        result = result_of(item)
        found.append(
            {
                "provider": _hex(item.assignment.message.provider),
                "role": "repeat" if ran.repeats else "auditor" if number else first,
                "standing": standing,
                "result": _hex(result) if result is not None else None,
                "paid_micro_usd": paid,
                "fund_owes_micro_usd": owed,
                "text": text,
            }
        )
    return found


def _standing(body: Receipt, named: Hash32, result: Hash32 | None) -> str:
    if named in body.verdict.message.group:
        return "agreed"
    if named in body.verdict.message.faulted:
        return "faulted"
    return "silent" if result is None else "revealed"


def _name(text: str) -> str:
    return text.lower().replace("_", "-")


def _hex(value: bytes | Address) -> str:
    return f"0x{value.hex()}"
