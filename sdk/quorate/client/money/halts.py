"""What a client has coming from a coordinator that was halted, and from when on (PROTOCOL 6.49).

A halted coordinator posts no vouchers any more. So what they left of an allocation becomes free
whatever the client promised. What the vouchers paid in beyond the last epoch's credits, the clients
share.
"""

from dataclasses import dataclass

from quorate.client.money.chain_access import ChainAccess
from quorate.client.money.moments import moment
from quorate.job.quantities import format_amount
from quorate_contracts.bindings.escrow import Allocation
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Amount, UnixSeconds

EARLY = "early"  # the contracts' reason for a step before its time
TAKEN = "amount"  # their reason if nothing is left to take


@dataclass(frozen=True, slots=True)
class Halt:
    """One coordinator's halt for one client. Amounts are millionths of a USD.

    `left` is what no voucher took of the allocation. Until `free_from` providers may still settle
    single jobs from it. `rest` is the client's share of what the last epoch owes nobody. It can be
    taken from `rest_from` on and once that epoch is final: `is_rest_free`. A void epoch raises it.
    """

    at: UnixSeconds
    left: Amount
    free_from: UnixSeconds
    rest: Amount
    rest_from: UnixSeconds
    is_rest_free: bool

    @property
    def has_more(self) -> bool:
        """Whether the client has anything coming."""
        return bool(self.left or self.rest)

    @property
    def withdrawable(self) -> Amount:
        """What a withdrawal that is announced now can count on."""
        return Amount(self.left + (self.rest if self.is_rest_free else 0))


async def read_halt(
    chain: ChainAccess, account: Address, coordinator: Address, allocation: Allocation
) -> Halt | None:
    """Returns a coordinator's halt, or None if it is not halted.

    Raises Unavailable if the chain node does not answer.
    """
    at = (await chain.ask(chain.epochs.head(coordinator))).halted_at
    if not at:
        return None
    limits = chain.identity.constants
    rest = await _share(chain, account, coordinator, allocation)
    is_free = False
    if rest:
        # The chain does not tell who has taken its share. So the call is tried without sending it.
        call = chain.escrow.take_rest(coordinator)
        try:
            await chain.client.call(call.to, call.data, account)
            is_free = True
        except Refused as refused:
            if refused.detail not in (EARLY, TAKEN):
                raise
            # Not re-raised: this is the answer.
            rest = rest if refused.detail == EARLY else Amount(0)
    return Halt(
        at,
        Amount(allocation.allocated - allocation.charged),
        UnixSeconds(at + limits.halt_settle),
        rest,
        UnixSeconds(at + limits.halt_held),
        is_free,
    )


async def _share(
    chain: ChainAccess, account: Address, coordinator: Address, allocation: Allocation
) -> Amount:
    """Returns the client's share of the rest by the newest epoch that is not void, rounded down as
    the contract rounds it.
    """
    settled = await chain.ask(chain.escrow.settled_of(account, coordinator))
    pool = await chain.ask(chain.escrow.pool(coordinator))
    last = await chain.ask(chain.epochs.newest_valid(coordinator))
    rest = max(0, pool.charged - last.sum_final - last.sum_held)
    return Amount(rest * (allocation.charged - settled) // max(1, pool.charged))


def halt_lines(coordinator: Address, halt: Halt, now: UnixSeconds) -> list[str]:
    """Returns sentences that name a halted coordinator, and what comes back from when on."""
    name = f"coordinator 0x{coordinator.hex()}"
    lines = [f"{name} was halted on {moment(halt.at)}"]
    if halt.left:
        left = f"{format_amount(halt.left)} of its allocation"
        is_free = now >= halt.free_from
        lines.append(f"{left} is free {'now' if is_free else 'from ' + moment(halt.free_from)}")
    if halt.rest:
        if halt.is_rest_free:
            when = "now"
        elif now < halt.rest_from:
            when = f"from {moment(halt.rest_from)}"
        else:
            when = "once its last epoch is final"
        lines.append(f"{format_amount(halt.rest)} that its last epoch owes nobody is yours {when}")
    return lines
