"""`quorate deposit` on a real devnet chain: the money arrives once, also if the command is
repeated.
"""

from pathlib import Path

import pytest

from quorate.base.errors import RefusedError
from quorate.client.money.funding import fund
from quorate_contracts.calls import ask, transact
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount
from quorate_runtime.clock import SystemClock
from support.chain.client_money import COORDINATOR, client_money

FIRST = Amount(50 * USD)


@pytest.mark.rule("6.63", "6.64", "4.79")
@pytest.mark.parametrize("into_balance", [False, True])
async def test_a_deposit_is_made_once(tmp_path: Path, into_balance: bool) -> None:
    async with client_money(tmp_path, FIRST) as money:
        profile, identity, url = money.profile, money.identity, money.chain.url
        account, escrow = profile.account.address, money.chain.escrow

        async def deposit(amount: int, purpose: str, mint: bool) -> int:
            terms = Amount(amount), purpose, SystemClock()
            return await fund(profile, identity, url, *terms, into_balance=into_balance, mint=mint)

        async def held() -> tuple[int, int]:
            tab = await ask(money.chain.client, escrow.tab(account, COORDINATOR.address))
            return tab.locked, await ask(money.chain.client, escrow.balance_of(account))

        wanted = (FIRST, 25 * USD) if into_balance else (FIRST + 25 * USD, 0)
        for _ in range(2):
            assert await deposit(25 * USD, "deposit-a", mint=True) > 0 and await held() == wanted
        with pytest.raises(RefusedError, match="chain"):
            await deposit(10**9 * USD, "deposit-b", mint=False)
        assert await held() == wanted


@pytest.mark.rule("6.72")
async def test_a_closing_tab_takes_no_deposit_until_it_has_ended(tmp_path: Path) -> None:
    async with client_money(tmp_path, FIRST) as money:
        profile, identity, url = money.profile, money.identity, money.chain.url
        sender = money.chain.sender(profile.account, profile.home, SystemClock())
        call = money.chain.escrow.close(COORDINATOR.address)
        await transact(sender, "close", call)
        more = Amount(5 * USD), "deposit", SystemClock()
        with pytest.raises(RefusedError, match="closes and takes no money until"):
            await fund(profile, identity, url, *more)
        await money.later(61)
        await fund(profile, identity, url, *more)
        tab = await ask(
            money.chain.client, money.chain.escrow.tab(profile.account.address, COORDINATOR.address)
        )
        assert tab.locked == 5 * USD and not tab.closes_at
