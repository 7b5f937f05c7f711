"""The disk that a job asks for: its keys, its units, and what is wrong with them."""

import pytest

from quorate.base.errors import UsageError
from quorate.job.job import Job
from quorate.job.packing import pack
from quorate_protocol.messages.job_spec import Resources

CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
MIB, GB = 1 << 20, 10**9


def asked(**resources: str) -> Resources:
    return Job(image=CID, command=["x"], max_price=1, resources=resources).limits()


@pytest.mark.parametrize(
    ("resources", "output", "scratch"),
    [
        ({}, 256 * MIB, 256 * MIB),
        ({"disk": "20GB"}, 20 * GB, 20 * GB),
        ({"disk": "20GB", "tmp": "1GB"}, 20 * GB, GB),
        ({"disk": "20GB", "outputs": "1GB"}, GB, 20 * GB),
        ({"outputs": "14 gb"}, 14 * GB, 256 * MIB),
        ({"tmp": "0.5Ti"}, 256 * MIB, 1 << 39),
        ({"tmp": "1.5T", "outputs": "1500M"}, 1_500_000_000, 1500 * GB),
    ],
)
def test_disk_stands_for_outputs_and_tmp_that_are_not_given(
    resources: dict[str, str], output: int, scratch: int
) -> None:
    found = asked(**resources)
    assert (found.output_bytes, found.scratch_bytes) == (output, scratch)


@pytest.mark.parametrize("key", ["disk", "outputs", "tmp", "shm", "memory"])
@pytest.mark.parametrize("bad", ["-1GB", "20", "20 apples", "1e9B", "GB", "9999999999TB", ""])
def test_a_wrong_size_names_its_key(key: str, bad: str) -> None:
    with pytest.raises(UsageError, match=rf"resources\.{key}: "):
        asked(**{key: bad})


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"outputs": "0B"}, "outputBytes: 1 to"),
        ({"tmp": "5000TB"}, "scratchBytes: 0 to"),
        ({"outputs": "5000TiB"}, "outputBytes: 1 to"),
        ({"shm": "2GB", "memory": "1GB"}, "shmBytes: 0 to"),
        ({"shm_size": "1GB"}, "resources.shm_size: this key is called shm now"),
    ],
)
def test_a_size_beyond_what_can_be_is_refused_by_name(
    resources: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        asked(**resources)


@pytest.mark.rule("4.44")
@pytest.mark.parametrize(("size", "seconds"), [("1GB", 600), ("140GB", 13_434), ("5TB", 476_898)])
def test_more_time_to_start_is_given_to_more_bytes(size: str, seconds: int) -> None:
    job = Job(
        image=f"x@sha256:{'0' * 64}",
        command=["x"],
        max_price=1,
        inputs={"/inputs/m": CID},
        input_sizes={"/inputs/m": size},
    )
    found = pack(job, {}).spec.start_within
    assert abs(found - seconds) < 400, "an image of a registry counts as 2 GiB"
    own = Job(image=CID, command=["x"], max_price=1, start_within="5m", input_sizes={})
    assert own.start_seconds(10**15) == 300
