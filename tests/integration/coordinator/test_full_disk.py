"""Tests a coordinator whose disk fills up completely: it refuses orders, serves, and goes on by
itself once there is room.
"""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorate_coordinator.service import Service
from quorate_protocol.codec import canonical
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount
from support.markets.coordinator_stage import Stage, deployed_stage, running, until
from support.messages import a_spec
from support.requirements import require

SIZE = 400 << 20  # above what a coordinator calls a full disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    require("mounts")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
async def stage(disk: Path) -> AsyncIterator[Stage]:
    async with deployed_stage(disk) as made:
        yield made


def fill(folder: Path) -> Path:
    """Takes every byte of the disk."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


async def test_it_refuses_orders_serves_and_goes_on_by_itself(
    stage: Stage, disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = replace(stage, home=tmp_path)  # where the client keeps what it sends

    async def account(service: Service) -> dict[str, Any]:
        path = f"accounts/0x{stage.client.address.hex()}"
        status, found = await stage.get(service.url, path, stage.client)
        assert status == 200, "it serves"
        return found

    async def order(service: Service) -> str:
        body = stage.submission(stage.client, a_spec("x"), 1, now=int(time.time()))
        async with stage.session.post(
            f"{service.url}/v1/orders", data=canonical.encode(body)
        ) as response:
            return str((await response.json())["detail"])

    async with running(stage.service()) as service:

        async def problem() -> str:
            return service.journal.problem

        await elsewhere.fund(stage.client, Amount(80 * USD))
        await until(lambda: account(service), lambda view: view["locked"] == 80 * USD)
        filler = await asyncio.to_thread(fill, disk)
        assert "the coordinator's disk has no room" in await order(service)
        await elsewhere.fund(stage.client, Amount(20 * USD))  # the chain's event needs the journal
        found = await until(problem, bool)
        assert found.startswith("the disk is full: check `df -h")
        await account(service)
        _, health = await stage.get(service.url, "health")
        assert "disk" in {item["name"] for item in health["problems"]}
        assert sum("nothing new is taken" in text for text in caplog.messages) == 1
        filler.unlink()
        await until(problem, lambda text: not text)
        assert "no room" not in await order(service)
        await until(lambda: account(service), lambda view: view["locked"] == 100 * USD)
        _, health = await stage.get(service.url, "health")
        assert "disk" not in {item["name"] for item in health["problems"]}
    async with running(stage.service()) as service:
        assert (await account(service))["locked"] == 100 * USD, "it is in the journal"
