"""The owner's open cases in court, as the status shows them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from quorate_node.ops.dates import until_text
from quorate_protocol.units import Address, Amount, UnixSeconds, usd

if TYPE_CHECKING:
    from quorate_contracts.bindings.court import Case
    from quorate_contracts.deploy import Deployment


class OwnCase(Struct, frozen=True):
    """One open case. `is_own`: the owner opened it, with `bond` in millionths of a USD.

    `next_step` happens once `until` has passed, or at any time if that is 0.
    """

    case_id: int
    is_own: bool
    next_step: str
    until: UnixSeconds
    bond: Amount


def own_cases(
    found: "Mapping[int, Case]", account: Address, deployment: "Deployment"
) -> tuple[OwnCase, ...]:
    """Returns the open cases of an account. Pure."""
    # Imported here: it loads the contracts, and `status` must start fast.
    from quorate_contracts.open_cases import NEXT, due_at

    return tuple(
        OwnCase(
            number, case.accuser == account, NEXT[case.phase], due_at(deployment, case), case.bond
        )
        for number, case in sorted(found.items())
    )


def case_line(case: OwnCase, now: float) -> str:
    """Returns one line about a case: what it is, what happens next, and until when it waits."""
    waits = f"waits {until_text(case.until, now)}" if case.until > now else "due now"
    step = f"{case.next_step}: {waits}"
    if not case.is_own:
        return f"case {case.case_id} against this provider: {step}"
    bond = f"{usd(case.bond)} USD of bond"
    return f"your case {case.case_id} with {bond}: {step}"
