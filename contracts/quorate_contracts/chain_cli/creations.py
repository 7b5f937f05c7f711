"""Sends the transactions that create the contracts, so that a repeated run makes none twice.

The deployer and the nonces fix every address before anything is sent. So the chain itself tells
what stands: a contract whose address has code is done, and sending its transaction again under the
same nonce can only replace it. Nothing needs to be stored in between.
"""

from collections.abc import Callable
from dataclasses import dataclass

from quorate_contracts.deploy import Creation, waves
from quorate_protocol.messages.ports import Clock, Signer
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.fee_bids import Bid, first_bid, raised_bid
from quorate_runtime.chain.node_errors import Answer, classify
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.transactions import Transaction, sign

POLL_SECONDS = 0.5
BUMP_SECONDS = 45.0
WAIT_SECONDS = 900.0  # for one contract, and for the depth of the last one


@dataclass(slots=True)
class Creator:
    """Creates contracts under one key. `report` gets a sentence for each step."""

    client: ChainClient
    signer: Signer
    chain_id: int
    clock: Clock
    report: Callable[[str], None]

    async def create_all(self, creations: tuple[Creation, ...]) -> None:
        """Returns once all contracts stand in blocks.

        Raises Refused if an address can no longer be reached, Unavailable if the chain takes too
        long. Calling it again goes on.
        """
        for wave in waves(creations):
            await self._create_wave(wave)

    async def _create_wave(self, creations: tuple[Creation, ...]) -> None:
        missing = [item for item in creations if not await self.client.code(item.address)]
        bid = first_bid(await self.client.fees(), self.client.fee_cap_wei)
        for creation in missing:
            self.report(f"{creation.name}: sending, at most {creation.gas} gas")
            await self._send(creation, bid)
        for creation in creations:
            if creation in missing:
                await self._wait(creation, bid)
            self.report(f"{creation.name} stands at 0x{creation.address.hex()}")

    async def _wait(self, creation: Creation, bid: Bid) -> None:
        limit = self.clock.now() + WAIT_SECONDS
        while not await self._stands(creation, min(limit, self.clock.now() + BUMP_SECONDS)):
            if self.clock.now() >= limit:
                raise Unavailable(f"{creation.name}: no block took it within {WAIT_SECONDS:g} s")
            raised = raised_bid(bid, await self.client.fees(), self.client.fee_cap_wei)
            if isinstance(raised, str):
                self.report(f"{creation.name} waits: {raised}")
            else:
                bid = raised
            await self._send(creation, bid)

    async def settle(self, creations: tuple[Creation, ...], depth: int) -> None:
        """Waits until all contracts are `depth` blocks deep, so that no reorganisation that the
        programs allow for can remove one.
        """
        head = (await self.client.head()).number
        wanted = head + depth - 1
        if depth > 1:
            self.report(f"waiting for block {wanted}: the programs believe blocks {depth} deep")
        limit = self.clock.now() + WAIT_SECONDS
        while (await self.client.head()).number < wanted:
            if self.clock.now() > limit:
                raise Unavailable(f"the chain did not reach block {wanted}: look at its node")
            await self.clock.sleep(POLL_SECONDS)
        for creation in creations:
            if not await self.client.code(creation.address):
                raise Unavailable(f"{creation.name}: a reorganisation removed it")

    async def _send(self, creation: Creation, bid: Bid) -> None:
        fields = (creation.nonce, None, creation.data, 0, creation.gas, bid.fee_max, bid.tip_max)
        signed = sign(Transaction(self.chain_id, *fields), self.signer)
        try:
            await self.client.send_raw(signed.raw)
        except RpcFailure as failure:
            match classify(failure.message):
                case Answer.KNOWN | Answer.NONCE_USED:
                    pass  # not re-raised: a block has this nonce, or will; its code decides
                case Answer.UNFUNDED | Answer.NEVER:
                    raise Refused(
                        Code.CHAIN, f"{creation.name}: the chain node says: {failure.message}"
                    ) from failure
                case _:
                    raise Unavailable(
                        f"{creation.name}: the chain node says: {failure.message}"
                    ) from failure

    async def _stands(self, creation: Creation, limit: float) -> bool:
        while self.clock.now() < limit:
            used = await self.client.nonce(self.signer.address)
            if await self.client.code(creation.address):
                return True
            if used > creation.nonce:
                raise Refused(Code.CHAIN, lost(creation))
            await self.clock.sleep(POLL_SECONDS)
        return False


def lost(creation: Creation) -> str:
    return (
        f"{creation.name}: the deployer used nonce {creation.nonce} for something else, or the "
        f"creation failed, so this contract cannot stand at its address"
    )
