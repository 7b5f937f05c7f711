"""What this coordinator owes to providers, and the vouchers that it signs for them.

Pay is `held` until its job is final and its client's voucher covers the charge. Then it is `final`,
and a voucher up to all final pay is signed. It is journaled before it leaves, because it is an
effect of a step.
"""

from itertools import islice

from quorate_coordinator.core.model.effects import Send
from quorate_coordinator.core.model.entities import Payee, Provider
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.limits import DAY
from quorate_protocol.messages import frames
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.rules.reputation import probation
from quorate_protocol.rules.tabs import Tab
from quorate_protocol.units import Address, Amount, Seconds, UnixSeconds
from quorate_protocol.values import replace

VOUCHERS_PER_TICK_MAX = 512
VOUCHER_SECONDS = 3600
AVERAGE_DAYS = 7  # a day's pay counts for a seventh of the average
LOOK_SECONDS, LOOKS_PER_PERIOD = 60, 5
IDLE_DAYS_MAX = 60  # after so many days without pay the average is near zero


def of(state: State, account: Address) -> Payee:
    return state.payees.get(account) or Payee(account)


def hold(context: StepContext, account: Address, amount: int) -> None:
    payee = of(context.state, account)
    held = Amount(payee.held + amount)
    assert held >= 0, "I1: more taken back than held"
    context.state.payees[account] = replace(_earning(context, payee, amount), held=held)


def finish(context: StepContext, account: Address, amount: Amount, is_held: bool) -> None:
    payee = of(context.state, account)
    held = Amount(payee.held - amount) if is_held else payee.held
    assert held >= 0, "I1: more released than held"
    earning = payee if is_held else _earning(context, payee, amount)
    context.state.payees[account] = replace(earning, held=held, final=Amount(payee.final + amount))
    provider = context.state.providers.get(account)
    if provider is not None and provider.is_on_probation:
        if probation.is_over(context.state.payees[account].final, context.rules.limits.slot_stake):
            end_probation(context, account)
    else:
        context.state.vouchers_due[account] = True


def end_probation(context: StepContext, owner: Address) -> None:
    """What it earned may then be vouched (PROTOCOL 5.92)."""
    provider = context.state.providers[owner]
    context.state.providers[owner] = replace(provider, is_on_probation=False)
    if of(context.state, owner).final:
        context.state.vouchers_due[owner] = True


def vouch(context: StepContext) -> None:
    """At most `VOUCHERS_PER_TICK_MAX`, and none for a single job: a newer one replaces it."""
    for account in list(islice(context.state.vouchers_due, VOUCHERS_PER_TICK_MAX)):
        del context.state.vouchers_due[account]
        payee = of(context.state, account)
        cumulative = Amount(max(payee.final, payee.vouched, payee.tab.paid))
        if cumulative == payee.vouched:
            continue
        context.state.payees[account] = replace(payee, vouched=cumulative)
        wake(context)
        provider = context.state.providers.get(account)
        if provider is None:
            continue  # a client that leaves: it is paid by payroll and needs no voucher
        secure_again(context, provider)
        voucher = Voucher(context.rules.coordinator, account, cumulative)
        frame = frames.VoucherSent(context.seal(voucher))
        key, expires = f"voucher-{account.hex()}-{cumulative}", context.at + VOUCHER_SECONDS
        context.emit(Send(key, account, frame, UnixSeconds(expires)))


def on_tab(context: StepContext, account: Address, tab: Tab) -> None:
    payee = of(context.state, account)
    if tab == payee.tab:
        return
    context.state.payees[account] = replace(payee, tab=tab)
    provider = context.state.providers.get(account)
    if provider is not None:
        secure_again(context, provider)
    wake(context)


def secure_again(context: StepContext, provider: Provider) -> None:
    """What secures a provider that declined as `unsecured` has changed: it may be matched."""
    if provider.unsecured_until:
        changed = replace(provider, unsecured_until=UnixSeconds(0))
        context.state.providers[provider.owner] = changed


def wake(context: StepContext) -> None:
    own = context.state.own
    if not own.money_at:
        later = UnixSeconds(max(context.at, own.looked_at + pause(context)))
        context.change_own(money_at=later)


def pause(context: StepContext) -> Seconds:
    """Between two looks, and before a refused transaction is built again."""
    return Seconds(min(LOOK_SECONDS, context.rules.limits.pay_every // LOOKS_PER_PERIOD))


def daily_pay(payee: Payee, at: UnixSeconds) -> Amount:
    moved = _on_day(payee, at // DAY)
    return max(moved.daily, moved.earned)


def is_newer(state: State, voucher: Voucher) -> bool:
    """Then the state comes from an older journal."""
    return voucher.cumulative > of(state, voucher.payee).vouched


def paid_beyond(state: State) -> list[Address]:
    """To whom the chain paid more than this coordinator signed."""
    return [payee.account for payee in state.payees.values() if payee.tab.paid > payee.vouched]


def _earning(context: StepContext, payee: Payee, amount: int) -> Payee:
    moved = _on_day(payee, context.at // DAY)
    earned = Amount(max(0, moved.earned + amount))
    return replace(moved, earned=earned, paid_at=moved.paid_at or context.at)


def _on_day(payee: Payee, day: int) -> Payee:
    if day <= payee.day:
        return payee
    if not payee.day:
        return replace(payee, day=day)
    average, earned = int(payee.daily), int(payee.earned)
    for _ in range(min(day - payee.day, IDLE_DAYS_MAX)):
        average, earned = average + (earned - average) // AVERAGE_DAYS, 0
    return replace(payee, day=day, daily=Amount(average), earned=Amount(0))
