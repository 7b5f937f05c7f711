"""A daemon stakes nothing that its owner has not agreed to, and asks for nothing twice."""

import dataclasses

import pytest

from quorate_contracts.calls import ask
from quorate_node.daemon import ProviderDaemon
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount
from quorate_protocol.values import replace
from quorate_runtime.process.program_start import first_cause
from support.markets.scripted_coordinator import OWNER, Stage, running


class Owner:
    """Answers each question of a daemon in the same way, and remembers them."""

    def __init__(self, *, says_yes: bool) -> None:
        self.says_yes, self.asked = says_yes, list[str]()

    async def answer(self, question: str) -> bool:
        self.asked.append(question)
        return self.says_yes


def provider(market: Stage, owner: Owner, slots: int, agreed: int = 0) -> ProviderDaemon:
    plain = market.daemon(market.coordinator.url)
    config = replace(plain.config, slots=slots, stake_agreed=Amount(agreed * USD))
    return dataclasses.replace(plain, config=config, agree=owner.answer)


async def staked(market: Stage) -> int:
    return int(await ask(market.client, market.contracts.stakes.stake_of(OWNER.address)))


async def test_stake_moves_only_as_far_as_the_owner_agreed(market: Stage) -> None:
    refusing, agreeing = Owner(says_yes=False), Owner(says_yes=True)
    with pytest.raises(BaseExceptionGroup) as caught:
        await provider(market, refusing, 1).run()
    text = str(first_cause(caught.value))
    assert "nothing was staked" in text and "`quorate node init --stake 100`" in text
    assert await ask(market.client, market.contracts.stakes.role_of(OWNER.address)) == 0

    async with running(market, provider(market, agreeing, 1)):
        account = f"0x{OWNER.address.hex()}"
        assert agreeing.asked == [f"Stake 100.00 USD of {account} in slots of the pools 1 x cpu?"]
    async with running(market, provider(market, refusing, 1)):
        assert len(refusing.asked) == 1, "what is staked already needs no second answer"
    async with running(market, provider(market, refusing, 2, agreed=200)):
        assert len(refusing.asked) == 1, "a service was told the sum once"
    assert await staked(market) == 200 * USD
    with pytest.raises(BaseExceptionGroup):
        await provider(market, refusing, 3, agreed=200).run()
    assert "Stake 100.00 USD" in refusing.asked[1] and await staked(market) == 200 * USD
