"""Attacks by an image on the disk of the owner whose machine brings it into a sandbox."""

import asyncio
import tarfile
import time
from pathlib import Path

import pytest

from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import ImageLimits
from quorate_protocol.refusals import Code, Refused
from support.executors.executor_cases import (
    BWRAP,
    SANDBOXES,
    ending,
    make_executor,
    python_task,
    said,
)
from support.executors.hostile_layers import layer, sparse_member
from support.executors.image_archives import append_layer, entry, image_entries, tar

REAL_BYTES = 71 << 30


def archive(folder: Path, *layers: bytes) -> Path:
    path = folder / "image.tar"
    path.write_bytes(tar(image_entries(layers, {"Cmd": ["/x"]})))
    return path


@pytest.mark.rule("11.1")
@pytest.mark.parametrize("kind", SANDBOXES)
async def test_a_sparse_file_of_an_image_cannot_fill_the_disk(
    kind: str, tmp_path: Path, attack
) -> None:  # type: ignore[no-untyped-def]
    path = archive(tmp_path, layer(sparse_member(REAL_BYTES)))
    async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
        with pytest.raises(Refused, match=f"would write {REAL_BYTES} bytes from 1;") as refusal:
            await executor.start(python_task(path, ""))
    assert refusal.value.code is Code.UNSUPPORTED
    attack(
        name=f"sparse file in an image ({kind})",
        before="71 GB of the owner's disk for 513 bytes" if "docker" in kind else "refused",
        now="refused before the engine sees it: 0 bytes written",
        cost="an upload of 2 KiB",
    )


@pytest.mark.rule("11.5")
@pytest.mark.parametrize("kind", [BWRAP])  # engines load images beside each other
async def test_an_image_of_many_files_does_not_delay_other_starts(
    kind: str, tmp_path: Path, image: Path, attack
) -> None:  # type: ignore[no-untyped-def]
    append_layer(image, tmp_path / "many.tar", tar([entry(f"m/{n}") for n in range(10_000)]), ())
    async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
        await said(executor, python_task(image, ""))
        begun = time.monotonic()
        large = asyncio.create_task(executor.start(python_task(tmp_path / "many.tar", "")))
        await asyncio.wait({large}, timeout=0.3)  # it has begun
        await executor.start(python_task(image, ""))
        waited = time.monotonic() - begun
        assert not large.done(), "the other start waited for it"
        await large
        took = time.monotonic() - begun
    attack(
        name=f"image of many small files ({kind})",
        before="every other start waits 13 s for 100,000 files",
        now=f"others start after {waited:.1f} s, it after {took:.1f} s (10,000 files)",
        cost="an upload of a few MiB",
    )


@pytest.mark.rule("11.1")
@pytest.mark.parametrize(
    "kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
)
def test_entries_without_data_count_as_disk(kind: bytes, tmp_path: Path) -> None:
    """A million empty entries are small in an archive, and each takes a block or an inode."""
    names = [entry(f"{number}", kind=kind, link="0") for number in range(1_000)]
    path = archive(tmp_path, tar(names))
    with pytest.raises(Refused, match="its first 513 entries would write 2101248") as refusal:
        read_archive(path, ImageLimits(unpacked_bytes=2 << 20))
    assert refusal.value.code is Code.OVERSIZE
