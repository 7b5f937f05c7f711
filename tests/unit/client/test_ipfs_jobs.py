"""Jobs whose content is in IPFS: nothing is uploaded, and sizes come from root blocks."""

from dataclasses import replace
from pathlib import Path

import pytest

from quorate.base.errors import UsageError
from quorate.job.job import Job
from quorate.job.jobfile import parse_job
from quorate.job.packing import has_given_size, named_cids, pack
from quorate_content.dag.cid import inline_cid, raw_cid
from quorate_content.dag.unixfs import V1_2025, build_directory, build_file
from quorate_content.transfer.root_size import size_of_root

IMAGE = str(raw_cid(b"image"))
EMPTY_V0 = "QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn"
EMPTY_V1 = "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354"


def test_nothing_is_uploaded_and_local_files_give_only_their_cids(tmp_path: Path) -> None:
    (tmp_path / "table").write_bytes(b"rows")
    job = Job(image=IMAGE, inputs={"/inputs/t": tmp_path / "table"}, max_price=1, source="ipfs")
    packed = pack(job, {})
    assert packed.uploads == () and packed.upload_bytes == 0
    assert [(item.cid, item.size_bytes) for item in packed.spec.inputs] == [
        (str(raw_cid(b"rows")), 4)
    ]


def test_version_0_cids_become_version_1_in_the_spec() -> None:
    job = Job(image=EMPTY_V0, inputs={"/inputs/t": EMPTY_V0}, max_price=1)
    assert {item.cid for item in named_cids(job)} == {EMPTY_V1}
    spec = pack(job, {EMPTY_V1: 7}).spec
    assert (spec.image, spec.image_bytes) == (EMPTY_V1, 7)
    assert spec.inputs[0].cid == EMPTY_V1


def test_a_size_that_the_job_gives_is_not_asked_for() -> None:
    inputs = {"/inputs/a": EMPTY_V0, "/inputs/b": IMAGE}
    job = Job(image=IMAGE, inputs=inputs, max_price=1, input_sizes={"/inputs/a": "1MB"})
    assert has_given_size(job, EMPTY_V1) and not has_given_size(job, IMAGE)
    assert not job.is_in_ipfs
    assert (
        replace(job, gateways=("http://g",)).is_in_ipfs and replace(job, source="ipfs").is_in_ipfs
    )


def test_a_mistyped_version_0_cid_is_refused_by_its_field() -> None:
    with pytest.raises(UsageError, match="inputs./inputs/t"):
        pack(Job(image=IMAGE, inputs={"/inputs/t": "Q" + EMPTY_V0[:-1]}, max_price=1), {})


def test_the_job_file_has_the_keys(tmp_path: Path) -> None:
    text = f"image: {IMAGE}\nmax_price: 1\nsource: ipfs\nipfs_gateway: http://h:1\n"
    text += "gateways: [https://g.example/]\n"
    job = parse_job(text.encode(), tmp_path)
    assert pack(job, {}).spec.gateways == ("https://g.example/",)
    assert (job.source, job.ipfs_gateway) == ("ipfs", "http://h:1")
    with pytest.raises(UsageError, match="source"):
        parse_job(text.replace("source: ipfs", "source: http").encode(), tmp_path)


@pytest.mark.parametrize(
    "urls",
    [
        ("ftp://h",),
        ("http://user@h/",),
        ("http://h/?x=1",),
        ("http://h h",),
        ("http://" + "h" * 300,),
        ("http://h", "http://h"),
        tuple(f"http://h{number}" for number in range(9)),
    ],
)
def test_gateways_that_are_no_plain_urls_are_refused(urls: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="gateways: "):
        pack(Job(image=IMAGE, max_price=1, gateways=urls), {})


def test_the_size_of_content_is_read_from_its_root_block() -> None:
    blocks: dict[bytes, bytes] = {}

    def keep(cid: object, block: bytes) -> None:
        blocks[bytes(getattr(cid, "digest"))] = block  # noqa: B009

    file = build_file([b"x" * 1000, b"y" * 7], V1_2025, keep)
    folder = build_directory({b"one": file, b"two": file}, V1_2025, keep)
    assert size_of_root(raw_cid(b"abc"), b"abc") == 3
    assert size_of_root(inline_cid(b"ab"), b"ab") == 2
    assert size_of_root(file.cid, blocks.get(file.cid.digest, b"x" * 1000 + b"y" * 7)) == 1007
    assert size_of_root(folder.cid, blocks[folder.cid.digest]) >= 2014
