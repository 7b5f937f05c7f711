"""Inputs from a source: what a spec may name, and what a folder's document must say."""

import pytest

from quorate_content.dag.cid import Codec, from_digest, raw_cid
from quorate_protocol.messages.input_sources import (
    FOLDER_BYTES_MAX,
    FolderFile,
    SourceFolder,
    decode,
    fault_of,
)
from quorate_protocol.messages.job_spec import Input, JobSpec, validate
from quorate_protocol.refusals import Refused
from quorate_protocol.values import replace
from support.markets.provider_world import make_spec

FILE = str(raw_cid(b"weights"))


def with_source(source: str, cid: str = FILE) -> JobSpec:
    return replace(make_spec(), inputs=(Input(cid, "/inputs/w", 7, source),))


@pytest.mark.rule("4.83")
def test_a_spec_without_a_source_is_written_as_before() -> None:
    before = replace(make_spec(), inputs=(Input(FILE, "/inputs/w", 7),))
    assert b'"source"' not in before.encode()
    assert b'"source":"https://a.example/w"' in with_source("https://a.example/w").encode()


@pytest.mark.rule("4.84")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("ftp://a.example/w", "http or https"),
        ("https://a.example", "http or https"),
        ("https://a.example/a b", "http or https"),
        ("https://a.example/w#x", "http or https"),
        ("https://a.example/../w", "http or https"),
        ("https://a.example:0/w", "http or https"),
        ("https://a.example/" + "w" * 1024, "1024"),
        ("https://user:word@a.example/w", "login"),
        ("https://a.example/w?X-Amz-Signature=1", "X-Amz-Signature in its query is a secret"),
        ("https://a.example/w?a=1&access_token=2", "access_token in its query is a secret"),
        ("https://a.example/w?sig=", "sig in its query is a secret"),
        ("https://a.example/m/?a=/", "no query"),
    ],
)
def test_a_spec_holds_no_secret_and_no_other_url(source: str, said: str) -> None:
    with pytest.raises(Refused, match="inputs.source") as refusal:
        validate(with_source(source))
    assert said in refusal.value.detail


def test_ordinary_urls_are_sources() -> None:
    for source in ("http://a.example:8080/w", "https://[2001:db8::1]/w?download=1&key2=x"):
        assert not fault_of(source)


@pytest.mark.rule("4.83")
def test_the_cid_of_a_file_is_that_of_its_bytes() -> None:
    tree = str(from_digest(b"\1" * 32, Codec.DAG_PB))
    with pytest.raises(Refused, match="one raw block"):
        validate(with_source("https://a.example/w", tree))
    validate(with_source("https://a.example/m/", tree))  # a folder's document may be long


@pytest.mark.rule("4.83")
def test_the_coordinator_keeps_a_folders_document_and_no_file() -> None:
    spec = with_source("https://a.example/w")
    image = {spec.image: spec.image_bytes} if spec.image_bytes else {}
    assert spec.kept() == image
    assert with_source("https://a.example/m/").kept() == image | {FILE: FOLDER_BYTES_MAX}


@pytest.mark.rule("4.83")
@pytest.mark.parametrize(
    "paths", [(), ("b", "a"), ("a", "a"), ("a", "a/b"), ("a", "a/b", "c"), ("a/b", "a")]
)
def test_a_folders_document_has_one_form(paths: tuple[str, ...]) -> None:
    made = SourceFolder(tuple(FolderFile(FILE, path, 1) for path in paths))
    with pytest.raises(Refused, match="source folder: files"):
        decode(made.encode())
    good = SourceFolder(tuple(FolderFile(FILE, path, 1) for path in ("a-b/c", "a/b", "a/c", "d")))
    good = replace(good, files=tuple(sorted(good.files, key=lambda item: item.path.split("/"))))
    assert decode(good.encode()) == good and good.size_bytes() == 4
