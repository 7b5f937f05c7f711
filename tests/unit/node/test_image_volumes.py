"""Tests volumes that an image declares: which ones are covered or refused, and what an engine
adds.
"""

import json
import tarfile
from pathlib import Path

import pytest

from quorate_content.images.archive_reader import read_archive
from quorate_node.executors.base.hardened_profile import (
    ContainerMounts,
    EngineFacts,
    ImageFacts,
    container_request,
    unrequested_mounts,
)
from quorate_node.executors.base.image_volumes import VOLUMES_MAX, volumes_to_mount_over
from quorate_protocol.refusals import Code, Refused
from support.executors.executor_cases import MIB, python_task
from support.executors.image_archives import Member, entry, image_entries, tar

PLACES = ContainerMounts((("/store/a", "/inputs/a"),), "outputs-volume", is_volume=True)


def archive_with(folder: Path, volumes: object) -> Path:
    path = folder / "image.tar"
    path.write_bytes(
        tar(image_entries([tar([entry("data", kind=tarfile.DIRTYPE)])], {"Volumes": volumes}))
    )
    return path


def test_declared_volumes_are_covered() -> None:
    declared = (
        "/data/",
        "//data",
        "/var/lib/db",
        "/data/deep",
        "/tmp",
        "/tmp/x",
        "/scratch",
        "/outputs",
        "/inputs/a",
        "/etc/app",
    )
    assert volumes_to_mount_over(declared, ("/inputs/a",)) == (
        "/data",
        "/data/deep",
        "/etc/app",
        "/tmp/x",
        "/var/lib/db",
    )
    assert volumes_to_mount_over((), ()) == ()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        ".",
        "data",
        "rel/x",
        "/..",
        "/data/../proc",
        "/proc",
        "/proc/sys",
        "/sys/fs",
        "/dev",
        "/dev/shm",
        "/inputs",
        "/inputs/b",
        "/outputs/x",
        "/scratch/x",
        "/sbin",
        "/etc",
        "/etc/hosts",
        "/a:b",
        "/a,b",
        "/a\nb",
        "/" + "a" * 255,
    ],
)
def test_volumes_that_cannot_be_covered_are_refused(path: str) -> None:
    with pytest.raises(Refused, match="Volumes") as refusal:
        volumes_to_mount_over((path,), ())
    assert refusal.value.code is Code.UNSUPPORTED
    assert "build the image without it" in refusal.value.detail


def test_a_volume_inside_an_input_and_too_many_volumes_are_refused() -> None:
    with pytest.raises(Refused, match="inside an input"):
        volumes_to_mount_over(("/models/cache",), ("/models",))
    assert (
        len(volumes_to_mount_over([f"/v{index}" for index in range(VOLUMES_MAX)], ()))
        == VOLUMES_MAX
    )
    with pytest.raises(Refused, match="at most 16"):
        volumes_to_mount_over([f"/v{index}" for index in range(VOLUMES_MAX + 1)], ())


def test_the_archive_reader_lists_and_bounds_volumes(tmp_path: Path) -> None:
    assert read_archive(archive_with(tmp_path, {"/b": {}, "/a": None})).volumes == ("/a", "/b")
    assert read_archive(archive_with(tmp_path, None)).volumes == ()
    for wrong in (["/a"], "/a", {"/a\0b": {}}):
        with pytest.raises(Refused) as refusal:
            read_archive(archive_with(tmp_path, wrong))
        assert refusal.value.code is Code.MALFORMED
    with pytest.raises(Refused) as refusal:
        read_archive(archive_with(tmp_path, {f"/{index}": {} for index in range(65)}))
    assert refusal.value.code is Code.OVERSIZE


@pytest.mark.parametrize(
    ("layers", "is_refused"),
    [
        ([[entry("a", kind=tarfile.SYMTYPE, link="b")]], True),
        ([[entry("a/b", b"file")]], True),
        ([[entry("a", kind=tarfile.DIRTYPE)]], False),
        ([[entry("a/b/c", b"file")]], False),
        ([[entry("a", kind=tarfile.SYMTYPE, link="b")], [entry("a", kind=tarfile.DIRTYPE)]], False),
        ([[entry("a", kind=tarfile.SYMTYPE, link="b")], [entry(".wh.a")]], False),
        ([[entry("a", kind=tarfile.DIRTYPE)], [entry("a", kind=tarfile.SYMTYPE, link="b")]], True),
    ],
)
def test_a_volume_behind_a_link_to_no_folder_is_refused(
    tmp_path: Path, layers: list[list[Member]], is_refused: bool
) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(
        tar(image_entries([tar(layer) for layer in layers], {"Volumes": {"/a/b/": {}}}))
    )
    if not is_refused:
        assert read_archive(path).volumes == ("/a/b/",)
        return
    with pytest.raises(Refused, match="not a folder") as refusal:
        read_archive(path)
    assert refusal.value.code is Code.UNSUPPORTED


def test_the_request_covers_volumes_and_mounts_that_an_engine_adds_are_found() -> None:
    image = ImageFacts("sha256:ab", (), ("/entry",), (), True, ("/data",))
    body = container_request(
        python_task("x", "", scratch_bytes=MIB), "owner", EngineFacts("{}"), image, PLACES
    )
    config = json.loads(json.dumps(body["HostConfig"]))
    assert config["Tmpfs"]["/data"] == f"rw,noexec,nosuid,nodev,size={MIB},mode=1777"
    assert "size=4096," in json.dumps(
        container_request(
            python_task("x", "", scratch_bytes=0), "o", EngineFacts("{}"), image, PLACES
        )
    )
    ours = [
        {"Type": "bind", "Source": "/host_mnt/store/a", "Destination": "/inputs/a"},
        {
            "Type": "volume",
            "Name": "outputs-volume",
            "Source": "/var/lib/x",
            "Destination": "/outputs",
        },
        {"Type": "tmpfs", "Source": "", "Destination": "/data"},
    ]
    assert unrequested_mounts(body, {"Mounts": ours}) == ""
    for added in (
        {"Type": "volume", "Name": "0a", "Source": "/var/lib/y", "Destination": "/data"},
        {"Type": "volume", "Name": "0a", "Source": "/var/lib/y", "Destination": "/outputs"},
        {"Type": "bind", "Source": "/", "Destination": "/host"},
        {"Type": "tmpfs", "Source": "", "Destination": "/elsewhere"},
    ):
        assert str(added["Destination"]) in unrequested_mounts(body, {"Mounts": [*ours, added]})
