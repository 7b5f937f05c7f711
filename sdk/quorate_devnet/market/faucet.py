"""Sends coins and test dollars to accounts that join a running devnet."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from quorate_contracts.deploy import Deployment
from quorate_contracts.generated.token import Token
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.market.bulk_sender import BulkSender
from quorate_devnet.market.genesis import COINS, mined
from quorate_protocol.codec import canonical
from quorate_protocol.limits import USD
from quorate_protocol.units import Address, Amount
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.keys.crypto import KeySigner

GIVER = 3  # a development account without another use


async def give(facts: dict[str, Any], accounts: Sequence[str], usd: int) -> list[Address]:
    """Sends to each account, waits until the transactions are mined, and returns the addresses.

    `facts` is devnet.json. Raises ValueError for a text that is neither address nor folder.
    """
    wanted = [address for text in accounts for address in _addresses(text)]
    deployment = canonical.from_json(Deployment, facts["deployment"])
    async with aiohttp.ClientSession() as session:
        client, signer = ChainClient(Rpc(facts["chainUrl"], session)), KeySigner(dev_account(GIVER))
        wallet = BulkSender(
            client, deployment.chain_id, signer, await client.nonce(signer.address, "pending")
        )
        for account in wanted:
            await wallet.pay(account, COINS)
            await wallet.call(
                f"dollars for 0x{account.hex()}",
                Token(deployment.token).mint(account, Amount(usd * USD)),
            )
        await mined([wallet])
    return wanted


def _addresses(text: str) -> list[Address]:
    """Returns an address, or those of the keys in a program's folder that need money: an owner's, a
    client's, a coordinator's two.
    """
    keys = Path(text) / "keys"
    if not keys.is_dir():
        if not text.startswith("0x") and len(text) != 40:
            home = shlex.quote(text)
            raise ValueError(
                f"there is no provider, coordinator or client in {text}: make one first, such as "
                f"with `quorate node init --home {home} --devnet devnet.json`"
            )
        return [_address(text)]
    paths = [
        path for name in ("owner", "account", "posting") if (path := keys / f"{name}.json").exists()
    ]
    if not paths:
        raise ValueError(f"{keys} holds no key that needs money; name the address")
    return [_address(json.loads(path.read_text())["address"]) for path in paths]


def _address(text: str) -> Address:
    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        value = b""  # not re-raised: the length is wrong then, and refused below
    if len(value) != 20:
        raise ValueError(
            f"{text[:60]!r} is neither an address (0x and 40 hex digits) nor the folder of a "
            f"provider, coordinator or client"
        )
    return Address(value)
