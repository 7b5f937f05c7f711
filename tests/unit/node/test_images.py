"""Tests an image's volumes, its name, and the rules about its registry, without a socket."""

import ipaddress
import json
import os
import tarfile
from pathlib import Path

import pytest

from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_names import PinnedImage, parse_pinned, scheme_of
from quorate_content.store.checked_http import redirect_target
from quorate_node.executors.base.hardened_profile import (
    ContainerMounts,
    EngineFacts,
    ImageFacts,
    container_request,
    unrequested_mounts,
)
from quorate_node.executors.base.images import VOLUMES_MAX, volumes_to_mount_over
from quorate_node.executors.docker.image_loader import MANIFESTS_MAX, ImageCache
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.http.client_networks import is_public
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
    declared = "/data/ //data /data/deep /tmp /tmp/x /etc/app /scratch /outputs /inputs/a"
    covered = "/data /data/deep /etc/app /tmp/x /var/lib/db"
    assert volumes_to_mount_over(["/var/lib/db", *declared.split()], ("/inputs/a",)) == tuple(
        covered.split()
    )
    assert volumes_to_mount_over((), ()) == ()


RELATIVE = ". data rel/x /.. /data/../proc"
NEEDED = "/ /proc /proc/sys /sys/fs /dev /dev/shm /inputs /inputs/b /outputs/x /scratch/x"
OF_THE_IMAGE = "/sbin /etc /etc/hosts"
UNWRITABLE = ["", "/a:b", "/a,b", "/a\nb", "/" + "a" * 255]


@pytest.mark.parametrize("path", [*f"{RELATIVE} {NEEDED} {OF_THE_IMAGE}".split(), *UNWRITABLE])
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


DIGEST = "sha256:" + "ab" * 32


PUBLIC = "8.8.8.8 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808"
PRIVATE = "127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 ::1 fe80::1 fd00::1"
RESERVED = "0.0.0.0 224.0.0.1 255.255.255.255 :: ff02::1"
WRAPPED = (
    "::ffff:10.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2002:a00:1::1 "
    "2001:0:4136:e378:8000:63bf:80ff:fffe"
)


@pytest.mark.parametrize("text", f"{PUBLIC} {PRIVATE} {RESERVED} {WRAPPED}".split())
def test_private_and_reserved_addresses_are_not_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text)) is (text in PUBLIC.split())


@pytest.mark.parametrize(
    ("name", "host", "path"),
    [
        ("python", "registry-1.docker.io", "library/python"),
        ("docker.io/python", "registry-1.docker.io", "library/python"),
        ("owner/tool", "registry-1.docker.io", "owner/tool"),
        ("ghcr.io/owner/tool", "ghcr.io", "owner/tool"),
        ("localhost/tool", "localhost", "tool"),
        ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000", "a/b/c"),
    ],
)
def test_an_image_name_gives_registry_repository_and_digest(
    name: str, host: str, path: str
) -> None:
    assert parse_pinned(f"{name}@{DIGEST}") == PinnedImage(f"{name}@{DIGEST}", host, path, DIGEST)


@pytest.mark.parametrize(
    "name",
    [
        "python",
        "python:3.12",
        f"python:3.12@{DIGEST}",
        f"host:99999/x@{DIGEST}",
        f"a.b/../x@{DIGEST}",
        f"a.b:0/x@{DIGEST}",
        f"A/x@{DIGEST}",
        f"x@{DIGEST[:-1]}",
        f"a@b.c/x@{DIGEST}",
        f"/x@{DIGEST}",
    ],
)
def test_an_image_name_without_a_valid_digest_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_pinned(name)
    assert refusal.value.code is Code.MALFORMED


def test_plain_http_is_used_for_this_machine_only() -> None:
    assert {
        scheme_of(host)
        for host in ("localhost", "localhost:1", "127.0.0.1:5000", "127.9.9.9", "[::1]:5")
    } == {"http"}
    assert {
        scheme_of(host) for host in ("registry.example", "10.0.0.1:5000", "localhost.example")
    } == {"https"}


def test_redirects_stay_on_https() -> None:
    assert redirect_target("https://a.example/v2/x", "/y?z=1") == "https://a.example/y?z=1"
    assert redirect_target("http://127.0.0.1:5/x", "https://b.example/y") == "https://b.example/y"
    for location in (
        "",
        "http://a.example/y",
        "ftp://a.example/",
        "file:///etc/passwd",
        "https://u:p@a.example/",
        "a b",
        "/ä",
        "https://a.example:99999/",
        "https://[::1/",
        "/x\r\nHost: y",
        "/" + "a" * 9000,
    ):
        with pytest.raises(Unavailable):
            redirect_target("https://a.example/v2/x", location)


def test_image_records_survive_a_restart_and_are_bounded(tmp_path: Path) -> None:
    kept, (one, two) = (
        ImageCache(tmp_path / "kept", 100),
        ("sha256:" + "01" * 32, "sha256:" + "02" * 32),
    )
    kept.record(one, 60)
    kept.name(one, DIGEST)
    kept.record(one, 50)
    again = ImageCache(tmp_path / "kept", 100)
    assert again.find(DIGEST) == one
    assert [(item.image, item.bytes) for item in again.all()] == [(one, 50)]
    for index in range(MANIFESTS_MAX + 5):
        again.name(one, f"sha256:{index:064x}")
    assert len(again.all()[0].manifests) == MANIFESTS_MAX
    (tmp_path / "kept" / ("03" * 32 + ".json")).write_text('{"bytes": 4')
    assert len(again.all()) == 1, "a record that a crash tore is none"
    again.name(two, DIGEST)
    removed: list[str] = []
    os.utime(tmp_path / "kept" / ("01" * 32 + ".json"), (1, 1))
    again.make_room(50, two, lambda image: not removed.append(image))
    assert removed == [], "it fits"
    with pytest.raises(Refused) as refusal:
        again.make_room(101, two, lambda image: True)
    assert refusal.value.code is Code.OVERSIZE
    with pytest.raises(Unavailable, match="no room"):
        again.make_room(51, two, lambda image: False)
    again.make_room(51, "sha256:new", lambda image: not removed.append(image))
    assert removed == [one], "not the one that is the owner's: it has no bytes of ours"
    assert again.find(DIGEST) == two
