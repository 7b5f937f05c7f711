"""Sends requests that accounts without coins signed (`quorate chain relay`), for their fee."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quorate_contracts.calls import ask, simulate
from quorate_contracts.chain_check import check_chain
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.contract_calls import Call
from quorate_contracts.money_texts import currency_of
from quorate_contracts.relayed_requests import RequestFile, calls_to_relay, decode
from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Amount, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.fee_bids import first_bid
from quorate_runtime.chain.node_errors import Answer, classify
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.transactions import Transaction, sign

WAIT_SECONDS = 300.0
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Relayed:
    """What a relayer sent, what it paid for gas (wei), and what it got (token units)."""

    sent: int
    wei: int
    amount: Amount


@dataclass(frozen=True, slots=True)
class Relay:
    """Sends for one key that no other program uses at the time."""

    client: ChainClient
    contracts: Contracts
    signer: Signer
    report: Callable[[str], None]

    async def send(self, file: RequestFile, fee: Amount | None) -> Relayed:
        """Sends what the chain has not taken yet, one by one. Repeating it goes on.

        Raises Refused with the reason if a request would be refused: then nothing is sent for it.
        Raises Unavailable if the chain takes too long.
        """
        await check_chain(self.client, self.contracts.deployment)
        before, now = await self._tokens(), (await self.client.head()).time
        calls = await calls_to_relay(self.client, self.contracts, file, fee, now)
        wei = 0
        for number, call in enumerate(calls):
            # Tried without paying first: what is refused costs the relayer nothing.
            await simulate(self.client, call, self.signer.address)
            wei += await self._send(call)
            self.report(f"{number + 1} of {len(calls)} sent")
        return Relayed(len(calls), wei, Amount(max(0, await self._tokens() - before)))

    async def _tokens(self) -> int:
        account = self.signer.address
        token, escrow = self.contracts.token, self.contracts.escrow
        asked = (token.balance_of(account), escrow.balance_of(account))
        return sum([await ask(self.client, each) for each in asked])

    async def _send(self, call: Call) -> int:
        nonce = await self.client.nonce(self.signer.address, "pending")
        bid = first_bid(await self.client.fees(), self.client.fee_cap_wei)
        fields = (nonce, call.to, call.data, 0, call.gas, bid.fee_max, bid.tip_max)
        signed = sign(Transaction(self.contracts.deployment.chain_id, *fields), self.signer)
        try:
            digest = await self.client.send_raw(signed.raw)
        except RpcFailure as failure:
            told = f"the chain node says: {failure.message}"
            if classify(failure.message) is Answer.UNFUNDED:
                currency = currency_of(self.contracts.deployment)
                told = f"the key has too little for gas: {currency.send(self.signer.address)}"
            raise Refused(Code.CHAIN, told) from failure
        limit = asyncio.get_running_loop().time() + WAIT_SECONDS
        while (receipt := await self.client.receipt(digest)) is None:
            if asyncio.get_running_loop().time() > limit:
                raise Unavailable(f"no block took the request within {WAIT_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)
        if not receipt.success:
            raise Refused(Code.CHAIN, "the transaction was reverted: another relayer was first")
        return receipt.gas_used * receipt.gas_price_wei


def read_file(path: Path) -> RequestFile:
    """Reads the file of `quorate node request`. Raises Refused, which names the file."""
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise Refused(Code.MALFORMED, f"{path}: {error.strerror}") from error
    except Refused as refused:
        raise Refused(refused.code, f"{path} holds no requests: {refused.detail}") from refused


def told(found: Relayed, contracts: Contracts) -> str:
    if not found.sent:
        return "the chain has taken all of these requests already: nothing was sent"
    coins = currency_of(contracts.deployment).coins(found.wei)
    return f"{found.sent} transactions sent for {coins}, and {usd(found.amount)} USD got"
