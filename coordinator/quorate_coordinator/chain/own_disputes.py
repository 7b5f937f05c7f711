"""What an operator does when it is in the wrong: takes back epochs, and grants appeals.

Each step is asked from the chain first, so that a repeated command does nothing twice.
"""

from dataclasses import dataclass

from quorate_contracts.bindings.court import Case, CaseId, Phase
from quorate_contracts.bindings.epochs import Epoch
from quorate_coordinator.chain.own_money import OwnMoney
from quorate_coordinator.chain.registration import ask
from quorate_protocol.limits import JURORS
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount

EPOCHS_MAX = 256  # that the chain keeps


@dataclass(frozen=True, slots=True)
class OwnDisputes:
    """The account of a coordinator in disputes about its epochs and Verdicts."""

    money: OwnMoney

    async def open_epochs(self) -> list[Epoch]:
        """Returns the coordinator's epochs that are neither final nor void, the oldest first."""
        epochs, account = self.money.contracts.epochs, self.money.account
        newest = await ask(self.money.client, epochs.newest(account))
        final = (await ask(self.money.client, epochs.newest_final(account))).number
        numbers = range(max(final, newest - EPOCHS_MAX) + 1, newest + 1)
        found = [await ask(self.money.client, epochs.epoch(account, each)) for each in numbers]
        return [epoch for epoch in found if epoch.number]

    async def revocable(self, number: int) -> list[Epoch]:
        """Returns the epochs that `revoke` would void: this one and all later ones.

        An empty list means that it is void already. Raises Refused if the chain takes it back no
        more, or never had it.
        """
        found = await self.open_epochs()
        if any(epoch.number == number for epoch in found):
            return [epoch for epoch in found if epoch.number >= number]
        epochs, account = self.money.contracts.epochs, self.money.account
        if not 0 < number <= await ask(self.money.client, epochs.newest(account)):
            raise Refused(Code.UNKNOWN, f"this coordinator has no epoch {number} on the chain")
        final = (await ask(self.money.client, epochs.newest_final(account))).number
        if number <= final:
            raise Refused(
                Code.TOO_LATE, f"epoch {final} is final, so epoch {number} cannot be taken back"
            )
        return []

    async def revoke_cost(self) -> Amount:
        """Returns what a void epoch takes of the bond now."""
        bond = (await self.money.retirement()).bond
        return Amount(min(bond, self.money.contracts.deployment.constants().void_penalty))

    async def revoke(self, number: int) -> Amount:
        """Voids an epoch and all later ones, and returns what the bond paid. Raises Refused if it
        became final meanwhile.
        """
        before = (await self.money.retirement()).bond
        call = self.money.contracts.challenges.revoke(number, EPOCHS_MAX)
        await self.money.send(f"revoke-{number}", call)
        return Amount(before - (await self.money.retirement()).bond)

    async def appeal(self, number: int) -> Case:
        """Returns an appeal that this coordinator can grant.

        Raises Refused if it is none, if it is another coordinator's, or if its jury is drawn.
        """
        case = await ask(self.money.client, self.money.contracts.court.case(CaseId(number)))
        if not case.is_appeal or case.accused != self.money.account:
            raise Refused(Code.UNKNOWN, f"case {number} is no appeal against this coordinator")
        if not can_be_granted(case):
            told = "has ended" if case.phase is Phase.DECIDED else "has its jury"
            raise Refused(Code.TOO_LATE, f"case {number} {told}, so it cannot be granted any more")
        return case

    async def concede(self, number: int) -> Amount:
        """Grants an appeal, and returns what the bond paid."""
        before = (await self.money.retirement()).bond
        call = self.money.contracts.court.concede(CaseId(number))
        await self.money.send(f"concede-{number}", call)
        return Amount(before - (await self.money.retirement()).bond)


def can_be_granted(case: Case) -> bool:
    """Whether the court takes a concession: before the first jury is drawn."""
    return case.is_appeal and case.phase is Phase.DRAWING and not case.is_redrawn


def granted_cost(case: Case) -> Amount:
    """Returns the most that a granted appeal takes of the bond: the provider's pay and its gas.

    The chain does not tell the pay. The appeal's bond is `JURORS` times the gas and the most that
    the execution could cost.
    """
    return Amount(case.bond // JURORS)


def lost_cost(case: Case) -> Amount:
    """Returns the most that a lost appeal takes of the bond: the jury is paid too."""
    return Amount(case.bond + granted_cost(case))
