"""Tests that image names with a tag are read as engines read them."""

import pytest

from quorate.images.tag_resolution import TaggedImage, parse_tagged


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
