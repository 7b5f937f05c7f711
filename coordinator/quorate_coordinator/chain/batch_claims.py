"""Claims for all accounts at once, so that providers need not send claims.

Once in so many epochs, it pays out all final credit of the newest final epoch. Anyone may claim for
any account. Neighbours in the tree need no proofs of their own, so this takes a third of the gas of
single claims. An account that wants its money sooner claims for itself. The chain knows what was
claimed, so this task stores nothing.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from quorate_contracts.bindings.epochs import LEAVES_MAX
from quorate_contracts.deploy import Contracts
from quorate_coordinator.chain.registration import ask
from quorate_coordinator.core.state import State
from quorate_protocol.limits import Limits
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.units import Address
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender, Unfunded

log = logging.getLogger(__name__)
SEND_SECONDS = 60.0
POLL_SECONDS_MAX = 60.0
OF_ALL = (
    "amount",
    "early",
    "stale",
    "proof",
    "sums",
    "pool",
)  # reasons for which the contracts would refuse each half as well


@dataclass(slots=True)
class BatchClaims:
    """One task of the service, which claims for all accounts."""

    client: ChainClient
    contracts: Contracts
    coordinator: Address
    state: State
    sender: Sender
    limits: Limits
    clock: Clock
    paid: int = 0  # the newest period of `claim_every_epochs` that is claimed

    async def run(self) -> None:
        """Looks for a final epoch to claim until cancelled."""
        while True:
            try:
                await self.look()
            except Unfunded as error:
                log.warning("claims wait: the posting key needs coins for gas: %s", error)
            except (Refused, Unavailable) as error:
                # Not re-raised: the chain is away, or another sender claimed. The next look sees
                # what is left.
                log.info("claims wait: %s", error)
            await self.clock.sleep(min(POLL_SECONDS_MAX, max(1.0, self.limits.epoch_every / 4)))

    async def look(self) -> int:
        """Claims when a new period has a final epoch. Returns the gas that it used."""
        final = await ask(self.client, self.contracts.epochs.newest_final(self.coordinator))
        period = final.number // self.limits.claim_every_epochs
        record = self.state.epochs.get(final.number)
        if period <= self.paid or record is None or record.root != final.root:
            return 0
        spent = 0
        for start in range(0, len(record.leaves), LEAVES_MAX):
            spent += await self._claim(final.number, record.leaves, start, LEAVES_MAX)
        self.paid = period
        log.info("claims of epoch %d: %d accounts, %d gas", final.number, len(record.leaves), spent)
        return spent

    async def _claim(self, number: int, leaves: Sequence[Leaf], start: int, size: int) -> int:
        """Claims for a part of an epoch. The token may refuse to pay one account, for example one
        that its issuer has blocked. Then it tries each half, so that the others are paid.
        """
        if start >= len(leaves):
            return 0
        call = self.contracts.epochs.claim_part(self.coordinator, number, leaves, start, size)
        try:
            await self.client.call(call.to, call.data)
        except Refused as refused:
            if refused.detail in OF_ALL or size == 1:
                # Not re-raised: no account of this part has new credit, or the single one that is
                # left cannot be paid.
                if refused.detail not in OF_ALL:
                    account = sorted(leaves, key=lambda leaf: leaf.index)[start].account
                    log.error("epoch %d cannot pay 0x%s: %s", number, account.hex(), refused)
                return 0
            half = size // 2
            return await self._claim(number, leaves, start, half) + await self._claim(
                number, leaves, start + half, half
            )
        try:
            purpose = f"claims-{number}-{start}-{size}"
            return (
                await self.sender.send(
                    purpose, call.to, call.data, gas=call.gas, deadline_seconds=SEND_SECONDS
                )
            ).gas_used
        except Unfunded:
            raise  # with too little gas, the halves are no better
        except Refused as refused:
            # Not re-raised: another sender claimed. The rest is for the next period, or for its
            # owners.
            log.info("claims of epoch %d, %d from %d on: %s", number, size, start, refused)
            return 0
