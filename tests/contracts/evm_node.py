"""The contract tests' machine in the form that daemons use: a chain client, a sender and a
beacon.
"""

from dataclasses import dataclass, field

from contracts.evm import NOBODY, Evm, Reverted
from contracts.market import ACCUSER, SECRET
from quorate_contracts.bindings.calls import Call, Query
from quorate_protocol.ports import BeaconRound
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, BlockNumber, Round
from quorate_runtime.beacon.bls import beacon_round
from quorate_runtime.chain.types import RawLog, Receipt


@dataclass
class EvmNode:
    """Executes each purpose (the key of a transaction) once, as the real sender does."""

    evm: Evm
    address: Address = ACCUSER.address
    is_silent: bool = False  # whether the beacon publishes no round
    ended: dict[str, Receipt | Refused] = field(default_factory=dict)

    async def call(
        self, to: Address, data: bytes, sender: Address | None = None, block: object = "latest"
    ) -> bytes:
        try:
            return self.evm.ask(Query(to, data, lambda found: found), sender or NOBODY)
        except Reverted as reverted:
            raise Refused(Code.CHAIN, str(reverted)) from reverted

    async def code(self, account: Address) -> bytes:
        return self.evm.code(account)

    async def known(self, purpose: str) -> bool:
        return purpose in self.ended

    async def head(self) -> "EvmNode":
        return self

    @property
    def time(self) -> int:
        return self.evm.now

    async def send(
        self, purpose: str, to: Address, data: bytes, *, gas: int, deadline_seconds: float
    ) -> Receipt:
        if purpose not in self.ended:
            try:
                mined = self.evm.send(self.address, Call(to, data, gas))
                block = BlockNumber(self.evm.number - 1)
                logs = tuple(
                    RawLog(*item, block, ZERO_HASH, self.evm.now, ZERO_HASH, index)
                    for index, item in enumerate(mined.logs)
                )
                self.ended[purpose] = Receipt(
                    ZERO_HASH, block, ZERO_HASH, True, mined.gas, 0, None, logs, None
                )
            except Reverted as reverted:
                self.ended[purpose] = Refused(Code.CHAIN, str(reverted))
        ended = self.ended[purpose]
        if isinstance(ended, Refused):
            raise ended
        return ended

    async def round(self, number: Round) -> BeaconRound | None:
        return None if self.is_silent else beacon_round(SECRET, number)
