"""The contract tests' machine in the form that programs read: a chain client."""

from dataclasses import dataclass

from contracts.evm import NOBODY, Evm, Reverted
from quorate_contracts.generated.contract_calls import Query
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, BlockNumber
from quorate_runtime.chain.types import BlockHead


@dataclass
class EvmNode:
    """Answers from the newest block."""

    evm: Evm

    async def call(
        self, to: Address, data: bytes, sender: Address | None = None, block: object = "latest"
    ) -> bytes:
        try:
            return self.evm.ask(Query(to, data, lambda found: found), sender or NOBODY)
        except Reverted as reverted:
            raise Refused(Code.CHAIN, str(reverted)) from reverted

    async def head(self) -> BlockHead:
        number = BlockNumber(self.evm.number - 1)
        return BlockHead(number, ZERO_HASH, ZERO_HASH, self.evm.now, 0)

    async def code(self, account: Address) -> bytes:
        return self.evm.code(account)
