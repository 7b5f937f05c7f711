"""Counts how many semantic mutations of real receipts `quorate verify` accepts: none may be.

`PYTHONPATH=tests python -m bench.receipt --json`. The receipts have several outcomes and rules.
Each mutation is signed again by one party. A mutation that its party may lawfully make is left out,
and the output says why and how many.
"""

import argparse
import json
import time
from collections import Counter
from functools import lru_cache

from quorate_protocol.messages.receipt import Receipt, document
from quorate_protocol.rules.receipts import receipt_checks, receipt_pins
from quorate_runtime.keys.bls import verify_round
from quorate_runtime.keys.crypto import recover
from support.markets.receipt_gallery import Specimen, gallery
from support.receipt_mutations import COORDINATOR, Mutation, mutations


@lru_cache(maxsize=1024)
def _is_round(key: bytes, number: int, signature: bytes) -> bool:
    return verify_round(key, number, signature)  # type: ignore[arg-type]


def is_accepted(specimen: Specimen, body: Receipt) -> bool:
    """Whether a reader with the deployment's file accepts a receipt."""
    real = specimen.body
    if not is_pinned(real, body):
        return False
    if not all(check.is_good for check in receipt_pins.list_checks(body, specimen.slots)):
        return False  # what --rpc compares
    return receipt_checks.verify(document(body), recover, _is_round).valid


def is_pinned(real: Receipt, body: Receipt) -> bool:
    """Whether the receipt names the identities of the deployment's file."""
    return (body.chain_id, body.stakes, body.beacon_key, body.timing, body.coordinator_key) == (
        real.chain_id,
        real.stakes,
        real.beacon_key,
        real.timing,
        real.coordinator_key,
    )


def reason(specimen: Specimen, found: Mutation) -> str:
    """Why the coordinator alone may make this change, or another check finds it; "" if it may not.

    Each reason names who else would notice.
    """
    if found.party != COORDINATOR:
        return ""
    real, body = specimen.body, found.body
    if _from_chain(real) != _from_chain(body):
        return "taken from the chain: --rpc refuses it"
    if real.ack.message != body.ack.message and body.witness is None:
        return "unwitnessed, another Ack: the client has the one that answered its order"
    first, second = real.verdict.message, body.verdict.message
    if first.seq != second.seq or first.read != second.read or first.time != second.time:
        return "seq, time or read lines of the Verdict: client and providers got the other one"
    if [x.message for x in real.batches] != [x.message for x in body.batches]:
        return "closing time or rate of a CommitSet: the providers got the other one"
    if _times(real) != _times(body):
        return "time of a CommitReceipt: the provider got the other one"
    if len(real.skips) != len(body.skips) or real.skips != body.skips:
        return "an Assignment to a provider that is claimed to be silent: its word alone"
    if real.compare != body.compare:
        return "tolerance or patterns: client and providers have the spec"
    if real.distances != body.distances:
        return "distance of two outputs: who may open them compares again"
    if _silent(body) > _silent(real):
        return "a Reveal left out: its provider alone knows that it revealed"
    return ""


def _silent(body: Receipt) -> int:
    return sum(item.reveal is None for item in body.executions)


def _from_chain(body: Receipt) -> tuple[object, ...]:
    keys = [item.operator_key for item in (*body.executions, *body.skips)]
    return (body.taken_from_chain, body.ack.message.slot_block, keys)


def _times(body: Receipt) -> list[int]:
    return [item.commit_receipt.message.time for item in body.executions]


def run(specimens: list[Specimen], most: int) -> dict[str, object]:
    """Returns the counts over at most `most` mutations, shared out over the receipts."""
    counts: Counter[str] = Counter()
    excluded: Counter[str] = Counter()
    missed: list[str] = []
    began = time.perf_counter()
    for specimen in specimens:
        assert is_accepted(specimen, specimen.body), specimen.name
        for found in mutations(specimen.body, specimen.keys, most // len(specimens)):
            if not is_accepted(specimen, found.body):
                counts[found.party] += 1
            elif why := reason(specimen, found):
                excluded[why] += 1
            else:
                path = ".".join(map(str, found.path))
                missed.append(f"{specimen.name}: {path} by {found.party}")
    refused = sum(counts.values())
    return {
        "receipts": [specimen.name for specimen in specimens],
        "mutations": refused + len(missed),
        "accepted": len(missed),
        "by_party": dict(counts),
        "excluded": dict(excluded),
        "missed": missed[:20],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Prints the counts, and ends with 1 if a mutation was accepted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--most", type=int, default=7_000)
    options = parser.parse_args()
    found = run(gallery(), options.most)
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))
    raise SystemExit(1 if found["accepted"] else 0)


if __name__ == "__main__":
    main()
