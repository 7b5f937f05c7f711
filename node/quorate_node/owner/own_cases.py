"""The owner's open cases in court, as the status shows them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from quorate_node.base.dates import until_text
from quorate_protocol.limits import JURORS
from quorate_protocol.units import Address, Amount, Hash32, UnixSeconds, usd

if TYPE_CHECKING:
    from quorate_contracts.deploy import Deployment
    from quorate_contracts.open_cases import OpenCase


class OwnCase(Struct, frozen=True):
    """One open case. `at_stake`: what the accused loses if convicted, in millionths of a USD.
    `next_step` happens once `until` passed.
    """

    execution: Hash32
    is_own: bool
    next_step: str
    until: UnixSeconds
    at_stake: Amount


def own_cases(
    found: "Mapping[Hash32, OpenCase]", account: Address, deployment: "Deployment"
) -> tuple[OwnCase, ...]:
    """Returns the open cases of an account. Pure."""
    # Imported here: it loads the contracts, and `status` must start fast.
    from quorate_contracts.open_cases import NEXT, due_at

    limits = deployment.constants()
    cases = []
    for execution, case in sorted(found.items()):
        burned = JURORS * (case.filing.pay + limits.jury_gas_fee)
        taken = Amount(min(burned // 2, limits.slot_stake))
        is_own, step = case.filing.accuser == account, NEXT[case.phase]
        cases.append(OwnCase(execution, is_own, step, due_at(deployment, case), taken))
    return tuple(cases)


def case_line(case: OwnCase, now: float) -> str:
    """Returns one line about a case: what it is, what happens next, and until when it waits."""
    waits = f"waits {until_text(case.until, now)}" if case.until > now else "due now"
    who = "your case" if case.is_own else "case against this provider"
    name, loss = case.execution.hex()[:12], usd(case.at_stake)
    return f"{who} over 0x{name}, for {loss} USD of stake: {case.next_step}: {waits}"
