"""The scripted market with enough owners for the adaptive rule: for tests of what is not
audited.
"""

from quorate_coordinator.core.audit import trust
from quorate_coordinator.core.entities import Job, Trusts
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.rules.trust_record import Trust
from quorate_protocol.units import ZERO_HASH, Amount, Ppm, UnixSeconds
from quorate_protocol.values import replace
from support.markets.archiving_market import ArchivingMarket
from support.markets.scripted_market import Party


class LargeMarket(ArchivingMarket):
    """Eight owners with a record, and the rule of large markets: most jobs are not audited, and
    their pay is held.
    """

    slots = 8

    def __init__(self) -> None:
        super().__init__(*[Party(number) for number in range(9)])
        self.core.rules = replace(
            self.core.rules, limits=replace(DEVNET, name="mainnet", max_hold=MAINNET.max_hold)
        )
        self.core._check = None  # the fund is a gift here

    def trust_all(self, job: Job) -> None:
        """A record as of a thousand audits, and a fund that can pay more of them."""
        with self.core.state.transaction():
            trusts = Trusts({trust.trust_class_of(job): Trust(1000, Ppm(100))})
            for owner in self.parties:
                self.core.state.trust[owner] = trusts
            context = StepContext(self.core.state, self.core.rules, UnixSeconds(self.at), ZERO_HASH)
            context.change_own(fund=Amount(1_000_000))
