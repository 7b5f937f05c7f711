"""`quorate coordinator retire|withdraw`: how the operator's money comes out."""

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from aiohttp import ClientError, ClientSession, ClientTimeout

from quorate_contracts import money_texts
from quorate_contracts.chain_check import check_chain
from quorate_contracts.deploy import Contracts
from quorate_coordinator.base import coordinator_keys
from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.config import TRANSACTIONS, Settings
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys, MoneyKeys
from quorate_coordinator.base.operator_view import OperatorView
from quorate_coordinator.chain.own_money import RETIRED, Holding, OwnMoney, Retirement, amount_of
from quorate_coordinator.cli import options
from quorate_coordinator.cli.options import fail, home_of
from quorate_coordinator.cli.status_command import served_url_of
from quorate_protocol.codec import canonical
from quorate_protocol.limits import BY_NAME
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Amount, usd
from quorate_runtime.actor.journal_port import JournalError
from quorate_runtime.chain import Sender, chain_client
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.clock import SystemClock
from quorate_runtime.durable import FileDamaged
from quorate_runtime.files import file_lock
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.journal.journal import Journal
from quorate_runtime.keys.keystore import Keystore, KeystoreError
from quorate_runtime.keys.locked_keys import LockedKeys
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_UNAVAILABLE, EXIT_USAGE

POLL_SECONDS = 2.0
ACCOUNT_FILE = "account.sqlite"  # the sends of the account key
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]


def retire(
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Go on until the bond is back in the account")
    ] = False,
    yes: Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """End this coordinator: no new orders, then its bond back. Repeat it to see how far it is."""
    with sentences():
        folder, settings, keys = opened(home, password_file)
        with alone(folder):
            asyncio.run(_retire(folder, settings, keys, wait, yes, as_json))


