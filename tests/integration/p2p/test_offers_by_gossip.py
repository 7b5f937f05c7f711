"""A client reads the market from gossip and a chain. No coordinator's HTTP server runs."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quorate.base.errors import UnavailableError
from quorate.base.exit_codes import ExitCode
from quorate.cli.main import run_main
from quorate.trust.market_by_gossip import GossipedMarket, listen
from quorate_contracts.deploy import Contracts, encode
from quorate_coordinator.chain.registration import ensure_registered
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.classes import CPUS
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.offer_gossip import OfferGossip
from quorate_protocol.messages.ports import Verdict
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Hash32
from quorate_runtime.chain import ChainClient, Rpc, Sender
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.p2p.host.host_config import HostConfig, offers_topic
from quorate_runtime.p2p.libp2p_gossip import Libp2pGossip
from quorate_runtime.p2p.p2p_node import P2pNode
from support.markets.coordinator_stage import Stage
from support.offers import a_slot, an_offer
from support.p2p.p2p_nodes import LOOPBACK, nodes_up

OWNER, SECOND = KeySigner(dev_account(5)), KeySigner(dev_account(6))
FORGER = KeySigner(b"\x66" * 32)
LISTEN_SECONDS = 6


def message(stage: Stage, owner: KeySigner, key: KeySigner, count: int, seq: int) -> bytes:
    offer = an_offer(owner.address, seq, int(time.time()) + 600, (a_slot(CPUS, 100_000, count),))
    signed = seal(stage.deployment.domain(), offer.signed(), key.sign)
    return offer_gossip.encode(OfferGossip(OfferEnvelope(offer, signed)))


async def announced(stage: Stage, addresses: tuple[str, ...]) -> None:
    """Registers the coordinator, and announces these addresses."""
    chain, contracts = (
        ChainClient(Rpc(stage.chain_url, stage.session)),
        Contracts.of(stage.deployment),
    )
    stage.home.mkdir(exist_ok=True)
    sender = Sender(
        chain,
        stage.keys.account,
        stage.home / "owner.sqlite",
        SystemClock(),
        chain_id=stage.deployment.chain_id,
    )
    await ensure_registered(chain, contracts, stage.keys, sender)
    sender.close()
    peer, text = Hash32(stage.keys.peer.public), "\n".join(addresses).encode()
    call = contracts.stakes.announce(stage.coordinator, peer, text)
    await stage.send(stage.keys.posting, call)


@contextlib.asynccontextmanager
async def publishing(
    node: P2pNode, stage: Stage, *offers: tuple[KeySigner, KeySigner, int]
) -> AsyncIterator[None]:
    """Publishes offers (provider, signing key, run slots) again and again."""
    gossip = Libp2pGossip(node)
    gossip.subscribe(lambda data, forwarder: Verdict.ACCEPT)

    async def publish() -> None:
        for seq in range(1, 100):
            for owner, key, count in offers:
                with contextlib.suppress(Unavailable):
                    await gossip.publish(message(stage, owner, key, count, seq))
            await asyncio.sleep(0.5)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        task.cancel()
        await gossip.close()


async def heard(stage: Stage) -> GossipedMarket:
    return await listen(stage.deployment, stage.chain_url, LISTEN_SECONDS, SystemClock())


@pytest.mark.rule("3.50", "3.53")
async def test_offers_come_by_gossip_and_the_chain_says_whose_they_are(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = offers_topic(stage.deployment.domain())
    node = P2pNode(HostConfig(stage.keys.peer.seed, LOOPBACK, topic=topic), SystemClock())
    async with nodes_up(node):
        await asyncio.gather(
            stage.register(OWNER, 1),
            stage.register(SECOND, 2),
            announced(stage, ("/bad/address", *node.address.addresses)),
        )
        offered = ((OWNER, OWNER, 1), (OWNER, FORGER, 1), (SECOND, SECOND, 2))
        async with publishing(node, stage, *offered):
            found, (text, tree) = await asyncio.gather(
                heard(stage), printed(stage, tmp_path, capsys)
            )
    assert found.reached == 1
    assert [one.account for one in found.coordinators] == [stage.coordinator]
    problems = {item.heard.key: item.problem for item in found.offers}
    assert problems[OWNER.address] == ""
    assert "is not the operator key" in problems[FORGER.address]
    over = "offer: 2 run slots, and their owner has 1 stake slots"
    assert problems[SECOND.address] == over and len(problems) == 3
    checks = {row["check"]["signer"]: row["check"] for row in tree["offers"]}
    assert checks[f"0x{OWNER.address.hex()}"]["problem"] == "" and len(checks) == 3
    assert all(row["slots"] == [{"level": 0, "verified": False}] for row in checks.values())
    assert tree["coordinators"][0]["account"] == f"0x{stage.coordinator.hex()}"
    assert f"0x{OWNER.address.hex()[:12]}" in text and "-/1" in text and f"BAD: {over}" in text


async def printed(
    stage: Stage, folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[str, dict[str, Any]]:
    """What `quorate offers --p2p` prints: as a table and as JSON."""
    file = folder / "deployment.json"
    file.write_bytes(encode(stage.deployment))
    words = ["offers", "--p2p", "--deployment", str(file), "--chain-url", stage.chain_url]
    words += ["--for", f"{LISTEN_SECONDS}s", "--verify"]
    capsys.readouterr()
    assert await asyncio.to_thread(run_main, words) == ExitCode.OK
    said = capsys.readouterr()
    assert "reached 1 of 1 coordinators" in said.err
    assert await asyncio.to_thread(run_main, [*words, "--json"]) == ExitCode.OK
    return said.out, json.loads(capsys.readouterr().out)


async def test_a_market_without_an_announcement_or_an_answer_is_named(stage: Stage) -> None:
    with pytest.raises(UnavailableError, match="no coordinator has announced an address"):
        await heard(stage)
    await announced(stage, ("/ip4/127.0.0.1/tcp/1",))
    with pytest.raises(UnavailableError, match="none of 1 coordinators answers"):
        await heard(stage)
