"""Writes the protocol's vectors: `PYTHONPATH=tests python -m vectors.generate`.

Tests compare them with the code, so a change here is a change of the protocol. Python and contract
tests read the same files, and a new implementation of the protocol can start from them. Values are
JSON. Byte strings are 0x-hex, and integers above 2^53 are decimal strings, as in the codec.
"""

import json
from enum import IntEnum
from pathlib import Path
from typing import Any, get_args, get_origin

from msgspec.structs import fields

from quorate_protocol.codec import canonical
from quorate_protocol.codec.declared_types import is_value_type
from quorate_protocol.codec.eip712 import Domain, digest, struct_hash, type_string
from quorate_protocol.codec.hashing import hash_list, hash_tuple, keccak256
from quorate_protocol.codec.merkle import Log, merkle_root, prove
from quorate_protocol.messages import commitment
from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import MESSAGE_TYPES
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.rules import audit_draw
from quorate_protocol.units import WIRE_TYPES, Address, BlockNumber, ExitStatus, Hash32, Ppm
from quorate_runtime.keys.crypto import KeySigner

FOLDER = Path(__file__).parent
DOMAIN = Domain(31337, Address(bytes(range(20))))
SECRET = b"\x42" * 32
Json = Any


def value_of(hint: Any, name: str, number: int = 0) -> Any:
    """A value of a message field that depends on its name alone; every byte of its width is
    used.
    """
    if get_origin(hint) is tuple:
        return tuple(value_of(get_args(hint)[0], name, index) for index in range(3))
    if is_value_type(hint):
        return message_of(hint, number)
    if hint is bool:
        return len(name) % 2 == 0
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return list(hint)[number % len(hint)]
    solidity, width = WIRE_TYPES[hint.__name__]
    seed = keccak256(f"{name}/{number}".encode())
    return (
        int.from_bytes(seed, "big") % (1 << width) if solidity.startswith("uint") else seed[:width]
    )


def message_of(kind: type, number: int = 0) -> Any:
    """A message with a value in every field."""
    return kind(**{f.name: value_of(f.type, f.name, number) for f in fields(kind)})


def eip712_vectors() -> Json:
    """Every message of PROTOCOL §3: its type, a body, its struct hash, its digest and a
    signature.
    """
    signer = KeySigner(SECRET)
    messages = []
    for name, kind in MESSAGE_TYPES.items():
        for number in range(2):
            message = message_of(kind, number)
            messages.append(
                {
                    "type": name,
                    "typeString": type_string(kind),
                    "body": canonical.to_json(message),
                    "structHash": _hex(struct_hash(message)),
                    "digest": _hex(digest(DOMAIN, message)),
                    "sig": _hex(seal(DOMAIN, message, signer.sign).sig),
                }
            )
    domain = {
        "chainId": DOMAIN.chain_id,
        "verifyingContract": _hex(DOMAIN.verifying_contract),
        "separator": _hex(DOMAIN.separator()),
    }
    return {
        "domain": domain,
        "secret": _hex(SECRET),
        "signer": _hex(signer.address),
        "messages": messages,
    }


def commitment_vectors() -> Json:
    """Ids, commitments, list hashes and Merkle roots."""
    found = []
    for number in range(4):
        job, blind, salt, output = (
            _hash(f"{name}/{number}") for name in ("job", "blind", "salt", "output")
        )
        assigned, provider = _hash(f"assigned/{number}"), Address(_hash(f"provider/{number}")[:20])
        status = ExitStatus((0, 3, 512, 65535)[number])
        result = commitment.result_digest(status, output)
        case = {
            "jobId": job,
            "index": number,
            "blind": blind,
            "assignmentId": commitment.assignment_id(job, number, blind),
            "assignmentHash": assigned,
            "provider": provider,
            "salt": salt,
            "exitStatus": status,
            "outputDigest": output,
            "resultDigest": result,
            "commitment": commitment.commitment(assigned, provider, salt, result),
            "secret": blind,
            "secretHash": commitment.secret_hash(blind),
        }
        found.append({key: _plain(item) for key, item in case.items()})
    entries = [_hash(f"entry/{number}") for number in range(9)]
    roots = [
        {"count": count, "root": _hex(merkle_root(frozenset(entries[:count])))}
        for count in range(10)
    ]
    logs = [_log(entries[:count]) for count in range(10)]
    lists = [
        {"count": count, "hash": _hex(hash_list(tuple(entries[:count])))} for count in range(4)
    ]
    ballots = [_ballot(number) for number in range(3)]
    plain = [_hex(item) for item in entries]
    return {
        "commitments": found,
        "entries": plain,
        "merkleRoots": roots,
        "logs": logs,
        "listHashes": lists,
        "ballots": ballots,
    }


