"""Tests image names with a tag, and the ENTRYPOINT of an image."""

from pathlib import Path
from typing import Any

import pytest

from quorate.base.errors import UsageError
from quorate.job.job import Job
from quorate.job.jobfile import parse_job
from quorate.job.packing import pack
from quorate.programs.entrypoint import with_archives_entrypoint, with_entrypoint
from quorate_content.images.image_names import TaggedImage, parse_tagged
from support.executors.image_archives import entry, image_entries, tar

OWN = ("/entry", "--fast")


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({"command": ("a", "b")}, ("/entry", "--fast", "a", "b")),
        ({}, ()),
        ({"command": ("a",), "entrypoint": ()}, ("a",)),
        ({"command": ("a",), "entrypoint": ("/other",)}, ("/other", "a")),
        ({"entrypoint": ("/other",)}, ("/other",)),
        ({"command": "echo a"}, "echo a"),
        ({"command": "echo a", "entrypoint": ("/other",)}, "echo a"),
    ],
)
def test_the_command_has_the_entrypoint_that_docker_would_give_it(
    given: dict[str, Any], command: tuple[str, ...] | str
) -> None:
    job = Job(image="python:3.12", max_price="1", **given)
    made = with_entrypoint(job, OWN)
    assert made.command == command and made.entrypoint is None
    assert with_entrypoint(made).command == command, "it is added once"


def test_an_archives_entrypoint_is_read_from_it(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    layer = tar([entry("./data", b"x")])
    path.write_bytes(tar(image_entries([layer], {"Entrypoint": list(OWN)})))
    made = with_archives_entrypoint(Job(image=path, max_price="1", command=("a",)))
    assert made.command == (*OWN, "a")


def test_a_job_without_any_command_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(tar(image_entries([tar([entry("./data", b"x")])], {})))
    with pytest.raises(UsageError, match="the image has no command; write one after --"):
        pack(Job(image=path, max_price="1"), {})
    assert pack(Job(image=path, max_price="1", command=("a",)), {}).spec.argv == ("a",)
    path.write_bytes(tar(image_entries([tar([entry("./data", b"x")])], {"Cmd": ["b"]})))
    assert pack(Job(image=path, max_price="1"), {}).spec.argv == ()


def test_a_job_file_names_an_entrypoint_as_words_or_text(tmp_path: Path) -> None:
    start = b"image: python:3.12\nmax_price: 1\ncommand: [a]\n"
    assert parse_job(start + b"entrypoint: /run --now\n", tmp_path).entrypoint == ("/run", "--now")
    assert parse_job(start + b'entrypoint: ""\n', tmp_path).entrypoint == ()
    assert parse_job(start + b"entrypoint: [/run, 3]\n", tmp_path).entrypoint == ("/run", "3")
    assert parse_job(start, tmp_path).entrypoint is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python:3.12", TaggedImage("python", "registry-1.docker.io", "library/python", "3.12")),
        (
            "pytorch/pytorch:2.5.1-cuda12.4",
            TaggedImage(
                "pytorch/pytorch", "registry-1.docker.io", "pytorch/pytorch", "2.5.1-cuda12.4"
            ),
        ),
        (
            "docker.io/library/python:3",
            TaggedImage("docker.io/library/python", "registry-1.docker.io", "library/python", "3"),
        ),
        ("ghcr.io/a/b/c:v1", TaggedImage("ghcr.io/a/b/c", "ghcr.io", "a/b/c", "v1")),
        ("localhost/x:y", TaggedImage("localhost/x", "localhost", "x", "y")),
        ("127.0.0.1:5000/x:y", TaggedImage("127.0.0.1:5000/x", "127.0.0.1:5000", "x", "y")),
    ],
)
def test_a_name_with_a_tag_gives_registry_repository_and_tag(
    text: str, expected: TaggedImage
) -> None:
    assert parse_tagged(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "python",
        "python@sha256:" + "0" * 64,
        "Python:3",
        "bafybeidyxbxqz3fm5vknb5h56imkhrsex2rlr7czq4nujjwnvsbv52oiim",
        "a//b:c",
        "../x:y",
        "x:",
        ":y",
        "x:y z",
        "host:5000/x",
        "x?y:z",
        "a@b/c:d",
        "a" * 300 + ":b",
    ],
)
def test_other_names_are_not_tagged_images(text: str) -> None:
    assert parse_tagged(text) is None
