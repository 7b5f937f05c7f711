"""Sends many transactions of one fresh account at once.

The setup of a devnet should take few blocks, and need not survive crashes.
"""

from dataclasses import dataclass, field

from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_runtime.chain import ChainClient
from quorate_runtime.chain.transactions import TRANSFER_GAS, Transaction, sign
from quorate_runtime.process.crash_points import crash_point

FEE_MAX_WEI, TIP_WEI = 100 * 10**9, 10**9


@dataclass(slots=True)
class BulkSender:
    """Sends for an account that no other program uses.

    `sent` maps each purpose to the hash of its transaction.
    """

    client: ChainClient
    chain_id: int
    signer: Signer
    nonce: int = 0
    sent: dict[str, Hash32] = field(default_factory=dict)

    async def create(self, what: str, data: bytes, gas: int) -> None:
        await self._send(what, None, data, 0, gas)

    async def call(self, what: str, call: Call) -> None:
        await self._send(what, call.to, call.data, 0, call.gas)

    async def pay(self, to: Address, wei: int) -> None:
        await self._send(f"coins for 0x{to.hex()}", to, b"", wei, TRANSFER_GAS)

    async def check(self) -> bool:
        """Returns whether all are mined.

        Raises Unavailable, which names a transaction that reverted.
        """
        for what, digest in list(self.sent.items()):
            receipt = await self.client.receipt(digest)
            if receipt is None:
                return False
            if not receipt.success:
                raise Unavailable(
                    f"{what}: the transaction of 0x{self.signer.address.hex()} was reverted"
                )
            del self.sent[what]
        return True

    async def _send(self, what: str, to: Address | None, data: bytes, value: int, gas: int) -> None:
        signed = sign(
            Transaction(
                chain_id=self.chain_id,
                nonce=self.nonce,
                to=to,
                data=data,
                value=value,
                gas=gas,
                fee_max=FEE_MAX_WEI,
                tip_max=TIP_WEI,
            ),
            self.signer,
        )
        crash_point("wallet.before-send")
        self.sent[what] = await self.client.send_raw(signed.raw)
        crash_point("wallet.after-send")
        self.nonce += 1