def _log(entries: list[Hash32]) -> Json:
    """A log's root, and where the entry in its middle stands."""
    log = Log()
    for entry in entries:
        log = log.append(entry)
    found: dict[str, Json] = {
        "count": log.count,
        "peaks": [_hex(peak) for peak in log.peaks],
        "root": _hex(log.root()),
    }
    if entries:
        shown = prove(entries, log.count // 2)
        found |= {"index": shown.index, "siblings": [_hex(item) for item in shown.siblings]}
        found |= {"otherPeaks": [_hex(item) for item in shown.other_peaks]}
    return found


def _ballot(number: int) -> Json:
    digests = [_hash(f"digest/{index}") for index in range(number + 1)]
    padded = (*digests, *[Hash32(bytes(32))] * (2 - number))
    juror, salt = Address(_hash("juror")[:20]), _hash(f"ballot/{number}")
    hashed = hash_tuple(number + 1, juror, salt, *padded)
    return {
        "caseId": number + 1,
        "juror": _hex(juror),
        "salt": _hex(salt),
        "digests": [_hex(d) for d in digests],
        "ballot": _hex(hashed),
    }


def draw_vectors() -> Json:
    """Seeds, audit decisions, slot tries and the auditors that come of them; owner 3 shares its
    network with owner 1.
    """
    slots = [
        StakeSlot(
            index,
            _address(f"owner/{index % 5}"),
            _address(f"key/{index}"),
            _address(f"payout/{index % 5}"),
            _hash(f"network/{1 if index % 5 == 3 else index % 5}"),
            BlockNumber(1),
        )
        for index in range(8)
    ]
    eligible = {slot.index: slot for slot in slots if slot.index != 2}
    cases = []
    for number in range(6):
        randomness, job_id, secret = (
            _hash(f"randomness/{number}"),
            _hash(f"drawn/{number}"),
            _hash(f"x/{number}"),
        )
        seed = audit_draw.seed(randomness, job_id, secret, number % 3)
        drawn = list(audit_draw.draw(seed, len(slots), eligible, [slots[0]]))
        cases.append(
            {
                "randomness": _hex(randomness),
                "jobId": _hex(job_id),
                "secret": _hex(secret),
                "batch": number % 3,
                "seed": _hex(seed),
                "auditedAt": [
                    ppm
                    for ppm in (0, 1, 100_000, 500_000, 999_999, 1_000_000)
                    if audit_draw.is_audited(seed, Ppm(ppm))
                ],
                "tries": [
                    audit_draw.slot_index(seed, attempt, len(slots)) for attempt in range(16)
                ],
                "auditors": [{"attempt": item.attempt, "index": item.slot.index} for item in drawn],
            }
        )
    lists = [
        EligibleList([slot for slot in eligible.values() if slot.index < length], length)
        for length in range(len(slots) + 1)
    ]
    roots = [_hex(item.root) for item in lists]  # of the list's beginnings, with nobody at index 2
    return {
        "slots": [canonical.to_json(slot) for slot in slots],
        "eligibleRoots": roots,
        "primary": 0,
        "draws": cases,
    }


def _hash(name: str) -> Hash32:
    return keccak256(name.encode())


def _address(name: str) -> Address:
    return Address(_hash(name)[:20])


def _hex(value: bytes) -> str:
    return "0x" + value.hex()


def _plain(value: object) -> Json:
    return _hex(value) if isinstance(value, bytes) else value


FILES = {"eip712": eip712_vectors, "commitments": commitment_vectors, "draws": draw_vectors}


def text_of(name: str) -> str:
    """What a file must hold."""
    return json.dumps(FILES[name](), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    for each in FILES:
        (FOLDER / f"{each}.json").write_text(text_of(each), encoding="utf-8")
