"""Tests `quorate node appeal` on the real contracts: the provider opens and ends its appeal."""

from typing import cast

import pytest

from contracts.evm_node import EvmNode
from contracts.market import COORDINATOR, Market, key, peopled
from contracts.test_appeals import FEE, OWNER, PAY, Appeal
from contracts.trial import money
from quorate_contracts.appeal_evidence import AppealEvidence
from quorate_contracts.bindings.court import CaseId, Phase
from quorate_node.appeals.appealing import FAILED, LOST, WON, Appealed, Appealing
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Hash32
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender


class Owner:
    """The faulted provider's owner at its desk."""

    def __init__(self, world: Market) -> None:
        self.appeal, self.node = Appeal.of(world), EvmNode(world.evm, OWNER.address)
        made = self.appeal.evidence[0]
        assert self.appeal.verdict is not None
        self.shown = AppealEvidence(
            made.shown.job, made.shown.run, self.appeal.verdict, made.reveal
        )
        client, sender = cast(ChainClient, self.node), cast(Sender, self.node)
        self.desk = Appealing(client, world.contracts, sender, self.node)  # type: ignore[arg-type]

    async def step(self) -> Appealed:
        found = await self.desk.step(self.shown)
        self.appeal.case = CaseId(found.case_id)
        return found

    def judged(self, digest: Hash32, voters: int = 7) -> None:
        """Lets the jury vote and reveal."""
        self.appeal.jurors = self.appeal.now.jurors
        jurors = self.appeal.jurors[:voters]
        self.appeal.vote([(digest,)] * voters, jurors)
        if self.appeal.now.phase is Phase.REVEALING:
            self.appeal.reveal([(digest,)] * voters, jurors)


@pytest.mark.rule("5.85", "5.86", "5.135")
@pytest.mark.parametrize("is_right", [True, False])
async def test_an_owner_opens_advances_and_ends_its_appeal(is_right: bool) -> None:
    world = peopled()
    payout, owner = key("payout0").address, Owner(world)
    before, paid = world.balance(OWNER.address), world.balance(payout)
    bond = owner.shown.bond(DEVNET)
    opened = await owner.step()
    assert opened.waits and "with a bond of 3.85 USD" in opened.done[0]
    owner.judged(owner.appeal.own()[0] if is_right else keccak256(b"another result"))
    ended = await owner.step()
    assert not ended.waits and ended.done[0] == (WON if is_right else LOST)
    assert world.balance(OWNER.address) == before - bond
    credit = bond + FEE + PAY if is_right else 0
    assert world.balance(payout) == paid + credit, "the bond comes back with gas and pay"
    again = await owner.step()
    assert again.done == ended.done[:1] and world.balance(payout) == paid + credit
    assert world.evm.ask(world.contracts.stakes.frozen(COORDINATOR.address)) == 0
    money(world)


@pytest.mark.rule("5.123", "5.135")
async def test_an_appeal_that_fails_is_opened_once_more() -> None:
    world = peopled()
    owner = Owner(world)
    first = await owner.step()
    owner.judged(ZERO_HASH)
    second = await owner.step()
    assert second.done[0] == FAILED and second.case_id != first.case_id and second.waits
    owner.judged(ZERO_HASH)
    over = await owner.step()
    assert not over.waits and over.done.count(FAILED) == 2
    money(world)


@pytest.mark.rule("5.69", "5.135")
async def test_an_appeal_that_is_too_late_or_without_its_bond_sends_nothing() -> None:
    world = peopled()
    owner = Owner(world)
    call = world.contracts.token.transfer(COORDINATOR.address, world.balance(OWNER.address))
    world.evm.send(OWNER.address, call)
    with pytest.raises(Refused, match=r"the bond is 3\.85 USD"):
        await owner.step()
    world.evm.now = owner.shown.open_until(DEVNET) + 1
    with pytest.raises(Refused) as refused:
        await owner.step()
    assert refused.value.code is Code.TOO_LATE and not owner.node.ended
