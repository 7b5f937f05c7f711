"""The transactions by which a provider gets what coordinators owe it.

It redeems their vouchers, and draws what its tabs were paid. Anyone may send both, and the money
goes to the payout address.
"""

from quorate_contracts import encodings
from quorate_contracts.calls import Step
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.escrow import Tab
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.rules import tabs
from quorate_protocol.units import ZERO_HASH, Address, Amount


def seen(tab: Tab) -> tabs.Tab:
    return tabs.Tab(tab.locked, tab.paid, tab.closes_at)


def redeemable(cumulative: Amount, tab: Tab) -> Amount:
    """Returns what a voucher still pays: at most what is locked."""
    return Amount(max(0, min(cumulative, tab.locked) - tab.paid))


def redeem_step(contracts: Contracts, voucher: Envelope[Voucher], tab: Tab) -> Step:
    message = voucher.message
    call = contracts.escrow.redeem(message.payee, ZERO_HASH, [], [encodings.voucher(voucher)])
    # The same voucher pays again once more is locked.
    name = f"{message.payer.hex()}/{message.cumulative}/{tab.paid}"
    return Step(f"redeem/{_place(contracts)}/{name}", call)


def draw_step(contracts: Contracts, provider: Address, payer: Address, tab: Tab) -> Step:
    call = contracts.escrow.draw(provider, [payer])
    return Step(f"draw/{_place(contracts)}/{payer.hex()}/{tab.paid}", call)


def _place(contracts: Contracts) -> str:
    return contracts.escrow.address.hex()[:8]
