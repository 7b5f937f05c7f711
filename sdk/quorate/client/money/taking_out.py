"""Takes a client's money out: what the command line and the SDK share, with the same words."""

from collections.abc import Awaitable, Callable

from quorate.base.errors import UsageError
from quorate.client.base.client_ledger import Ledger
from quorate.client.base.profile import Profile
from quorate.client.base.session import Notice
from quorate.client.money.chain_access import find_chain, open_chain
from quorate.client.money.moments import moment
from quorate.client.money.withdrawal import (
    GiveBack,
    WithdrawalFlow,
    WithdrawalState,
    finish_when_due,
)
from quorate.job.quantities import format_amount
from quorate_protocol.messages.ports import Clock
from quorate_protocol.units import Address, Amount

Told = Callable[[WithdrawalState], Awaitable[None]]


async def take_out(
    profile: Profile,
    ledger: Ledger,
    clock: Clock,
    notice: Notice,
    amount: Amount | None,
    receiver: Address | None,
    *,
    give_back: GiveBack | None = None,
    chain_url: str = "",
    told: Told | None = None,
) -> WithdrawalState:
    """Begins or continues the account's withdrawal, and takes every step that can be taken now.

    With `told` it waits until the money has arrived, and calls it at each wait. Hold
    `one_at_a_time` around it. Raises UsageError, RefusedError or UnavailableError as
    `WithdrawalFlow` does.
    """
    identity, url = await find_chain(profile.home, profile.coordinator_url, chain_url)
    if receiver in (identity.escrow, identity.token):
        raise UsageError("to: this is a contract of the market; name an account of yours")
    async with open_chain(identity, url) as chain:
        flow = WithdrawalFlow(chain, profile, ledger, clock, notice, give_back)
        record = await flow.begin(amount, receiver)
        if told is not None:
            return await finish_when_due(flow, record, clock, told)
        return await flow.advance(record)


def receiver_of(text: str) -> Address:
    """Returns the address that was typed. UsageError names what is wrong with it."""
    from eth_utils.address import is_checksum_address, is_checksum_formatted_address, is_hex_address

    if not text.startswith("0x") or not is_hex_address(text):
        raise UsageError(f"to: {text[:60]!r} is no address; write 0x and 40 hex digits")
    if is_checksum_formatted_address(text) and not is_checksum_address(text):
        raise UsageError(f"to: {text} has a wrong checksum, so a digit is mistyped; copy it again")
    address = Address(bytes.fromhex(text[2:]))
    if not any(address):
        raise UsageError("to: the zero address burns money; name an account of yours")
    return address


def state_lines(state: WithdrawalState, repeat: str) -> list[str]:
    """Returns sentences that say what was paid, what waits until when, and what to type then."""
    if state.paid is not None:
        return [f"{format_amount(state.paid)} withdrawn to 0x{state.record.receiver.hex()}"]
    then = f": then `{repeat}`" if repeat else ""
    amount = format_amount(state.record.amount)
    return [f"your tab closes: {amount} can be taken out from {moment(state.ready_at)}{then}"]
