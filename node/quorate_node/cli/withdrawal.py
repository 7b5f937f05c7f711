"""`quorate node withdraw`: collects the pay, and sends tokens from the owner's wallet.

A file holds a transfer from before it is signed until it is mined. A command that was killed is
typed again: it finishes that transfer, and sends nothing twice.
"""

from msgspec import Struct

from quorate_contracts.account.delivery import send_all
from quorate_contracts.account.goals import withdraw as withdraw_balance
from quorate_contracts.calls import ask, transact
from quorate_node.cli.owner_desk import OwnerDesk, earnings
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.tabs import PAY_PERIODS
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, UnixSeconds, usd
from quorate_runtime.chain import Sender
from quorate_runtime.files import write_atomic

FILE = "withdrawal.json"


class Transfer(Struct, frozen=True):
    """A transfer of tokens that was begun. `purpose` names its transaction."""

    to: Address
    amount: Amount
    purpose: str


class Wait(Struct, frozen=True):
    """Something that has to wait. `until` is 0 if no date is known."""

    what: str
    until: UnixSeconds = UnixSeconds(0)


class Withdrawn(Struct, frozen=True):
    """What a command did. `calls` are for an owner's key that is kept elsewhere."""

    done: tuple[str, ...]
    waits: tuple[Wait, ...]
    calls: tuple[str, ...]
    wallet: Address
    tokens: Amount  # in the wallet now
    sent: Amount = Amount(0)


async def withdraw(desk: OwnerDesk, to: Address | None, amount: Amount | None) -> Withdrawn:
    """Collects, then sends `amount` (None: all tokens of the wallet) to `to`, if it is given.

    Raises Refused(BAD_AMOUNT) for more than the wallet has.
    """
    account, sent = desk.keys.account, Amount(0)
    done: list[str] = []
    if desk.keys.owner is None:
        token = desk.contracts.token
        calls = [token.transfer(to, await _amount(desk, amount)).text] if to else []
        is_any = any(item.redeemable or item.credit for item in await desk.tabs())
        waits = [Wait("the daemon collects your pay with the operator key")] if is_any else []
        waits += await pay_waits(desk)
        return await _report(desk, done, waits, [*await balance_calls(desk), *calls], sent)
    with desk.sender() as sender:
        collected, waits = await collect_all(desk, sender)
        done += collected
        begun = await _finish_begun(desk, sender)
        if begun is not None:
            sent = begun.amount
            done.append(f"sent {usd(begun.amount)} USD to 0x{begun.to.hex()}")
        is_same = begun is not None and begun.to == to and amount in (None, begun.amount)
        if to is not None and not is_same and to != account:
            wanted = await _amount(desk, amount)
            if wanted:
                await _transfer(desk, sender, to, wanted)
                sent = wanted
                done.append(f"sent {usd(wanted)} USD to 0x{to.hex()}")
    waits += await pay_waits(desk)
    return await _report(desk, done, waits, [], sent)


async def collect_all(desk: OwnerDesk, sender: Sender) -> tuple[list[str], list[Wait]]:
    """Redeems, draws and takes the balance out of Escrow. Returns a sentence for each, and what
    the chain refused.
    """
    done, waits = [], []
    payout = await ask(desk.client, desk.contracts.stakes.payout_of(desk.keys.account))
    to = "" if payout in (desk.keys.account, ZERO_ADDRESS) else f", paid to 0x{payout.hex()}"
    for item in await desk.tabs():
        name = f"coordinator 0x{item.coordinator.hex()[:10]}"
        try:
            amount = await desk.collect(sender, item)
        except Refused as refused:
            # Not re-raised: other coordinators pay meanwhile.
            waits.append(Wait(f"the chain refuses what {name} owes: {refused.detail}"))
            continue
        if amount:
            done.append(f"collected {usd(amount)} USD from {name}{to}")
    nonce = await desk.client.nonce(desk.keys.account)
    balance = await ask(desk.client, desk.contracts.escrow.balance_of(desk.keys.account))
    if balance:
        await send_all(sender, withdraw_balance(desk.contracts.escrow, balance), nonce)
        done.append(f"withdrew {usd(balance)} USD of your balance in Escrow{to}")
    return done, waits


