"""`quorate node withdraw`: claims what coordinators owe, and sends tokens from the owner's wallet.

A file holds a transfer from before it is signed until it is mined. A command that was killed is
typed again: it finishes that transfer, and sends nothing twice.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from quorate_node.chain.calls import ask, transact
from quorate_node.chain.owner_desk import SEND_SECONDS, Claimable, OwnerDesk, transfer_text
from quorate_node.ops.status import EarningStatus, read_status
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Amount, UnixSeconds, usd
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
    """Claims, then sends `amount` (None: all tokens of the wallet) to `to`, if it is given.

    Raises Refused(BAD_AMOUNT) for more than the wallet has.
    """
    items, away = await desk.claimable()
    waits = [Wait(text) for text in away]
    account, sent = desk.keys.account, Amount(0)
    done: list[str] = []
    if desk.keys.owner is None:
        calls = [transfer_text(desk, to, await _amount(desk, amount))] if to else []
        if items:
            waits.append(Wait("the daemon claims your pay with the operator key by itself"))
        waits += await earnings_waits(desk)
        return await _report(desk, done, waits, calls, sent)
    with desk.sender() as sender:
        done += await claim_all(desk, sender, items)
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
    waits += await earnings_waits(desk)
    return await _report(desk, done, waits, [], sent)


async def claim_all(desk: OwnerDesk, sender: Sender, items: list[Claimable]) -> list[str]:
    """Sends all claims. Returns a sentence for each."""
    done = []
    payout = await ask(desk.client, desk.contracts.stakes.payout_of(desk.keys.account))
    to = "" if payout == desk.keys.account else f", paid to 0x{payout.hex()}"
    for item in items:
        amount = await desk.claim(sender, item)
        name = f"0x{item.coordinator.address.hex()[:10]}"
        done.append(f"claimed {usd(amount)} USD from coordinator {name}{to}")
    return done


async def earnings_waits(desk: OwnerDesk) -> list[Wait]:
    """Returns which pay is not in the wallet yet, and until when at the latest."""
    waits, limits = [], desk.contracts.deployment.constants()
    now = int(desk.clock.now())
    for earning in earnings(desk.config.home):
        epochs = desk.contracts.epochs
        paid = await ask(desk.client, epochs.claimed(earning.coordinator, desk.keys.account))
        name = f"coordinator 0x{earning.coordinator.hex()[:10]}"
        if earning.held:
            until = UnixSeconds(now + limits.max_hold)
            waits.append(Wait(f"{usd(earning.held)} USD are held by {name}", until))
        if earning.final > paid:
            until = UnixSeconds(now + 2 * limits.epoch_every + limits.challenge_window)
            left = usd(earning.final - paid)
            waits.append(Wait(f"{left} USD wait for the next epoch of {name}", until))
    return waits


def earnings(home: Path) -> Iterator[EarningStatus]:
    """Yields what the daemon last knew of each coordinator's debt; nothing if none has run."""
    status = read_status(home / "status.json")
    yield from status.earnings if status else ()


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
        await transact(sender, begun.purpose, call, SEND_SECONDS)
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
