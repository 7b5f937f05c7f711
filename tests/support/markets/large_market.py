"""The scripted market with enough owners for the adaptive audit rate, for tests of jobs without
an audit.
"""

from quorate_coordinator.core.audit import trust
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.trust_record import Trust
from quorate_protocol.units import ZERO_HASH, Amount, UnixSeconds
from quorate_protocol.values import replace
from support.markets.archiving_market import ArchivingMarket
from support.markets.scripted_market import Party


class LargeMarket(ArchivingMarket):
    """A market of eight owners with a trust record.

    The rule of large markets applies: most jobs are not audited, and their pay is held.
    """

    slots = 8

    def __init__(self) -> None:
        super().__init__(*[Party(number) for number in range(9)])
        self.core.rules = replace(
            self.core.rules, limits=replace(DEVNET, name="mainnet", max_hold=MAINNET.max_hold)
        )
        self.core._check = None  # no check of sums, because the test gives the fund its money

    def trust_all(self, job: Job) -> None:
        """Gives all providers the trust of a thousand audits, and the fund money for more
        audits.
        """
        with self.core.state.transaction():
            trusts = Trusts({trust.trust_class_of(job): Trust(1000)})
            for owner in self.parties:
                self.core.state.trust[owner] = trusts
            context = StepContext(self.core.state, self.core.rules, UnixSeconds(self.at), ZERO_HASH)
            context.change_own(fund=Amount(1_000_000))