async def is_collectable(desk: OwnerDesk) -> bool:
    if any(item.redeemable or item.credit for item in await desk.tabs()):
        return True
    return await ask(desk.client, desk.contracts.escrow.balance_of(desk.keys.account)) > 0


async def balance_calls(desk: OwnerDesk) -> list[str]:
    escrow = desk.contracts.escrow
    balance = await ask(desk.client, escrow.balance_of(desk.keys.account))
    return [call.text for call in withdraw_balance(escrow, balance)]


async def pay_waits(desk: OwnerDesk) -> list[Wait]:
    """Returns which pay only its coordinator can bring on, and by when it should."""
    waits, limits = [], desk.contracts.deployment.constants()
    now = int(desk.clock.now())
    held = {item.coordinator: item.held for item in earnings(desk.config.home)}
    for item in await desk.tabs():
        name = f"coordinator 0x{item.coordinator.hex()[:10]}"
        if amount := held.get(item.coordinator, 0):
            until = UnixSeconds(now + limits.max_hold)
            waits.append(Wait(f"{usd(amount)} USD are held by {name}", until))
        vouched = item.voucher.message.cumulative if item.voucher else 0
        if (left := vouched - item.tab.paid - item.redeemable) > 0:
            until = UnixSeconds(now + limits.pay_every * PAY_PERIODS)
            waits.append(Wait(f"{usd(left)} USD wait for the next payroll of {name}", until))
    return waits


async def _amount(desk: OwnerDesk, amount: Amount | None) -> Amount:
    tokens = await ask(desk.client, desk.contracts.token.balance_of(desk.keys.account))
    if amount is None:
        return tokens
    if amount > tokens:
        raise Refused(
            Code.BAD_AMOUNT,
            f"the wallet 0x{desk.keys.account.hex()} has {usd(tokens)} USD, not {usd(amount)}; "
            "without an amount the command sends all",
        )
    return amount


async def _finish_begun(desk: OwnerDesk, sender: Sender) -> Transfer | None:
    """Finishes the transfer of a command that was killed. Returns it; None if there is none."""
    path = desk.config.path(FILE)
    if not path.exists():
        return None
    try:
        begun = canonical.decode(Transfer, path.read_bytes())
    except Refused as refused:
        raise Refused(
            Code.MALFORMED,
            f"{path} is damaged ({refused.detail}): look whether the wallet has sent the transfer, "
            "then remove the file",
        ) from refused
    await _send(desk, sender, begun)
    return begun


async def _transfer(desk: OwnerDesk, sender: Sender, to: Address, amount: Amount) -> None:
    nonce = await desk.client.nonce(desk.keys.account)
    begun = Transfer(to, amount, f"transfer/{to.hex()}/{amount}/{nonce}")
    write_atomic(desk.config.path(FILE), canonical.encode(begun), 0o600)
    await _send(desk, sender, begun)


async def _send(desk: OwnerDesk, sender: Sender, begun: Transfer) -> None:
    path = desk.config.path(FILE)
    call = desk.contracts.token.transfer(begun.to, begun.amount)
    try:
        await transact(sender, begun.purpose, call)
    except Refused:
        if await sender.has_ended(begun.purpose):
            path.unlink(missing_ok=True)  # it moved no token, and never will
        raise
    path.unlink(missing_ok=True)


async def _report(
    desk: OwnerDesk, done: list[str], waits: list[Wait], calls: list[str], sent: Amount
) -> Withdrawn:
    account = desk.keys.account
    tokens = await ask(desk.client, desk.contracts.token.balance_of(account))
    return Withdrawn(tuple(done), tuple(waits), tuple(calls), account, tokens, sent)
