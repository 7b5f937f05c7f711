"""Takes what challenges and halted coordinators owe an account."""

from collections.abc import Sequence
from dataclasses import dataclass

from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.epochs import Head
from quorate_contracts.watch.acting import Acting, Deed
from quorate_contracts.watch.decisions import is_of
from quorate_contracts.watch.watch_file import SENT, Action, ShownLeaf
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount

# Functions that credit nobody in `Challenges`:
NOT_CREDITED = ("demand_leaf", "demand_old_leaf", "demand_epoch", "file", "credit_filing", "claim")


@dataclass(frozen=True, slots=True)
class HaltedPay:
    """One account's pay beside the usual claims."""

    acting: Acting

    async def take(self, coordinator: Address, head: Head) -> None:
        """Files what a halted coordinator promised, takes the share of its bond, and claims what
        was held in its last epoch. Each in its time (PROTOCOL §6).
        """
        acting, limits = self.acting, self.acting.limits
        now, since = await acting.chain_time(), head.halted_at
        filed_until = since + limits.halt_settle
        if now <= filed_until:
            await self._file(coordinator, head)
        elif now > filed_until + limits.challenge_response:
            await self._take_share(coordinator)
        if now >= since + limits.halt_held:
            await self._claim_held(coordinator, head)

    async def _file(self, coordinator: Address, head: Head) -> None:
        acting, kept = self.acting, self.acting.state.of(coordinator)
        newest = kept.newest()
        paid = next((item for item in kept.leaves if item.epoch == head.valid), None)
        if newest is None or (paid is not None and paid.leaf.final >= newest.message.final):
            return
        challenges, final = acting.contracts.challenges, newest.message.final
        filing = await acting.ask(challenges.filing(coordinator, acting.account))
        if filing.promised >= final:
            if paid is not None and filing.credited < paid.leaf.final:
                await self._credit(coordinator, paid)
            return
        missing = Amount(final - (paid.leaf.final if paid is not None else 0))
        call = challenges.file(coordinator, newest)
        await acting.act(Deed(coordinator, "file", head.valid, missing, call))

    async def _credit(self, coordinator: Address, paid: ShownLeaf) -> None:
        """Shows what the last epoch pays, once that is final: the share is for the rest only."""
        acting = self.acting
        call = acting.contracts.challenges.credit_filing(coordinator, paid.leaf, paid.proof)
        if await self._would_pass(call):
            final = paid.leaf.final
            await acting.act(Deed(coordinator, "credit_filing", paid.epoch, final, call))

    async def _would_pass(self, call: Call) -> bool:
        try:
            await self.acting.client.call(call.to, call.data)
        except Refused:
            return False  # not re-raised: it is too early, or nothing is left to do
        return True

    async def _take_share(self, coordinator: Address) -> None:
        acting, challenges = self.acting, self.acting.contracts.challenges
        filing = await acting.ask(challenges.filing(coordinator, acting.account))
        if filing.shortage and await acting.ask(challenges.pot(coordinator)):
            call = challenges.take_share(coordinator, acting.account)
            await acting.act(Deed(coordinator, "take_share", 0, filing.shortage, call))

    async def _claim_held(self, coordinator: Address, head: Head) -> None:
        """Claims the last epoch, once. The chain says whether it still owes anything."""
        acting, kept = self.acting, self.acting.state.of(coordinator)
        leaf = next((item for item in kept.leaves if item.epoch == head.valid), None)
        epoch = await acting.ask(acting.contracts.epochs.epoch(coordinator, head.valid))
        if leaf is None or not is_of(leaf, epoch, acting.account):
            return
        call = acting.contracts.epochs.claim(coordinator, head.valid, leaf.leaf, leaf.proof)
        if await self._would_pass(call):
            await acting.act(Deed(coordinator, "claim", head.valid, leaf.leaf.held, call))

    async def take_credits(self, coordinator: Address) -> None:
        """Withdraws what `Challenges` owes this account and the sender, after each action that may
        have credited something.
        """
        acting = self.acting
        if not _is_credited(acting.state.actions, coordinator):
            return
        payout = await acting.ask(acting.contracts.stakes.payout_of(acting.account))
        receiver = acting.account if payout == ZERO_ADDRESS else payout
        for account in dict.fromkeys((receiver, acting.sender.address())):
            owed = await acting.ask(acting.contracts.challenges.credits(account))
            if owed:
                call = acting.contracts.challenges.withdraw(account)
                await acting.act(Deed(coordinator, "withdraw", 0, owed, call))


def _is_credited(actions: Sequence[Action], coordinator: Address) -> bool:
    """Whether something may have been credited since the last withdrawal."""
    for action in reversed(actions):
        if action.coordinator == coordinator and action.outcome == SENT:
            if action.what == "withdraw":
                return False
            if action.what not in NOT_CREDITED:
                return True
    return False