def withdraw(
    to: Annotated[str, typer.Option("--to", help="Address of your wallet")] = "",
    amount: Annotated[str, typer.Option("--amount", help="USD to send, or all")] = "all",
    everything: Annotated[
        bool, typer.Option("--everything", help="Once retired: all tokens and coins of both keys")
    ] = False,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Take what pay does not need out of Escrow, and send the account's tokens to your wallet.

    Without --to they stay in the account.
    """
    with sentences():
        receiver = address_of(to) if to else None
        if receiver is None and (everything or amount != "all"):
            raise Refused(Code.MALFORMED, "name your wallet: --to ADDRESS")
        folder, settings, keys = opened(home, password_file)
        with alone(folder):
            asyncio.run(
                _withdraw(folder, settings, keys, receiver, amount, everything, yes, as_json)
            )


async def _retire(
    folder: Path, settings: Settings, keys: MoneyKeys, wait: bool, yes: bool, json_: bool
) -> None:
    async with own_money(folder, settings, keys) as money:
        found, escrow = await money.retirement(), money.contracts.escrow
        if not found.is_registered:
            raise Refused(Code.NOT_REGISTERED, "this coordinator was never registered: no bond")
        if not found.retired_at:
            after = settings.deployment.constants().unbond_after
            note(
                f"once retired, this coordinator takes no new orders for ever; its bond of "
                f"{usd(found.bond)} USD can be taken {_span(after)} later"
            )
            confirm(yes, "Retire?")
            await money.send(money.contracts.stakes.exit())
            found = await money.retirement()
        (folder / RETIRED).touch()  # a coordinator that is up then refuses the next order
        for each in await money.guarantees():
            if not each.tab.closes_at:
                await money.send(escrow.close(each.payee))
            elif found.now > each.tab.closes_at:
                await money.send(escrow.finish(money.account, each.payee))
        left = await running(settings)
        while found.bond and found.now < found.due_at and wait:
            await asyncio.sleep(POLL_SECONDS)
            found = await money.retirement()
        if found.bond and found.now >= found.due_at:
            await money.send(money.contracts.stakes.unbond_coordinator())
            note(f"{usd(found.bond)} USD of bond came back to the account")
            found = await money.retirement()
        held = await money.balance()
        keys_hold = [await money.spendable(key.address) for key in (keys.account, keys.posting)]
    if not json_ and is_over(found, keys_hold):
        typer.echo(f"retired, the bond is back, nothing is left: {folder} may be deleted")
        return
    _print_retirement(folder, found, left, held, json_)


def is_over(found: Retirement, holdings: Sequence[Holding]) -> bool:
    """Whether the bond is back and no key holds anything that can be sent."""
    return (
        bool(found.retired_at)
        and not found.bond
        and not any(holding.tokens or holding.wei for holding in holdings)
    )


async def _withdraw(
    folder: Path,
    settings: Settings,
    keys: MoneyKeys,
    to: Address | None,
    text: str,
    everything: bool,
    yes: bool,
    json_: bool,
) -> None:
    async with AsyncExitStack() as stack:
        money = await stack.enter_async_context(own_money(folder, settings, keys))
        if everything:
            await _must_be_over(money)
        needed = Amount(0) if everything else await unpaid_of(settings)
        free = Amount(max(0, await money.capital() - needed))
        rows = [("account", money, await money.spendable())]
        held = Amount(rows[0][2].tokens + free)
        if everything:
            posting = await stack.enter_async_context(posting_money(folder, settings, keys))
            accusations = await posting.capital()
            if accusations:
                await posting.send(posting.contracts.escrow.withdraw(accusations))
            rows.append(("posting key", posting, await posting.spendable()))
        sum_ = amount_of(text, held) if held else Amount(0)
        rows[0] = ("account", money, Holding(sum_, rows[0][2].wei))
        coin = money_texts.currency_of(settings.deployment).coin
        told = going(
            [(name, one.account, holding) for name, one, holding in rows],
            coin if everything else "",
        )
        sent, coins, out = Amount(0), 0, Amount(0)
        if told:
            note(f"{told} go to {'0x' + to.hex() if to is not None else 'the account'}")
            confirm(yes, "Send?")
            tokens = await money.balance() if to is not None else Amount(0)
            out = Amount(max(0, min(free, sum_ - tokens)))
            if out:
                await money.send(money.contracts.escrow.withdraw(out))
            for _, one, holding in rows if to is not None else ():
                assert to is not None, "nothing is sent without a receiver"
                if holding.tokens:
                    await one.send(one.contracts.token.transfer(to, holding.tokens))
                    sent = Amount(sent + holding.tokens)
                if everything:
                    coins += await one.send_coins(to)
        left = await money.balance()
    _print_withdrawal(folder, keys, to, out, sent, left, coins, json_)


async def unpaid_of(settings: Settings) -> Amount:
    """Returns the signed pay that the balance is kept for, as the running coordinator says."""
    view = await running(settings)
    if view is None:
        note("nothing answers, so pay that is signed and not paid is not kept back")
        return Amount(0)
    return view.money.unpaid


def going(rows: Sequence[tuple[str, Address, Holding]], coin: str) -> str:
    """Names what each key sends, or "" if that is nothing. Without the name of a coin, it leaves
    the coins out.
    """
    parts = []
    for name, key, holding in rows:
        sums = [f"{usd(holding.tokens)} USD"] if holding.tokens else []
        if coin and holding.wei:
            sums.append(f"about {money_texts.coins(holding.wei)} {coin}")
        if sums:
            parts.append(f"{' and '.join(sums)} of the {name} 0x{key.hex()}")
    return " and ".join(parts)


async def _must_be_over(money: OwnMoney) -> None:
    remedy = before_everything(await money.retirement())
    if remedy:
        raise Refused(
            Code.WRONG_PHASE,
            "--everything takes the gas of both keys, which a coordinator needs until its bond is "
            f"back: {remedy}",
        )


def before_everything(found: Retirement) -> str:
    """Says what an operator must do before `--everything`; "" when its bond is back."""
    if not found.is_registered or (found.retired_at and not found.bond):
        return ""
    if not found.retired_at:
        return "first `quorate coordinator retire`"
    if found.now < found.due_at:
        return (
            f"the bond can be taken on {date(found.due_at)}; repeat "
            "`quorate coordinator retire` then, and this command after it"
        )
    return "the bond can be taken now: repeat `quorate coordinator retire`"


def _print_retirement(
    folder: Path, found: Retirement, left: OperatorView | None, held: Amount, json_: bool
) -> None:
    is_done = not found.bond
    if json_:
        facts = {
            "state": "retired" if is_done else "retiring",
            "retiredAt": found.retired_at,
            "bondAt": found.due_at,
            "bond": found.bond,
            "account": held,
        }
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"retired     {date(found.retired_at)}: no new orders")
    for line in _left_lines(left):
        typer.echo(line)
    at = f" --home {shlex.quote(str(folder))}"
    if is_done:
        typer.echo(f"bond        is back; the account holds {usd(held)} USD")
        typer.echo(f"Next: quorate coordinator withdraw --to YOUR-WALLET --everything{at}")
    else:
        typer.echo(f"bond        {usd(found.bond)} USD can be taken on {date(found.due_at)}")
        typer.echo(f"Next: repeat `quorate coordinator retire{at}` then, or add --wait")


def _left_lines(left: OperatorView | None) -> Iterator[str]:
    if left is None:
        yield "work        unknown: nothing answers. Keep `quorate coordinator up` running until"
        yield "            `quorate coordinator status` shows no order, no held pay and no fee held"
        return
    orders, money = left.orders, left.money
    count = orders.matching + orders.under_way
    held = money.provider_held + money.fee_held
    if not count and not held:
        yield "work        nothing is left: every order is settled"
        return
    yield (
        f"work        {count} orders under way, {usd(held)} USD held: keep the coordinator running "
        f"until both are 0"
    )


def _print_withdrawal(
    folder: Path,
    keys: MoneyKeys,
    to: Address | None,
    out: Amount,
    sent: Amount,
    left: Amount,
    coins: int,
    json_: bool,
) -> None:
    account = "0x" + keys.account.address.hex()
    if json_:
        facts = {"account": account, "takenOut": out, "sent": sent, "left": left}
        where = {"to": None if to is None else "0x" + to.hex(), "coinsWei": str(coins)}
        typer.echo(json.dumps({**facts, **where}))
        return
    typer.echo(f"taken out   {usd(out)} USD of the balance in Escrow")
    if to is not None:
        also = f" and {money_texts.coins(coins)} coins" if coins else ""
        typer.echo(f"sent        {usd(sent)} USD{also} to 0x{to.hex()}")
    typer.echo(f"left        {usd(left)} USD in the account {account}")
    if to is None and left:
        at = f" --home {shlex.quote(str(folder))}"
        typer.echo(f"Next: quorate coordinator withdraw --to YOUR-WALLET{at}")


def address_of(text: str, name: str = "--to") -> Address:
    """Returns the address that an option names. Raises Refused for another text."""
    try:
        found = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        found = b""  # not re-raised: its length is refused below
    if len(found) != 20 or not any(found):
        raise Refused(Code.MALFORMED, f"{name} {text[:60]!r}: an address is 0x and 40 hex digits")
    return Address(found)


# ------------------------------------------------------------------------------------------ helpers


def opened(home: Path | None, password_file: Path | None) -> tuple[Path, Settings, MoneyKeys]:
    folder = home_of(home)
    settings = settings_file.read(folder)
    keys = LockedKeys(folder / "keys", options.passphrase_prompt(password_file))
    return folder, settings, coordinator_keys.locked(keys)


def opened_whole(folder: Path, settings: Settings, password_file: Path | None) -> CoordinatorKeys:
    """Opens all keys of a coordinator. Raises KeystoreError."""
    return coordinator_keys.load(keystore_of(folder, settings, password_file))


def keystore_of(folder: Path, settings: Settings, password_file: Path | None) -> Keystore:
    passphrase = options.passphrase_prompt(password_file)()
    return Keystore.at(folder / "keys", passphrase, BY_NAME[settings.deployment.limits])


@asynccontextmanager
async def own_money(
    folder: Path, settings: Settings, keys: MoneyKeys, file: str = ACCOUNT_FILE
) -> AsyncIterator[OwnMoney]:
    """Yields the money of the account, or of the key whose file of sends is given."""
    key = keys.account if file == ACCOUNT_FILE else keys.posting
    async with plain_session() as session:
        urls = settings.chain_url, settings.second_chain_url
        client = chain_client(urls, session, settings.fee_cap_gwei * GWEI)
        await check_chain(client, settings.deployment)
        trusted = settings.deployment.trusted()
        sender = Sender(client, key, folder / file, SystemClock(), **trusted)
        try:
            yield OwnMoney(client, Contracts.of(settings.deployment), sender, note)
        finally:
            sender.close()


@asynccontextmanager
async def posting_money(
    folder: Path, settings: Settings, keys: MoneyKeys
) -> AsyncIterator[OwnMoney]:
    """Yields the posting key's money. Raises JournalBusy while `coordinator up` uses that key."""
    journal = Journal.open(folder / "journal")
    try:
        async with own_money(folder, settings, keys, TRANSACTIONS) as money:
            yield money
    finally:
        await journal.close()


async def running(settings: Settings) -> OperatorView | None:
    """Returns what the running coordinator says; None when nothing answers."""
    body = await asked(settings, "/v1/operator")
    return None if body is None else canonical.decode(OperatorView, body)


async def asked(settings: Settings, path: str) -> bytes | None:
    """Returns the running coordinator's answer: b"" for a refusal, None when nothing answers."""
    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=10)) as session,
            session.get(served_url_of(settings) + path) as response,
        ):
            body = await response.read()
            return body if response.status == 200 else b"" if response.status == 404 else None
    except (ClientError, TimeoutError, OSError):
        return None  # not re-raised: the caller says what does not work without it


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lets one command at a time send from the account. Raises Refused if another one does."""
    told = f"another command sends from the account of {folder}: wait until it has ended"
    with file_lock(folder / "account.lock", Refused(Code.BUSY, told)):
        yield


def confirm(yes: bool, question: str) -> None:
    """Asks at the terminal. Raises Refused without a yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(Code.MALFORMED, "nothing was sent: there is nobody to ask here; give --yes")
    if not typer.confirm(question, err=True):
        raise Refused(Code.MALFORMED, "nothing was sent")


def note(sentence: str) -> None:
    typer.echo(f"coordinator: {sentence}", err=True)


def date(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(seconds: int) -> str:
    for name, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"


@contextmanager
def sentences() -> Iterator[None]:
    """Turns errors into one sentence on stderr and an exit code."""

    try:
        yield
    except Refused as refused:
        is_usage = refused.code in (Code.MALFORMED, Code.UNKNOWN)
        status = EXIT_USAGE if is_usage else EXIT_REFUSED
        raise fail(refused.detail or str(refused), status, refused.code) from refused
    except (KeystoreError, JournalError, FileDamaged) as error:
        raise fail(str(error), EXIT_REFUSED) from error
    except Unavailable as error:
        raise fail(f"{error}. Repeat the command: it goes on", EXIT_UNAVAILABLE) from error
