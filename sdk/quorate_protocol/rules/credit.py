"""How far a client and a coordinator trust each other with money (PROTOCOL §4 Vouchers ahead).

A client pays before a job runs, so it trusts its coordinator with its lead: the part of its
vouchers that no checked charge covers yet. A coordinator trusts its client with credit: no more
than the fees that it earned from that client, so a client that never pays costs it nothing.
"""

from quorate_protocol.units import Amount

LEAD_SHARE = 10
"""The lead grows to one in so many millionths of what the coordinator has delivered."""


def lead_allowed(setting: Amount | None, delivered: Amount, least: Amount) -> Amount:
    """Returns how far a client's vouchers may run ahead of its checked charges.

    `setting` is the client's own. `delivered` is what the coordinator has delivered: charges that
    the client checked and that its vouchers cover. `least` is `Limits.lead_min`.
    """
    return Amount(max(least, delivered // LEAD_SHARE)) if setting is None else setting


def voucher_needed(charged: Amount, reserved: Amount, fees_paid: Amount) -> Amount:
    """Returns the sum that a client's voucher must reach before its jobs may cost it so much.

    `reserved` is the most that its jobs may still be charged. `fees_paid` are the coordinator's
    fees in final charges that the client's vouchers cover: its credit.
    """
    return Amount(max(0, charged + reserved - fees_paid))


def voucher_for(
    checked: Amount,
    promised: Amount,
    lead: Amount,
    signed: Amount,
    locked: Amount,
    session_limit: Amount,
) -> Amount:
    """Returns the cumulative sum of a client's next voucher: never less than it signed before.

    `checked` are its checked charges, `promised` what its open orders may still be charged. Only
    what is signed ahead has to fit into `locked`, the client's money in the tab.
    """
    ahead = min(checked + min(promised, lead), locked)
    return Amount(max(signed, min(max(checked, ahead), session_limit)))
