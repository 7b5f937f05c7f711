"""`quorate balance` and `withdraw` after a halt, as programs: the coordinator's server is gone."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from quorate.client.money.chain_url import remember_chain_url
from quorate.client.money.funding import fund
from quorate.errors import RefusedError
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_contracts.deploy import Contracts
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.setup.bulk_sender import BulkSender
from quorate_devnet.setup.genesis import mined
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Statement
from quorate_protocol.units import ZERO_HASH, Address, Amount, Sequence
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.process.crash_points import CRASH_VARIABLE
from support.chain.client_money import COORDINATOR, ClientMoney, client_money
from support.cli_prompt import typed

DEPOSIT = Amount(50 * USD)
PROGRAM = (
    "import os; from quorate_runtime.process import crash_points; "
    f"crash_points.configure(os.environ['{CRASH_VARIABLE}']); "
    "from quorate.cli.main import main; main()"
)


def words_of(market: ClientMoney, words: tuple[str, ...]) -> list[str]:
    home = market.profile.home
    return ["--home", str(home), "--password-file", str(home.parent / "password"), *words]


async def command(market: ClientMoney, *words: str) -> tuple[int, str]:
    """Runs `quorate WORDS`; returns its exit status and its output."""
    return await asyncio.to_thread(typed, *words_of(market, words))


async def killed(market: ClientMoney, crash: str, *words: str) -> None:
    """Runs `quorate WORDS` as a process that kills itself at a point of the sender."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *words_of(market, words)),
        env=os.environ | {CRASH_VARIABLE: crash},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await running.communicate()
    assert running.returncode == -signal.SIGKILL, said.decode()


async def halted(market: ClientMoney) -> None:
    """Halts the coordinator, which promised somebody an epoch and never posts it."""
    c, watcher = Contracts.of(market.deployment), KeySigner(dev_account(3))
    wallet = BulkSender(market.node.client, market.identity.chain_id, watcher)
    promised = Statement(watcher.address, Amount(1), Amount(0), Sequence(1), Sequence(1), ZERO_HASH)
    stated = seal(market.deployment.domain(), promised, COORDINATOR.sign)
    await wallet.call("tokens", c.token.mint(watcher.address, Amount(USD)))
    await wallet.call("approval", c.token.approve(c.challenges.address))
    await wallet.call("demand", c.challenges.demand_epoch(COORDINATOR.address, stated))
    await mined([wallet])
    await market.later(DEVNET.halt_after + 1)
    await wallet.call("halt", c.challenges.halt(COORDINATOR.address))
    await mined([wallet])


def pinned(home: Path, identity: CoordinatorIdentity, chain_url: str) -> None:
    """Stores what a profile knows after its first contact."""
    (home / "pins.json").write_bytes(canonical.encode(identity))
    remember_chain_url(home, chain_url)
    (home.parent / "password").touch(mode=0o600)
    (home.parent / "password").write_text("pass\n")


@pytest.mark.rule("4.74", "6.49")
async def test_money_comes_out_without_the_coordinators_server(tmp_path: Path) -> None:
    async with client_money(tmp_path, DEPOSIT) as market:
        pinned(market.profile.home, market.identity, market.node.url)
        await halted(market)
        status, said = await command(market, "balance")
        name = f"halted     coordinator 0x{COORDINATOR.address.hex()} was halted on "
        assert status == 0 and name in said, said
        assert "halted     50.00 USD of its allocation is free from " in said
        status, said = await command(market, "withdraw", "--json")
        [state] = json.loads(said.splitlines()[-1])["halted"]
        assert (status, state["leftMicroUsd"]) == (0, DEPOSIT), said
        assert state["freeFrom"] == state["haltedAt"] + DEVNET.halt_settle
        with pytest.raises(RefusedError, match="was halted on .* takes no money: nothing was"):
            await fund(
                market.profile,
                market.identity,
                market.node.url,
                Amount(USD),
                "deposit",
                SystemClock(),
            )
        await market.later(DEVNET.withdrawal_delay)
        await killed(market, "chain.after-send", "withdraw")  # the release is on its way
        status, said = await command(market, "withdraw")
        account = Address(market.profile.account.address)
        assert status == 0 and f"50.00 USD withdrawn to 0x{account.hex()}" in said, said
        for event in ("WithdrawalRequested", "Released", "Withdrawn"):
            assert len(await market.events(event)) == 1, event
        assert not await market.events("ReleaseRequested")
        status, said = await command(market, "withdraw")
        assert status == 3 and "at most 0.00 USD can be withdrawn" in said, said
