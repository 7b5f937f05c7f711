"""`quorate deposit` on a real devnet chain: the money arrives once, also if the command is
repeated.
"""

from pathlib import Path

import pytest

from quorate.client.money.funding import fund
from quorate.errors import RefusedError
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount
from quorate_runtime.clock import SystemClock
from support.chain.client_money import COORDINATOR, client_money


async def test_a_deposit_is_made_once(tmp_path: Path) -> None:
    async with client_money(tmp_path, Amount(50 * USD)) as money:
        profile, identity, url = money.profile, money.identity, money.chain.url

        async def allocated() -> int:
            query = money.chain.escrow.allocation(profile.account.address, COORDINATOR.address)
            return (await money.chain.ask(query)).allocated

        before = await allocated()
        for _ in range(2):
            amount = Amount(25 * USD)
            gas = await fund(profile, identity, url, amount, "deposit-a", SystemClock(), mint=True)
            assert gas > 0 and await allocated() == before + 25 * USD
        with pytest.raises(RefusedError, match="chain"):
            await fund(profile, identity, url, Amount(10**9 * USD), "deposit-b", SystemClock())
        assert await allocated() == before + 25 * USD
