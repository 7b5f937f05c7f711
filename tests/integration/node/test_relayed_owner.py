"""An owner without coins joins, leaves and gets its stake back, because a relayer sends for it."""

from pathlib import Path

import pytest

from quorate_contracts.account.relayed_requests import RequestFile, encode
from quorate_contracts.account.relaying import Relay, read_file, told
from quorate_contracts.calls import ask
from quorate_devnet.chain.accounts import dev_account
from quorate_node.cli.owner_desk import owner_desk
from quorate_node.cli.requesting import Wish, requests_for
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.classes import CPUS
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, UnixSeconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from support.cli_prompt import typed
from support.markets.scripted_coordinator import OWNER, Stage

RELAYER = KeySigner(dev_account(15))
FEE = Amount(USD)


async def wished(market: Stage, wish: Wish, payout: Address | None = None) -> RequestFile:
    """What the owner signs, on a daemon's folder that never ran."""
    config, clock = market.daemon(market.coordinator.url).config, SystemClock()
    until = UnixSeconds((await market.client.head()).time + 3_600)
    wanted = {CPUS.id(): 2}
    async with owner_desk(config, market.keys(), clock) as desk:
        return await requests_for(desk, market.keys(), wish, wanted, payout, until, FEE)


@pytest.mark.rule("2.8", "2.9")
async def test_a_relayer_registers_stakes_and_frees_for_an_owner_and_gets_its_fees(
    market: Stage, tmp_path: Path
) -> None:
    c, pool, said = market.contracts, CPUS.id(), list[str]()
    relay = Relay(market.client, c, RELAYER, said.append)
    with pytest.raises(Refused, match="no permits: first approve 202.00 USD"):
        await wished(market, Wish.JOIN)
    await market.send(OWNER, "approve", c.token.approve(c.stakes.address, Amount(10**12)))
    pocket = Amount(5 * USD)
    saved = c.token.approve(c.escrow.address, pocket), c.escrow.deposit(pocket, ZERO_ADDRESS)
    await market.send(OWNER, "save", *saved)
    nonce = await market.client.nonce(OWNER.address)
    joins = await wished(market, Wish.JOIN)
    (tmp_path / "requests.json").write_bytes(encode(joins))
    async with market.fast():
        found = await relay.send(read_file(tmp_path / "requests.json"), None)
        assert (found.sent, found.amount) == (2, 2 * FEE) and found.wei > 0
        assert await ask(market.client, c.stakes.open_slots_of(OWNER.address, pool)) == 2
        again = await relay.send(joins, None)
        assert again.sent == 0 and "nothing was sent" in told(again, c)
        with pytest.raises(Refused, match="has it already"):
            await wished(market, Wish.JOIN)
        payout = Address(b"\x31" * 20)
        assert (await relay.send(await wished(market, Wish.PAYOUT, payout), Amount(1))).amount == 1
        assert await ask(market.client, c.stakes.payout_of(OWNER.address)) == payout
        assert (await relay.send(await wished(market, Wish.WITHDRAW), None)).sent == 1
        assert await ask(market.client, c.token.balance_of(payout)) == pocket - FEE
        assert (await relay.send(await wished(market, Wish.LEAVE), None)).sent == 2
        with pytest.raises(Refused, match="or not yet"):
            await wished(market, Wish.UNBOND)
        head = await market.client.head()
        await market.client.rpc.request("evm_mine", hex(head.time + DEVNET.unbond_after))
        assert (await relay.send(await wished(market, Wish.UNBOND), None)).sent == 2
    assert await ask(market.client, c.stakes.stake_of(OWNER.address)) == 0
    assert await market.client.nonce(OWNER.address) == nonce, "the owner sent nothing itself"


def test_a_file_without_requests_is_refused_by_name(tmp_path: Path) -> None:
    key, file = tmp_path / "key", tmp_path / "requests.json"
    key.touch(mode=0o600)
    key.write_text(dev_account(15).hex())
    words = ("chain", "relay", str(file), "--key", str(key), "--chain-url", "http://127.0.0.1:9")
    for content, sentence in ((None, "No such file"), ("[]", "holds no requests")):
        if content is not None:
            file.write_text(content)
        status, said = typed(*words)
        assert status == 2 and sentence in said and str(file) in said, said
    status, said = typed("node", "request", "fly", "--home", str(tmp_path / "none"))
    assert status != 0 and "Traceback" not in said
    status, said = typed(*words, "--fee", "1.2345678")
    assert status == 2 and "Traceback" not in said
