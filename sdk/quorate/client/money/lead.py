"""A client's lead at its coordinator: how far its vouchers run ahead of what it has checked, and
what of that its open orders use.
"""

from dataclasses import dataclass

from quorate.base.errors import UsageError
from quorate.client.base.client_ledger import SpendingTotals
from quorate.job.quantities import format_amount
from quorate_protocol.limits import Limits
from quorate_protocol.rules import credit
from quorate_protocol.units import Amount, usd

HOW_TO_SET = "`quorate lead {}`"


@dataclass(frozen=True, slots=True)
class Lead:
    """A client's lead, and the part of it that open orders may still be charged."""

    most: Amount
    in_use: Amount

    def fits(self, reserved: Amount) -> bool:
        return self.in_use + reserved <= self.most

    def text(self, reserved: Amount) -> str:
        free = format_amount(Amount(max(0, self.most - self.in_use)))
        line = f"{format_amount(reserved)} before it runs; {free} of your lead of "
        line += f"{format_amount(self.most)} is free"
        if self.fits(reserved):
            return line
        if reserved > self.most:
            return f"{line}: too little, set it with {HOW_TO_SET.format(usd(reserved))}"
        return f"{line}: the order waits until open runs end"

    def check(self, reserved: Amount, stuck: int = 0) -> None:
        """Raises UsageError if no run that ends can free enough for an order. `stuck` is in use
        for orders that nobody can end any more.
        """
        if stuck + reserved <= self.most:
            return
        used = f" ({format_amount(Amount(stuck))} of it is stuck in runs without a checked bill)"
        raise UsageError(
            f"lead: the job reserves {format_amount(reserved)}, and you pay at most "
            f"{format_amount(self.most)} ahead of results{used if stuck else ''}; "
            f"{HOW_TO_SET.format(usd(reserved + stuck))} allows more, or lower max_price or "
            "max_duration"
        )


def lead_of(setting: Amount | None, totals: SpendingTotals, limits: Limits) -> Lead:
    delivered = Amount(min(totals.charged, totals.signed))
    return Lead(credit.lead_allowed(setting, delivered, limits.lead_min), totals.promised)
