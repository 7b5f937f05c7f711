"""Tests the strict text and binary forms of CIDs."""

import base64
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate_content.dag.cid import (
    Cid,
    Codec,
    from_digest,
    inline_cid,
    parse,
    parse_bytes,
    parse_prefix,
    raw_cid,
    typed_cid,
)
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32

GOOD = "bafkreifzjut3te2nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e"
GOOD_V0 = "QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn"


def v1_text(raw: bytes) -> str:
    return "b" + base64.b32encode(raw).decode().lower().rstrip("=")


@given(st.binary(min_size=32, max_size=32), st.sampled_from(list(Codec)), st.sampled_from([0, 1]))
def test_text_and_bytes_survive_a_round_trip(digest: bytes, codec: Codec, version: int) -> None:
    cid = Cid(version, Codec.DAG_PB if version == 0 else codec, Hash32(digest))
    assert parse(str(cid)) == cid
    assert parse_bytes(bytes(cid)) == cid
    assert cid.as_v1().same_block(cid)


@pytest.mark.rule("3.5")
def test_known_cids_are_read_and_written() -> None:
    assert str(raw_cid(b"hello world")) == GOOD
    assert parse(GOOD_V0).version == 0
    assert from_digest(parse(GOOD).digest) == parse(GOOD)
    assert from_digest(parse(GOOD_V0).digest, Codec.DAG_PB) == parse(GOOD_V0).as_v1()


DIGEST = bytes(range(32))
BAD = {
    "empty": "",
    "prefix only": "b",
    "upper case": GOOD.upper(),
    "mixed case": GOOD[:-1] + GOOD[-1].upper(),
    "other multibase": "z" + GOOD[1:],
    "padding": GOOD + "=",
    "cut": GOOD[:-1],
    "longer": GOOD + "a",
    "too long": "b" + "a" * 600,
    "space": " " + GOOD,
    "not ascii": "bä" + GOOD[2:],
    "base58 letter": GOOD_V0[:-1] + "0",
    "version 2": v1_text(b"\x02\x55\x12\x20" + DIGEST),
    "codec dag-cbor": v1_text(b"\x01\x71\x12\x20" + DIGEST),
    "keccak": v1_text(b"\x01\x55\x1b\x20" + DIGEST),
    "sha1": v1_text(b"\x01\x55\x11\x14" + DIGEST[:20]),
    "identity of a foreign codec": v1_text(b"\x01\x71\x00\x04tiny"),
    "identity of 129 bytes": v1_text(b"\x01\x55\x00\x81\x01" + bytes(129)),
    "identity cut short": v1_text(b"\x01\x55\x00\x04tin"),
    "identity with a long length": v1_text(b"\x01\x55\x00\x84\x00tiny"),
    "identity with a trailing byte": v1_text(b"\x01\x55\x00\x04tiny\0"),
    "short digest": v1_text(b"\x01\x55\x12\x1f" + DIGEST[:31]),
    "varint not minimal": v1_text(b"\x01\xd5\x00\x12\x20" + DIGEST),
    "trailing byte": v1_text(b"\x01\x55\x12\x20" + DIGEST + b"\0"),
    "version 0 as version 1 text": v1_text(b"\x12\x20" + DIGEST),
    "spare bits set": GOOD[:-1] + chr(ord(GOOD[-1]) + 1),
}


@pytest.mark.parametrize("name", BAD)
def test_other_forms_are_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        parse(BAD[name])
    assert refused.value.code is Code.MALFORMED


@given(st.text(max_size=80))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        assert str(parse(text)) == text
    except Refused:
        pass  # most text is no CID


@pytest.mark.parametrize("data", [b"", b"tiny", bytes(127), bytes(128)])
def test_identity_cid_carries_its_block(data: bytes) -> None:
    text = str(inline_cid(data))
    assert parse(text).inline == data
    assert parse(text).digest == sha256(data).digest()
    assert parse_prefix(bytes(parse(text)) + b"more") == (parse(text), len(bytes(parse(text))))


def test_the_probe_of_kubo_is_the_empty_identity_cid() -> None:
    assert parse("bafkqaaa").inline == b""


def test_a_typed_version_0_becomes_version_1() -> None:
    typed = " QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn\n"
    assert str(typed_cid(typed)) == "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354"
