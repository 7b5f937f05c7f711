"""Tests that a coordinator proves by itself that a provider signed two Commits."""

from pathlib import Path

import pytest

from quorate_content.store.content_store import ContentStore
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease
from quorate_coordinator.core.model.effects import ProveEquivocation
from quorate_coordinator.market.frame_handler import FrameHandler
from quorate_coordinator.market.frame_limits import FrameLimits
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.values import replace
from support.markets.scripted_market import DOMAIN, Market, Party
from support.memory_archive import MemoryArchive
from support.refusals import refuses
from support.virtual_clock import VirtualClock


@pytest.mark.rule("5.133")
async def test_a_second_commit_is_proven_on_chain_and_the_same_one_again_is_not(
    tmp_path: Path,
) -> None:
    """The handler tells the core once, whatever the provider repeats. The proof is an effect of the
    journal, so a crash loses none.
    """
    market = Market(*[Party(number) for number in range(3)])
    market.order(0, 1)
    market.deliver()
    held = next(iter(market.core.state.leases.values()))
    assert isinstance(held.phase, lease.Committed)
    party, known = market.parties[held.provider], held.phase.commit
    told: list[ev.Event] = []

    class Submitting:
        async def submit(self, event: ev.Event) -> None:
            told.append(event)
            market.send(event)

    handler = FrameHandler(
        DOMAIN,
        DEVNET,
        market.core,
        Submitting(),  # type: ignore[arg-type]
        ContentStore(tmp_path / "store", 1 << 20),
        VirtualClock(market.at),
        RunLogs(),
        Outputs(market.core.state, MemoryArchive()),
        FrameLimits(DEVNET_BOUNDS, VirtualClock(market.at).now),
    )
    second = replace(known.message, commitment=keccak256(b"another result"))
    third = replace(known.message, commitment=keccak256(b"a third"))
    for message in (second, third):
        commit = seal(DOMAIN, message, party.key.sign)
        with refuses(Code.NOT_STORED):
            await handler("0x" + party.owner.hex(), frames.encode(frames.CommitSent(commit)))
    seen = [event for event in told if isinstance(event, ev.EquivocationSeen)]
    assert [event.commit.message for event in seen] == [second]
    proofs = [effect for effect in market.effects if isinstance(effect, ProveEquivocation)]
    assert [(proof.one, proof.other) for proof in proofs] == [(known, seen[0].commit)]
    assert proofs[0].assignment == held.assignment
    await handler.store.close()
    again = ev.EquivocationSeen(Envelope(known.message, known.sig), party.key.address)
    with pytest.raises(Refused, match="contradicts no other"):
        market.send(again)
