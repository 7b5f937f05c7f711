"""Tests the codec, the frames and the job spec with arbitrary bytes.

Each input is a value that encodes to the same bytes, or a typed refusal. This file tries 600
inputs; `tests/fuzz` tests the same properties with many more.
"""

import time

import pytest
from hypothesis import given, settings

from quorate_protocol.codec import canonical
from quorate_protocol.messages.classes import Host, Pool
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Nonce, Small
from quorate_protocol.values import replace
from support.fuzz_properties import codec_inputs, decode_or_refuse, json_texts, parse_or_refuse

EXAMPLES = 300


@settings(max_examples=EXAMPLES, deadline=None)
@given(codec_inputs())
def test_any_bytes_are_a_value_or_a_typed_refusal(data: bytes) -> None:
    decode_or_refuse(data)


@settings(max_examples=EXAMPLES, deadline=None)
@given(json_texts())
def test_any_json_text_parses_to_something_with_canonical_bytes(data: bytes) -> None:
    parse_or_refuse(data)


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 120_000 + b"[" * 201,
        b'"' + b"\\\n" * 120_000 + b"[" * 201,
        b'"a' * 120_000 + b"[" * 201,
        b"[" * 201 + b'"' + b"x" * 240_000 + b"\\",
    ],
    ids=["escaped-quotes", "escaped-newlines", "quotes", "open-end"],
)
def test_counting_brackets_takes_linear_time(body: bytes) -> None:
    """A quarter of a megabyte without a closing quote once took minutes of the only thread,
    before any signature check.
    """
    started = time.process_time()
    with pytest.raises(Refused):
        canonical.parse(body, 1 << 20)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\uDFFF":1}', '["\\ud83d"]'])
def test_half_a_surrogate_pair_is_refused_as_text(text: str) -> None:
    with pytest.raises(Refused) as caught:
        canonical.parse(text.encode(), 100)
    assert caught.value.code is Code.MALFORMED
    assert canonical.parse(b'"\\ud83d\\ude00"', 100) == "\N{GRINNING FACE}", "a whole pair is text"


def test_text_that_is_not_utf8_is_refused() -> None:
    for encoding in ("utf-16", "utf-32", "utf-16-le"):
        with pytest.raises(Refused):
            canonical.parse('"x"'.encode(encoding), 100)


@pytest.mark.parametrize(
    "text", ["--5", "-", "+1", "0x10", "9" * 79, "1_0", "\N{ARABIC-INDIC DIGIT THREE}", "", " 1"]
)
def test_a_value_that_is_no_integer_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        canonical.from_json(Nonce, text)


@pytest.mark.rule("2.19")
def test_pools_have_bounds() -> None:
    for pool in (
        Pool("L40S"),
        Pool("L40S\n", "", Small(1)),
        Pool("L40S", "x" * 33, Small(1)),
        Pool("", "1g.10gb"),
        Pool("", "", Small(1)),
    ):
        with pytest.raises(Refused):
            pool.validate()
    good = Host("x86_64", "v3", "", "8.9", 142, "550")
    good.validate(is_gpu=True)
    for changes in (
        {"sm_count": 10**79},
        {"driver": "5" * 9},
        {"driver": "\N{ARABIC-INDIC DIGIT THREE}"},
        {"capability": "9"},
        {"sandbox": "docker"},
        {"level": "v9"},
    ):
        with pytest.raises(Refused):
            replace(good, **changes).validate(is_gpu=True)
