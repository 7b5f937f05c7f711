"""Tests readers of strangers' bytes with many inputs: codec, frames, CIDs, CARs and job files.

`make fuzz` also runs the tests marked slow.
"""

import io
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from quorate.base.errors import UsageError
from quorate.job.jobfile import parse_job
from quorate_content.dag.car import header, read_car
from quorate_content.dag.cid import Cid, parse, parse_bytes, raw_cid
from quorate_content.dag.content_limits import BadSource, Bounds
from quorate_content.dag.walk import DagWalk, NullSink
from quorate_protocol.refusals import Refused
from support.fuzz_properties import (
    COUNTS,
    codec_inputs,
    decode_or_refuse,
    json_texts,
    parse_or_refuse,
)

EFFORT = int(os.environ.get("QUORATE_FUZZ", "1"))
CODEC_INPUTS = 20_000
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
KEYS = [
    "image",
    "max_price",
    "command",
    "env",
    "inputs",
    "resources",
    "verify",
    "budget",
    "outputs",
    "type",
    "max_duration",
    "<<",
    "odd",
]


def bounded(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=QUIET,
        phases=[Phase.reuse, Phase.generate],
    )


@pytest.mark.slow
@bounded(CODEC_INPUTS)
@given(codec_inputs())
def test_each_of_twenty_thousand_documents_is_a_value_or_refused(data: bytes) -> None:
    decode_or_refuse(data)


@pytest.mark.slow
@bounded(CODEC_INPUTS)
@given(json_texts())
def test_each_of_twenty_thousand_texts_parses_or_is_refused(data: bytes) -> None:
    parse_or_refuse(data)


@pytest.mark.parametrize("odd", ["[]", "{}", "[[]]", "null", "1", "true", '"x"'])
def test_a_tag_of_any_kind_is_a_tag_or_refused(odd: str) -> None:
    """A tag may be any JSON value. A list as tag once caused an error, because it cannot be a
    dictionary key.
    """
    for text in (
        '{"frame":{"kind":%s,"text":"x"}}',
        '{"body":{},"sig":"0x","type":%s}',
        '{"frame":%s}',
        '{"order":{"body":{},"sig":"0x","type":%s},"session":{},"spec":{}}',
    ):
        decode_or_refuse((text % odd).encode())


@bounded(300 * EFFORT)
@given(
    st.text(max_size=80)
    | st.text(alphabet="bafykreizQm1234567890", max_size=70)
    | st.binary(max_size=60)
)
def test_any_text_is_a_cid_or_refused(given_text: str | bytes) -> None:
    try:
        found = parse(given_text) if isinstance(given_text, str) else parse_bytes(given_text)
    except Refused:
        return
    assert isinstance(found, Cid) and parse(str(found)) == found


@bounded(300 * EFFORT)
@given(st.binary(max_size=300), st.integers(0, 400), st.binary(max_size=8), st.booleans())
def test_any_bytes_are_a_car_or_refused(body: bytes, at: int, extra: bytes, has_head: bool) -> None:
    COUNTS["cars"] += 1
    root = raw_cid(b"x" * 10)
    data = bytearray((header(root) if has_head else b"") + body)
    data[at % (len(data) + 1) : at % (len(data) + 1)] = extra
    walk = DagWalk(root, NullSink(), Bounds())
    with pytest.raises((Refused, BadSource)):
        read_car(io.BytesIO(bytes(data)), walk, Bounds())


def yaml_trees() -> st.SearchStrategy[str]:
    """Job files with known keys and hostile values, among them aliases."""
    odd = [
        "1",
        "-1",
        "9" * 40,
        "'x'",
        "*a",
        "&a x",
        "!!binary aGk=",
        "null",
        "{a: 1}",
        "[1, *a]",
        "1h",
        "8GB",
        "1\ufe0f\u20e3",
        "|",
        ">",
    ]
    scalars = st.sampled_from(odd)
    lines = st.lists(st.tuples(st.sampled_from(KEYS), scalars | st.text(max_size=12)), max_size=8)
    return lines.map(lambda items: "\n".join(f"{key}: {value}" for key, value in items))


@bounded(500 * EFFORT)
@given(yaml_trees())
def test_any_job_file_is_a_job_or_a_usage_error(text: str) -> None:
    COUNTS["job_files"] += 1
    try:
        parse_job(text.encode("utf-8", "surrogatepass"), Path("/nowhere"))
    except UsageError:
        return
