"""The demo's content: IPFS peers, and the gateway that stands for them, keep the same promises."""

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate_content.dag.cid import raw_cid
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import gateway_source
from quorate_devnet.market import ipfs_peer
from quorate_devnet.market.content_origin import ContentOrigin, content_origin
from quorate_devnet.market.ipfs_peer import built_program
from quorate_protocol.refusals import Unavailable
from support.requirements import GO_PEER, require

MIB = 1 << 20
SECONDS = 60.0


@pytest.fixture(params=["ipfs", "gateway"])
async def origin(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ContentOrigin]:
    if request.param == "ipfs":
        require("gopeer")
    program = GO_PEER if request.param == "ipfs" else None
    async with content_origin(program, tmp_path / "origin") as found:
        assert found.kind == request.param
        assert ("make-gopeer" in found.instead) == (found.kind == "gateway"), "with the remedy"
        yield found


async def test_what_was_added_is_fetched_from_its_gateway_by_our_own_cid(
    origin: ContentOrigin, tmp_path: Path
) -> None:
    files = {"small": b"rows", "large": os.urandom(3 * MIB + 1), "empty": b""}
    store = ContentStore(tmp_path / "store", 64 * MIB)
    source = gateway_source("gateway", origin.gateway)
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        cid = await origin.add(path)
        assert cid == str(cid_of_path(path))
        async with await store.get(cid, [source], 8 * MIB, SECONDS, "provider") as lease:
            assert lease.path.read_bytes() == data
    await store.close()


async def test_what_nobody_added_is_clearly_absent(origin: ContentOrigin, tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store", 64 * MIB)
    source = gateway_source("gateway", origin.gateway)
    with pytest.raises(Unavailable, match="no source had bafk.*gateway 127"):
        await store.get(raw_cid(b"nobody has it"), [source], MIB, SECONDS, "provider")
    await store.close()


@pytest.mark.parametrize("text", ["#!/bin/sh\necho no JSON\n", "#!/nowhere/at/all\n", ""])
async def test_a_program_that_is_no_peer_is_named(tmp_path: Path, text: str) -> None:
    program = tmp_path / "gopeer"
    program.write_text(text)
    program.chmod(stat.S_IRWXU)
    with pytest.raises(Unavailable, match="gopeer"):
        async with content_origin(program, tmp_path / "origin"):
            pass


async def test_a_silent_program_does_not_delay_the_demo_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipfs_peer, "START_SECONDS", 0.2)
    program = tmp_path / "gopeer"
    program.write_text("#!/bin/sh\nexec cat > /dev/null\n")
    program.chmod(stat.S_IRWXU)
    with pytest.raises(Unavailable, match="did not start"):
        async with content_origin(program, tmp_path / "origin"):
            pass


def test_the_checkouts_program_is_found_if_it_is_built() -> None:
    assert built_program() == (GO_PEER if GO_PEER.is_file() else None)
