"""Sends coins and tokens of one key to accounts that join a market on a test chain.

The tokens are minted if the market has a test token. Otherwise they are the key's own.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorate_contracts.account.delivery import LONG_SECONDS, hand_over, mined
from quorate_contracts.calls import ask
from quorate_contracts.chain_check import check_chain_id
from quorate_contracts.chain_cli.token_check import address_of
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.generated.contract_calls import Call
from quorate_contracts.money_texts import currency_of
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Amount, Hash32, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.transactions import TRANSFER_GAS

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
        try:
            found += [address_of("ACCOUNT", each) for each in known or [text]]
        except Refused as refused:
            told = f"there is no folder {text[:200]} with keys; {refused.detail}"
            raise Refused(Code.MALFORMED, told) from refused
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Gift:
    """What one account had, and what it is sent. `wei` and `amount` are 0 for nothing."""

    account: Address
    had_wei: int
    had_amount: Amount
    wei: int
    amount: Amount


@dataclass(slots=True)
class Funding:
    """Sends for one key that no other program uses at the time."""

    client: ChainClient
    deployment: Deployment
    signer: Signer
    report: Callable[[str], None]
    _sent: list[tuple[str, Hash32]] = field(default_factory=list)

    async def give(
        self, accounts: Sequence[Address], wei: int, amount: Amount, is_again: bool = False
    ) -> list[Gift]:
        """Sends to each account what it lacks, and returns once all is mined. With `is_again` each
        gets the whole sums, whatever it has.

        Raises Refused if the key has too little, Unavailable if the chain takes too long.
        """
        await check_chain_id(self.client, self.deployment)
        token = Contracts.of(self.deployment).token
        is_minted = await self._is_faucet()
        gifts = [await self._gift(account, wei, amount, is_again) for account in accounts]
        await self._must_hold(gifts, is_minted)
        nonce = await self.client.nonce(self.signer.address, "pending")
        for gift in gifts:
            if gift.wei:
                call = Call(gift.account, b"", TRANSFER_GAS)
                await self._send(f"coins for 0x{gift.account.hex()}", nonce, call, gift.wei)
                nonce += 1
            if gift.amount:
                call = (token.mint if is_minted else token.transfer)(gift.account, gift.amount)
                await self._send(f"tokens for 0x{gift.account.hex()}", nonce, call)
                nonce += 1
        for what, digest in self._sent:
            await self._mined(what, digest)
        return gifts

    async def _gift(self, account: Address, wei: int, amount: Amount, is_again: bool) -> Gift:
        coins, tokens = await self.client.balance(account), await self._tokens_of(account)
        if is_again:
            return Gift(account, coins, tokens, wei, amount)
        lack = Amount(max(0, amount - tokens))
        return Gift(account, coins, tokens, max(0, wei - coins), lack)

    async def _tokens_of(self, account: Address) -> Amount:
        return await ask(self.client, Contracts.of(self.deployment).token.balance_of(account))

    async def _is_faucet(self) -> bool:
        try:
            answer = await self.client.call(self.deployment.token, FAUCET)
        except Refused:
            return False  # a token of others has no such function
        return int.from_bytes(answer, "big") == 1

    async def _must_hold(self, gifts: Sequence[Gift], is_minted: bool) -> None:
        me, currency, count = self.signer.address, currency_of(self.deployment), len(gifts)
        held, amount = await self._tokens_of(me), Amount(sum(gift.amount for gift in gifts))
        if held < amount and not is_minted:
            raise Refused(
                Code.CHAIN,
                f"the key 0x{me.hex()} has {currency.tokens(held)}, and {count} accounts get "
                f"{usd(amount)} USD",
            )
        coins, wei = await self.client.balance(me), sum(gift.wei for gift in gifts)
        if coins <= wei and (wei or amount):
            raise Refused(
                Code.CHAIN,
                f"the key 0x{me.hex()} has {currency.coins(coins)}, and {count} accounts get "
                f"{currency.coins(wei)}, beside gas",
            )

    async def _send(self, what: str, nonce: int, call: Call, wei: int = 0) -> None:
        chain_id = self.deployment.chain_id
        try:
            digest = await hand_over(self.client, chain_id, self.signer, nonce, call, wei)
        except RpcFailure as failure:
            detail = f"{what}: the chain node says: {failure.message}"
            raise Refused(Code.CHAIN, detail) from failure
        self._sent.append((what, digest))

    async def _mined(self, what: str, digest: Hash32) -> None:
        late = f"{what}: no block took it within {LONG_SECONDS:g} s"
        receipt = await mined(self.client, digest, late)
        if not receipt.success:
            raise Refused(Code.CHAIN, f"{what}: the transaction was reverted")
        self.report(what)
