"""Sends coins and tokens of one key to accounts that join a market on a test chain.

The tokens are minted if the market has a test token. Otherwise they are the key's own.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorate_contracts.bindings.calls import Call
from quorate_contracts.chain_check import check_chain_id
from quorate_contracts.chain_cli.token_check import address_of
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.money_texts import currency_of
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.ports import Signer
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Amount, Hash32, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.fee_bids import first_bid
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.transactions import Transaction, sign

WAIT_SECONDS = 300.0
POLL_SECONDS = 0.5
TRANSFER_GAS = 21_000
KEYS_WITH_MONEY = ("owner", "operator", "account", "posting")
FAUCET = keccak256(b"FAUCET()")[:4]


def accounts_of(texts: Sequence[str]) -> list[Address]:
    """Returns addresses, and those of the keys in the folders of programs that need money. Raises
    Refused, which names a text that is neither.
    """
    found: list[Address] = []
    for text in texts:
        keys = Path(text) / "keys"
        paths = [keys / f"{name}.json" for name in KEYS_WITH_MONEY]
        known = [json.loads(path.read_text())["address"] for path in paths if path.exists()]
        if keys.is_dir() and not known:
            raise Refused(Code.MALFORMED, f"{keys} holds no key that needs money")
        found += [address_of("ACCOUNT", each) for each in known or [text]]
    return list(dict.fromkeys(found))


@dataclass(slots=True)
class Funding:
    """Sends for one key that no other program uses at the time."""

    client: ChainClient
    deployment: Deployment
    signer: Signer
    report: Callable[[str], None]
    _sent: list[tuple[str, Hash32]] = field(default_factory=list)

    async def give(self, accounts: Sequence[Address], wei: int, amount: Amount) -> None:
        """Sends to each account, and returns once all is mined.

        Raises Refused if the key has too little, Unavailable if the chain takes too long.
        """
        await check_chain_id(self.client, self.deployment)
        token = Contracts.of(self.deployment).token
        is_minted = await self._is_faucet()
        await self._must_hold(len(accounts), wei, Amount(0) if is_minted else amount)
        nonce = await self.client.nonce(self.signer.address, "pending")
        for account in accounts:
            if wei:
                await self._send(f"coins for 0x{account.hex()}", nonce, account, wei)
                nonce += 1
            if amount:
                call = (token.mint if is_minted else token.transfer)(account, amount)
                await self._send(f"tokens for 0x{account.hex()}", nonce, account, 0, call)
                nonce += 1
        for what, digest in self._sent:
            await self._mined(what, digest)

    async def _is_faucet(self) -> bool:
        try:
            answer = await self.client.call(self.deployment.token, FAUCET)
        except Refused:
            return False  # not re-raised: a token of others has no such function
        return int.from_bytes(answer, "big") == 1

    async def _must_hold(self, count: int, wei: int, amount: Amount) -> None:
        me, currency = self.signer.address, currency_of(self.deployment)
        token = Contracts.of(self.deployment).token.balance_of(me)
        held = token.decode(await self.client.call(token.to, token.data))
        if held < count * amount:
            raise Refused(
                Code.CHAIN,
                f"the key 0x{me.hex()} has {currency.tokens(held)}, and {count} accounts get "
                f"{usd(count * amount)} USD",
            )
        coins = await self.client.balance(me)
        if coins <= count * wei:
            raise Refused(
                Code.CHAIN,
                f"the key 0x{me.hex()} has {currency.coins(coins)}, and {count} accounts get "
                f"{currency.coins(count * wei)}, beside gas",
            )

    async def _send(
        self, what: str, nonce: int, to: Address, wei: int, call: Call | None = None
    ) -> None:
        bid = first_bid(await self.client.fees(), self.client.fee_cap_wei)
        place, data, gas = (call.to, call.data, call.gas) if call else (to, b"", TRANSFER_GAS)
        fields = (nonce, place, data, wei, gas, bid.fee_max, bid.tip_max)
        signed = sign(Transaction(self.deployment.chain_id, *fields), self.signer)
        try:
            self._sent.append((what, await self.client.send_raw(signed.raw)))
        except RpcFailure as failure:
            detail = f"{what}: the chain node says: {failure.message}"
            raise Refused(Code.CHAIN, detail) from failure

    async def _mined(self, what: str, digest: Hash32) -> None:
        limit = asyncio.get_running_loop().time() + WAIT_SECONDS
        while (receipt := await self.client.receipt(digest)) is None:
            if asyncio.get_running_loop().time() > limit:
                raise Unavailable(f"{what}: no block took it within {WAIT_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)
        if not receipt.success:
            raise Refused(Code.CHAIN, f"{what}: the transaction was reverted")
        self.report(what)
