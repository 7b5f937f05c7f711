"""Sends an account's calls: each once, again until it counts, or for a key without records.

`relayed_requests.sign_requests` signs them for somebody else to send, and `Call.text` prints them
for a key that is kept elsewhere.
"""

import asyncio
from collections.abc import Sequence

from quorate_contracts.calls import SEND_SECONDS, transact
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Hash32
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.fee_bids import first_bid
from quorate_runtime.chain.sender import Sender
from quorate_runtime.chain.transactions import Transaction, sign
from quorate_runtime.chain.types import Receipt

LONG_SECONDS = 300.0  # no daemon sends it again: the person waits longer
POLL_SECONDS = 0.5
TRIES = 10
EARLY = "early"  # the contracts' reason for a step before its time


async def send_all(sender: Sender, calls: Sequence[Call], nonce: int) -> None:
    """Sends calls one after the other.

    `nonce` is the account's, read before the state from which the calls follow. It names them: a
    repeat after a kill finds those that no block has yet by the same names, and sends none twice.
    """
    for number, call in enumerate(calls):
        words = keccak256(call.to + call.data)[:4].hex()
        await transact(sender, f"{call.function}/{nonce + number}/{words}", call)


async def send_again(
    sender: Sender, purpose: str, call: Call, seconds: float = SEND_SECONDS
) -> Receipt:
    """Sends a call, or waits for the one that is on its way. Raises Refused if it reverts now.

    A purpose is sent under the numbers 0, 1, ...: a number whose transaction reverted is done with,
    and the next command tries the next one.
    """
    for number in range(TRIES):
        name = f"{purpose}/{number}"
        is_new = not await sender.known(name)
        try:
            return await transact(sender, name, call, seconds=seconds)
        except Refused:
            if is_new:
                raise
    raise Refused(Code.CHAIN, f"the contract refused {TRIES} times: {purpose}")


async def send_in_time(sender: Sender, purpose: str, call: Call) -> Receipt | None:
    """Sends it as `send_again`. Returns None if the newest block was too early for it."""
    try:
        return await send_again(sender, purpose, call, LONG_SECONDS)
    except Refused as refused:
        if EARLY not in refused.detail:
            raise
        return None  # a later try has another number


async def sent_before(sender: Sender, purpose: str) -> Receipt | None:
    """Returns the receipt of one that was sent before and did not revert, or None."""
    for number in range(TRIES):
        name = f"{purpose}/{number}"
        if not await sender.known(name):
            return None
        try:
            # The first call's arguments hold.
            return await sender.send(name, None, b"", deadline_seconds=LONG_SECONDS)
        except Refused:
            continue  # it reverted, and the next number may be on its way
    return None


async def hand_over(
    client: ChainClient, chain_id: int, signer: Signer, nonce: int, call: Call, wei: int = 0
) -> Hash32:
    """Sends for a key that no other program uses at the time, and keeps no record. Raises
    RpcFailure if the node refuses it.
    """
    bid = first_bid(await client.fees(), client.fee_cap_wei)
    fields = (nonce, call.to, call.data, wei, call.gas, bid.fee_max, bid.tip_max)
    return await client.send_raw(sign(Transaction(chain_id, *fields), signer).raw)


async def mined(client: ChainClient, digest: Hash32, late: str) -> Receipt:
    """Waits for a receipt. Raises Unavailable with the sentence `late` after LONG_SECONDS."""
    limit = asyncio.get_running_loop().time() + LONG_SECONDS
    while (receipt := await client.receipt(digest)) is None:
        if asyncio.get_running_loop().time() > limit:
            raise Unavailable(late)
        await asyncio.sleep(POLL_SECONDS)
    return receipt
