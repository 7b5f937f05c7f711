"""Coins and test dollars for accounts that want to join a running devnet."""

from collections.abc import Sequence
from typing import Any

import aiohttp

from quorate_contracts.bindings.token import Token
from quorate_contracts.deploy import Deployment
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.genesis import COINS, mined
from quorate_devnet.wallet import Wallet
from quorate_protocol import codec
from quorate_protocol.limits import USD
from quorate_protocol.units import Address, Amount
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.crypto import KeySigner

GIVER = 3  # development account that nothing else uses


async def give(facts: dict[str, Any], accounts: Sequence[str], usd: int) -> None:
    """Sends to each account and waits until it is mined. `facts` is devnet.json. ValueError for what is no address."""
    wanted = [_address(text) for text in accounts]
    deployment = codec.from_json(Deployment, facts["deployment"])
    async with aiohttp.ClientSession() as session:
        client, signer = ChainClient(Rpc(facts["chainUrl"], session)), KeySigner(dev_account(GIVER))
        wallet = Wallet(client, deployment.chain_id, signer, await client.nonce(signer.address, "pending"))
        for account in wanted:
            await wallet.pay(account, COINS)
            await wallet.call(f"dollars for 0x{account.hex()}", Token(deployment.token).mint(account, Amount(usd * USD)))
        await mined([wallet])


def _address(text: str) -> Address:
    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise ValueError(f"{text[:60]!r} is not an address: 0x and 40 hex digits") from error
    if len(value) != 20:
        raise ValueError(f"{text[:60]!r} is not an address: 0x and 40 hex digits")
    return Address(value)
