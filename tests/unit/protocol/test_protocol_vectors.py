"""Tests that the test vectors agree with this code and with others: eth-account, eth-abi, a
second tree.
"""

import json
from itertools import zip_longest
from typing import Any

import pytest
from eth_abi import encode as abi_encode
from eth_account.messages import encode_typed_data

from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import MESSAGE_TYPES
from quorate_protocol.units import Address
from quorate_runtime.keys.crypto import KeySigner, recover
from vectors import generate

LOADED: dict[str, Any] = {
    name: json.loads((generate.FOLDER / f"{name}.json").read_text()) for name in generate.FILES
}


def raw(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def hash_of(types: str, *values: object) -> bytes:
    return keccak256(
        abi_encode(
            types.split(),
            [raw(v) if isinstance(v, str) and v.startswith("0x") else v for v in values],
        )
    )


@pytest.mark.rule("0.6", "3.15", "5.13")
@pytest.mark.parametrize("name", generate.FILES)
def test_vector_files_hold_what_the_code_computes(name: str) -> None:
    assert (generate.FOLDER / f"{name}.json").read_text() == generate.text_of(name)


def _typed(type_string: str) -> dict[str, list[dict[str, str]]]:
    """Returns eth-account's type table, made from an encodeType string."""
    found = {}
    for part in type_string.split(")")[:-1]:
        name, members = part.split("(")
        found[name] = [
            {"type": item.split(" ")[0], "name": item.split(" ")[1]} for item in members.split(",")
        ]
    return found


@pytest.mark.rule("0.7", "3.1", "3.10")
@pytest.mark.parametrize("vector", LOADED["eip712"]["messages"], ids=lambda item: item["type"])
def test_eth_account_signs_the_same_digest(vector: dict[str, Any]) -> None:
    domain = LOADED["eip712"]["domain"]
    types = _typed(vector["typeString"])
    types["EIP712Domain"] = [
        {"name": "name", "type": "string"},
        {"name": "version", "type": "string"},
        {"name": "chainId", "type": "uint256"},
        {"name": "verifyingContract", "type": "address"},
    ]
    message = _numbers(vector["body"], vector["type"], types)
    full = {
        "types": types,
        "primaryType": vector["type"],
        "domain": {
            "name": "Quorate",
            "version": "1",
            "chainId": domain["chainId"],
            "verifyingContract": domain["verifyingContract"],
        },
        "message": message,
    }
    signable = encode_typed_data(full_message=full)
    assert keccak256(b"\x19" + signable.version + signable.header + signable.body) == raw(
        vector["digest"]
    )
    assert signable.body == raw(vector["structHash"]) and signable.header == raw(
        domain["separator"]
    )


def _numbers(
    body: dict[str, Any], kind: str, types: dict[str, list[dict[str, str]]]
) -> dict[str, Any]:
    """Returns the message with the codec's decimal strings as integers."""
    found: dict[str, Any] = {}
    for member in types[kind]:
        value, base = body[member["name"]], member["type"].removesuffix("[]")
        items = value if isinstance(value, list) else [value]
        plain = [
            _numbers(v, base, types) if base in types else int(v) if base.startswith("uint") else v
            for v in items
        ]
        found[member["name"]] = plain if isinstance(value, list) else plain[0]
    return found


@pytest.mark.parametrize("vector", LOADED["eip712"]["messages"], ids=lambda item: item["type"])
def test_messages_decode_and_sign_as_recorded(vector: dict[str, Any]) -> None:
    header = LOADED["eip712"]
    domain = Domain(
        header["domain"]["chainId"], Address(raw(header["domain"]["verifyingContract"]))
    )
    message = canonical.from_json(MESSAGE_TYPES[vector["type"]], vector["body"])
    envelope = seal(domain, message, KeySigner(raw(header["secret"])).sign)
    assert envelope.sig.hex() == vector["sig"][2:]
    assert recover(digest(domain, message), envelope.sig).hex() == header["signer"][2:]
    assert digest(Domain(1, domain.verifying_contract), message) != digest(domain, message), (
        "another chain, another digest"
    )


@pytest.mark.rule("3.6")
def test_every_message_has_vectors() -> None:
    assert {vector["type"] for vector in LOADED["eip712"]["messages"]} == set(MESSAGE_TYPES)


@pytest.mark.rule("0.6", "3.12", "3.15", "3.29", "5.19")
@pytest.mark.parametrize(
    "item", LOADED["commitments"]["commitments"], ids=lambda item: str(item["index"])
)
def test_commitments_agree_with_eth_abi(item: dict[str, Any]) -> None:
    assert hash_of("uint16 bytes32", item["exitStatus"], item["outputDigest"]) == raw(
        item["resultDigest"]
    )
    assert hash_of("bytes32 uint256 bytes32", item["jobId"], item["index"], item["blind"]) == raw(
        item["assignmentId"]
    )
    parts = (item["assignmentHash"], item["provider"], item["salt"], item["resultDigest"])
    assert hash_of("bytes32 address bytes32 bytes32", *parts) == raw(item["commitment"])
    assert keccak256(raw(item["secret"])) == raw(item["secretHash"])


@pytest.mark.rule("0.8", "0.9")
def test_merkle_roots_and_lists_agree_with_a_second_implementation() -> None:
    entries = [raw(item) for item in LOADED["commitments"]["entries"]]
    for case in LOADED["commitments"]["merkleRoots"]:
        level = sorted(entries[: case["count"]])
        while len(level) > 1:
            level = [
                keccak256(a + b) if b is not None else a
                for a, b in zip_longest(level[::2], level[1::2])
            ]
        assert (level[0] if level else bytes(32)) == raw(case["root"])
    for case in LOADED["commitments"]["listHashes"]:
        assert keccak256(b"".join(entries[: case["count"]])) == raw(case["hash"])


@pytest.mark.rule("0.8")
def test_logs_agree_with_a_second_implementation() -> None:
    entries = [raw(item) for item in LOADED["commitments"]["entries"]]
    for case in LOADED["commitments"]["logs"]:
        count, left, peaks = case["count"], entries[: case["count"]], []
        for size in (8, 4, 2, 1):
            if count & size:
                level, left = left[:size], left[size:]
                while len(level) > 1:
                    level = [keccak256(a + b) for a, b in zip(level[::2], level[1::2], strict=True)]
                peaks.append(level[0])
        assert [raw(item) for item in case["peaks"]] == peaks
        folded = peaks[-1] if peaks else bytes(32)
        for peak in peaks[-2::-1]:
            folded = keccak256(peak + folded)
        assert raw(case["root"]) == (
            hash_of("uint256 bytes32", count, folded) if count else bytes(32)
        )


@pytest.mark.rule("3.24")
def test_ballots_agree_with_eth_abi() -> None:
    for case in LOADED["commitments"]["ballots"]:
        padded = [*case["digests"], *["0x" + "00" * 32] * (3 - len(case["digests"]))]
        types = "uint256 address bytes32 bytes32 bytes32 bytes32"
        assert hash_of(types, case["caseId"], case["juror"], case["salt"], *padded) == raw(
            case["ballot"]
        )


@pytest.mark.rule("2.17", "5.13", "5.15", "5.16")
@pytest.mark.parametrize("case", LOADED["draws"]["draws"], ids=lambda item: item["seed"][:10])
def test_draws_agree_with_eth_abi(case: dict[str, Any]) -> None:
    slots = LOADED["draws"]["slots"]
    seed = hash_of(
        "bytes32 bytes32 bytes32 uint256",
        case["randomness"],
        case["jobId"],
        case["secret"],
        case["batch"],
    )
    assert seed == raw(case["seed"])
    value = (
        int.from_bytes(keccak256(abi_encode(["bytes32", "string"], [seed, "audit"])), "big") % 10**6
    )
    assert case["auditedAt"] == [
        ppm for ppm in (0, 1, 100_000, 500_000, 999_999, 1_000_000) if value < ppm
    ]
    tries = [
        int.from_bytes(
            keccak256(abi_encode(["bytes32", "string", "uint256"], [seed, "slot", i])), "big"
        )
        % len(slots)
        for i in range(64)
    ]
    assert case["tries"] == tries[:16]
    taken, drawn = [slots[0]], []
    for attempt, index in enumerate(tries):
        same = any(
            slots[index][key] == other[key]
            for other in taken
            for key in ("owner", "payout", "network")
        )
        if index != 2 and not same:
            taken.append(slots[index])
            drawn.append({"attempt": attempt, "index": index})
    assert case["auditors"] == drawn


def test_eligible_roots_agree_with_eth_abi() -> None:
    types, entries = "uint256 address address address bytes32 uint256 uint256", []
    for slot in LOADED["draws"]["slots"]:
        fields = ("index", "owner", "operatorKey", "payout", "network", "activeFrom", "activeUntil")
        entries.append(
            hash_of(types, *(slot[field] for field in fields)) if slot["index"] != 2 else bytes(32)
        )
    for length, root in enumerate(LOADED["draws"]["eligibleRoots"]):
        left, peaks = entries[:length], []
        for size in (8, 4, 2, 1):
            if length & size:
                level, left = left[:size], left[size:]
                while len(level) > 1:
                    level = [keccak256(a + b) for a, b in zip(level[::2], level[1::2], strict=True)]
                peaks.append(level[0])
        folded = peaks[-1] if peaks else bytes(32)
        for peak in peaks[-2::-1]:
            folded = keccak256(peak + folded)
        assert raw(root) == (hash_of("uint256 bytes32", length, folded) if length else bytes(32))
