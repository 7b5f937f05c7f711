"""A market whose providers are challenged: their CPUs, under their true name."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorate import Job, Market
from quorate.trust.attestation_checks import deployment_check
from quorate_devnet.config import MARKER, DevnetConfig, ExecutorChoice
from quorate_devnet.devnet import running
from quorate_node.config import AttestationChoice
from quorate_protocol.units import UnixSeconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.p2p import available

PROVIDERS = 4
SECONDS = 120.0  # a period of 30 s, and the challenges on a busy machine
QUORATE = str(Path(sys.executable).with_name("quorate"))
IMAGE = "docker.io/library/python@sha256:" + "ab" * 32


def offers(folder: Path, *words: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of `quorate offers`, and what it says beside them."""
    command = [QUORATE, "--devnet", str(folder / MARKER), "offers", "--json", "--verify", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["offers"]
    return rows, done.stderr


@pytest.mark.rule("10.12", "10.18", "10.20", "10.21")
async def test_cpus_are_attested_and_anybody_can_check_it(tmp_path: Path) -> None:
    config = DevnetConfig(
        tmp_path / "devnet",
        PROVIDERS,
        clients=1,
        executor=ExecutorChoice.NOOP,
        attestation=AttestationChoice.L1,
    )
    job = Job(image=IMAGE, command=["true"], max_price="5", max_duration="30s", attestation="L1")
    async with running(config) as devnet, Market(devnet.profiles[0]) as market:
        async with asyncio.timeout(SECONDS):
            while [row.attestation_levels for row in await market.offers()] != [(1,)] * PROVIDERS:
                await asyncio.sleep(0.1)
        # By gossip where libp2p is installed: no coordinator is asked for the offers.
        ways = [("--on-chain",), ("--p2p",)] if not available() else [("--on-chain",)]
        asked = [asyncio.to_thread(offers, config.folder, *words) for words in ways]
        for rows, told in await asyncio.gather(*asked):
            found = [slot for row in rows for slot in row["check"]["slots"]]
            assert [(slot["level"], slot["verified"]) for slot in found] == [(1, True)] * PROVIDERS
            # A busy machine may answer too late to verify for another.
            assert all(slot["verifiers"] >= 1 and slot["gpus"] == 1 for slot in found), found
            assert "the verifiers' word" in told
            assert all(slot["verifiersWord"]["elapsedMs"] > 0 for slot in found)
        assert all(row["offer"]["slots"][0]["gpu"] == "" for row in rows), "no GPU is claimed"
        absent = replace(job, attestation="L1", resources={"cpu": 512})
        view = (await market.plan(absent)).view
        assert not view.offers and "no live offer has the resources" in view.nearest
        now = UnixSeconds(int(SystemClock().now()))
        async with deployment_check(devnet.deployment, now, devnet.chain_url) as check:
            slots = [await check.check(row.offer) for row in await market.offers()]
        assert [slot.is_verified for (slot,) in slots] == [True] * PROVIDERS, "by the chain alone"
        result = await (await market.submit(job)).result(tmp_path / "output")
        assert result.is_success and len(result.providers) == 2
