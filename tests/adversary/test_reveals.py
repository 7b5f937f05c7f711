"""Attacks of a provider by its Reveal."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from adversary.conftest import Attack
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.sealed import check_sealed
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.core.model.entities import Revealing
from quorate_coordinator.market import frame_handler
from quorate_coordinator.market.frame_handler import FrameHandler
from quorate_coordinator.market.frame_limits import FrameLimits
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.refusals import Code, Refused, Unavailable
from support.markets.scripted_market import DOMAIN, Market, Party
from support.memory_archive import MemoryArchive
from support.virtual_clock import VirtualClock

TIMES = 200


@pytest.mark.rule("3.63")
async def test_a_ciphertext_that_does_not_open_costs_one_decryption(
    attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decrypted = 0

    def counted(*arguments: Any) -> None:
        nonlocal decrypted
        decrypted += 1
        check_sealed(*arguments)

    monkeypatch.setattr(frame_handler, "check_sealed", counted)
    market = Market(*[Party(number, is_mute=True) for number in range(3)])
    job_id = market.order(0, 1)
    while not isinstance(market.job(job_id).phase, Revealing):
        market.beat()
    lease = market.core.state.leases[market.job(job_id).batches[0].members[0]]
    party = market.parties[lease.provider]
    reveal = party.commits[lease.assignment_hash]
    clock, store = VirtualClock(market.at), ContentStore(tmp_path / "store", 64 << 20)
    await store.put(reveal.salt + reveal.output_digest, "x")  # no ciphertext of this output
    handler = FrameHandler(
        DOMAIN,
        DEVNET,
        market.core,
        None,  # type: ignore[arg-type]  # no reveal opens, so no event is submitted
        store,
        clock,
        RunLogs(),
        Outputs(market.core.state, MemoryArchive()),
        FrameLimits(DEVNET_BOUNDS, clock.now),
    )
    sender, data = "0x" + party.owner.hex(), frames.encode(frames.RevealSent(reveal))
    first = await asyncio.gather(
        *[handler(sender, data) for _ in range(10)], return_exceptions=True
    )
    refused = [error.code for error in first if isinstance(error, Refused)]
    for _ in range(TIMES - len(refused)):
        clock.forward(60)
        with pytest.raises(Refused) as told:
            await handler(sender, data)
        refused.append(told.value.code)
    assert set(refused) == {Code.DOES_NOT_OPEN} and len(refused) == TIMES
    assert all(isinstance(error, Refused | Unavailable) for error in first)
    await store.close()
    attack(
        name=f"provider sends a ciphertext that does not open {TIMES} times",
        before=f"{TIMES} decryptions",
        now=f"{decrypted} decryption",
        cost="the pay of the job, and a fault",
    )
    assert decrypted == 1
