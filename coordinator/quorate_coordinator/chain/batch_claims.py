"""Claims for all accounts at once, so that providers need not send claims.

It pays out all final credit of a final epoch that owes enough to be worth the gas, and of any one
once in so many epochs. Anyone may claim for any account. Neighbours in the tree need no proofs of
their own, so this takes a third of the gas of single claims. An account that wants its money sooner
claims for itself. The chain knows what was claimed, so this task stores nothing.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from quorate_contracts.bindings.epochs import LEAVES_MAX, Epoch
from quorate_contracts.deploy import Contracts
from quorate_coordinator.chain.registration import ask
from quorate_coordinator.core.entities import EpochRecord
from quorate_coordinator.core.state import State
from quorate_protocol.limits import USD, Limits
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.units import Address, Amount
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender, Unfunded

log = logging.getLogger(__name__)
SEND_SECONDS = 60.0
POLL_SECONDS_MAX = 60.0
WORTH = Amount(USD)  # of an account's unclaimed credit: many times the gas of one claim
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
    at_once: Amount = WORTH  # by account; an epoch that owes less waits for its period
    paid: int = 0  # the newest period of `claim_every_epochs` that is claimed
    newest: int = 0  # the newest epoch that is claimed

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
        """Claims a final epoch in a new period, or one that owes enough. Returns the gas used."""
        final = await ask(self.client, self.contracts.epochs.newest_final(self.coordinator))
        period = final.number // self.limits.claim_every_epochs
        record = self.state.epochs.get(final.number)
        if record is None or record.root != final.root or final.number == self.newest:
            return 0
        if period <= self.paid and not await self._is_worth_gas(final, record):
            return 0
        spent = 0
        for start in range(0, len(record.leaves), LEAVES_MAX):
            spent += await self._claim(final.number, record.leaves, start, LEAVES_MAX)
        self.paid, self.newest = period, final.number
        log.info("claims of epoch %d: %d accounts, %d gas", final.number, len(record.leaves), spent)
        return spent

    async def _is_worth_gas(self, final: Epoch, record: EpochRecord) -> bool:
        """Whether an epoch owes its accounts enough on average. Nobody claims the audit fund's."""
        pool = await ask(self.client, self.contracts.escrow.pool(self.coordinator))
        of_fund = sum(leaf.final for leaf in record.leaves if not any(leaf.account))
        return final.sum_final - of_fund - pool.paid >= self.at_once * len(record.leaves)

    async def _is_claimed(self, part: Sequence[Leaf]) -> bool:
        """Whether every account of a part of an epoch has what it is owed."""
        epochs = self.contracts.epochs
        for leaf in part:
            if any(leaf.account):  # the audit fund's leaf is nobody's
                claimed = await ask(self.client, epochs.claimed(self.coordinator, leaf.account))
                if claimed < leaf.final:
                    return False
        return True

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
            part = sorted(leaves, key=lambda leaf: leaf.index)[start : start + size]
            told = "all is claimed already" if await self._is_claimed(part) else str(refused)
            log.info("claims of epoch %d, %d from %d on: %s", number, size, start, told)
            return 0
