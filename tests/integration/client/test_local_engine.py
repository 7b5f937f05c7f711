"""Images of the local engine: found by name, written as bytes that follow from the image alone."""

import gzip
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import docker
import pytest

from quorate.base.errors import UsageError
from quorate.images.engine_images import EngineImages
from quorate.images.local_engine import LocalEngine, needed_engine, write_canonical_archive
from quorate_content.dag.disk_tree import cid_of_path
from quorate_node.executors.docker.engine_connection import connect
from quorate_protocol.refusals import Code, Refused
from support.executors.image_archives import entry, image_entries, tar

LAYER = tar([entry("etc/motd", b"hello\n")])


@pytest.fixture
def engine() -> Iterator[docker.APIClient]:
    client = connect()
    yield client
    client.close()


@pytest.fixture
def name(engine: docker.APIClient, tmp_path: Path) -> Iterator[str]:
    """The name of a small image that only the engine has."""
    archive = tmp_path / "loaded.tar"
    members = image_entries([LAYER])
    archive.write_bytes(tar(members))
    with archive.open("rb") as file:
        list(engine.load_image(file))
    named = f"quorate-test-{uuid.uuid4().hex[:12]}:v1"
    engine.tag(f"sha256:{members[0][0].name.removesuffix('.json')}", named)
    yield named
    engine.remove_image(named, force=True)


def test_an_archive_is_rewritten_to_bytes_that_follow_from_the_image(tmp_path: Path) -> None:
    members = image_entries([LAYER])
    config, layer, manifest = members
    packed = gzip.compress(LAYER, mtime=7)
    compressed = entry(layer[0].name, packed)
    cids = set()
    for number, order in enumerate(([config, layer, manifest], [manifest, compressed, config])):
        source = tmp_path / f"{number}.tar"
        source.write_bytes(tar(order))
        write_canonical_archive(source, tmp_path / f"{number}-out.tar")
        cids.add(cid_of_path(tmp_path / f"{number}-out.tar"))
    assert len(cids) == 1
    wrong = tmp_path / "wrong.tar"
    wrong.write_bytes(tar([config, entry(layer[0].name, tar([entry("x")])), manifest]))
    with pytest.raises(Refused) as refusal:
        write_canonical_archive(wrong, tmp_path / "never.tar")
    assert refusal.value.code is Code.MALFORMED and not (tmp_path / "never.tar").exists()


@pytest.mark.docker
async def test_a_local_image_is_found_by_name_and_becomes_an_archive(
    name: str, tmp_path: Path
) -> None:
    notices: list[str] = []
    async with aiohttp.ClientSession() as session:
        images = EngineImages(session, notices.append, lambda: tmp_path)
        found = await images.found(name)
        again = await images.found(name)
        assert await images.found("quorate-no-such-image:v1") is None
        assert await images.found(str(cid_of_path(tmp_path))) is None
    assert isinstance(found, Path) and found == again and "of the local engine" in notices[0]
    assert images.as_named(f"image: {found} has no python3") == f"image: {name} has no python3"
    write_canonical_archive(tmp_path / "loaded.tar", tmp_path / "expected.tar")
    assert found.read_bytes() == (tmp_path / "expected.tar").read_bytes()


@pytest.mark.docker
def test_a_dockerfile_is_built_and_named_by_what_it_gives(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text(f"FROM {name}\nENV PLACE=here\n")
    engine = needed_engine()
    built = engine.build(folder)
    engine.export(built, tmp_path / "built.tar")
    assert engine.find(built.id) is not None
    subprocess.run([engine.program, "rmi", built.id], check=True, stdout=subprocess.DEVNULL)
    (folder / "Dockerfile").write_text(f"FROM {name}\nNONSENSE\n")
    with pytest.raises(UsageError, match=r"build: .*Dockerfile ends with"):
        engine.build(folder)
    with pytest.raises(UsageError, match="Dockerfile does not exist"):
        engine.build(tmp_path)


def test_a_program_that_is_no_engine_has_no_image() -> None:
    assert LocalEngine("false").find("python:3.12") is None
    assert LocalEngine("echo").find("python:3.12") is None
