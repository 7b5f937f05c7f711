"""Tells the owner of each Verdict that faults this provider, and how to appeal."""

import logging
from dataclasses import dataclass

from quorate_contracts.appeal_evidence import appeal_evidence
from quorate_node.chain.settling import receipt_of
from quorate_node.core.provider_core import ProviderCore
from quorate_node.ops.dates import date_text
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Hash32, usd

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AppealNotices:
    """Writes to the daemon's log: a Verdict to appeal against keeps no provider from working."""

    core: ProviderCore
    clock: Clock

    def note(self, job_id: Hash32, data: bytes) -> None:
        """Reads the receipt of a Verdict that faults this provider. Blocks for its parsing."""
        terms, job = self.core.terms, f"0x{job_id.hex()}"
        try:
            shown = appeal_evidence(receipt_of(data), terms.provider)
        except Refused as refused:
            # Not re-raised: many faulted executions cannot be judged by a jury.
            log.info("job %s: no appeal: %s", job, refused)
            return
        log.warning(
            "job %s: its Verdict faults this provider; if your result is right, `quorate node "
            "appeal %s` asks a jury, until %s",
            job,
            job,
            date_text(shown.open_until(terms.limits), self.clock.now()),
        )
        log.warning(
            "job %s: the bond of an appeal is %s USD, and comes back if the jury finds your result",
            job,
            usd(shown.bond(terms.limits)),
        )
