"""Decides what a transaction offers per gas: at first, and when no block takes it. Pure."""

from dataclasses import dataclass

from quorate_runtime.chain.types import Fees

GWEI = 10**9
TIP_LEAST_WEI = 3 * GWEI  # for empty blocks, or if the node does not say what was paid in them
# The tip is at most this many times what recent blocks were paid. Otherwise a node that keeps
# transactions back could raise the tip without end.
TIP_RISE_MAX = 8
# No bid exceeds this many times the usual base fee. Otherwise a node that lies about the price
# would cost the owner's whole cap.
PRICE_RISE_MAX = 20
CAP_LEAST_WEI = 2 * TIP_LEAST_WEI  # but where the base fee is next to nothing


@dataclass(frozen=True, slots=True)
class Bid:
    """An offer in wei per gas: the most in all, and how much of it is the tip."""

    fee_max: int
    tip_max: int


def first_bid(fees: Fees, cap_wei: int) -> Bid:
    """Returns the first bid: twice the base fee plus the tip, so that the base fee may double."""
    fee = 2 * fees.base_fee_wei + fees.tip_wei
    return _capped(fee, fees.tip_wei, _cap(fees, cap_wei))


def raised_bid(last: Bid, fees: Fees, cap_wei: int) -> Bid | str:
    """Returns a bid of 12.5 % more, or today's price if that is more. If there is no higher bid, it
    returns a text that says why.
    """
    cap_wei = _cap(fees, cap_wei)
    tip = max(_raised(last.tip_max), fees.tip_wei)
    fee = max(_raised(last.fee_max), 2 * fees.base_fee_wei + tip)
    if min(fee, cap_wei) < _raised(last.fee_max):
        return f"the fee cap of {cap_wei / GWEI:g} gwei per gas is reached"
    is_left_behind = last.fee_max < fees.base_fee_wei + last.tip_max
    if tip > TIP_RISE_MAX * max(fees.tip_wei, TIP_LEAST_WEI) and not is_left_behind:
        return f"no block takes it for a tip of {last.tip_max / GWEI:g} gwei; check the chain node"
    return _capped(fee, tip, cap_wei)


def lowered_bid(last: Bid, fees: Fees, cap_wei: int) -> Bid | None:
    """Returns today's price if it is at least an eighth lower than `last`, else None. It is only
    for a transaction that no node has taken.
    """
    now = first_bid(fees, cap_wei)
    return now if _raised(now.fee_max) <= last.fee_max else None


def outbidding(last: Bid, fees: Fees, cap_wei: int) -> Bid:
    """Returns a bid that replaces `last` in a node's pool, as far as the cap allows."""
    tip = max(_raised(last.tip_max), fees.tip_wei)
    fee = max(_raised(last.fee_max), 2 * fees.base_fee_wei + tip)
    return _capped(fee, tip, _cap(fees, cap_wei))


def _raised(wei: int) -> int:
    """Returns 12.5 % more, rounded up. Nodes ask for 10 %."""
    return -(-wei * 9 // 8)


def _cap(fees: Fees, cap_wei: int) -> int:
    """Returns the most per gas now: the owner's cap, or less where the chain is cheap."""
    return min(cap_wei, max(CAP_LEAST_WEI, PRICE_RISE_MAX * fees.usual_base_fee_wei))


def _capped(fee: int, tip: int, cap_wei: int) -> Bid:
    fee = min(fee, cap_wei)
    return Bid(fee, min(tip, fee))
