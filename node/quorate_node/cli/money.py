"""`quorate node withdraw`, `leave` and `top-up`: the owner's money comes out, or is staked."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import typer

from quorate_node.base import settings as settings_file
from quorate_node.base import typed_values
from quorate_node.base.config import Config
from quorate_node.base.dates import until_text
from quorate_node.base.provider_keys import SigningKeys
from quorate_node.cli import options
from quorate_node.cli.control import ask_daemon, tell_to_take_work
from quorate_node.cli.departure import Departure, JobsLeft, free_surplus
from quorate_node.cli.departure import leave as leave_now
from quorate_node.cli.owner_desk import owner_desk
from quorate_node.cli.withdrawal import Wait, Withdrawn
from quorate_node.cli.withdrawal import withdraw as withdraw_now
from quorate_node.owner import leaving
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, Hash32, usd
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.keystore import KeystoreError
from quorate_runtime.process.program_start import home_flag

LOOK_SECONDS = 5.0
LOOK_LONGEST_SECONDS = 60.0
FAILURES = (Refused, Unavailable, KeystoreError, BaseExceptionGroup)


def withdraw(
    amount: options.WithdrawAmount = "",
    to: options.WithdrawTo = "",
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Collect the pay: redeem vouchers, draw what tabs paid, and empty the balance in Escrow, all
    to the payout account. With --to, send USD from the owner's wallet to an account:
    AMOUNT, or all. Typed again after a crash it sends nothing twice.
    """
    try:
        receiver, wanted = _receiver(to), _amount(amount, to)
        config, keys = _opened(options.home_of(home), password_file)
        found = asyncio.run(_withdraw(config, keys, receiver, wanted))
    except FAILURES as error:
        options.fail(error)
    _show(found, found.calls, keys, as_json)
    typer.echo(f"wallet 0x{found.wallet.hex()}: {usd(found.tokens)} USD")
    if receiver is None and found.tokens:
        typer.echo("Next: `quorate node withdraw --to 0x...` sends them to another account")


def leave(
    to: options.WithdrawTo = "",
    is_waiting: options.WaitToTheEnd = False,
    is_surplus: options.OnlySurplus = False,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Take no more work, and take stake and earnings out. It says what has to wait until when; type
    it again then, also after a restart. `quorate node resume` gives it up.
    """
    folder = options.home_of(home)
    try:
        receiver = _receiver(to)
        config, keys = _opened(folder, password_file)
        found = asyncio.run(_leave(config, keys, is_waiting, as_json, is_surplus))
        if found.is_over and not is_surplus and receiver is not None:
            sent = asyncio.run(_withdraw(config, keys, receiver, None))
            _print(() if as_json else sent.done, (), () if as_json else sent.calls, keys)
    except FAILURES as error:
        options.fail(error)
    if as_json:
        typer.echo(canonical.encode(found).decode())
        return
    if not is_waiting:
        _print(found.done, found.waits, found.calls, keys)
    flag = home_flag(home)
    if is_surplus:
        typer.echo(f"wallet 0x{found.wallet.hex()}: {usd(found.tokens)} USD")
        return
    if not is_waiting or found.is_over:
        for item in found.behind:
            typer.echo(_left_line(item))
    if not found.is_over:
        again = f"`quorate node leave{flag}` again"
        typer.echo(f"Next: when a date has passed, type {again}")
        typer.echo("A daemon that stays up takes the stake back by itself")
        return
    if receiver is None:
        typer.echo(f"wallet 0x{found.wallet.hex()}: {usd(found.tokens)} USD")
    what = "what is named above may come later" if found.behind else "no pay is owed"
    typer.echo(f"left: no stake is on chain, and {what}; stop the daemon")


def top_up(
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Restore the stake that was burned, from the owner's wallet."""
    try:
        config, keys = _opened(options.home_of(home), password_file)
        added, calls = asyncio.run(_top_up(config, keys))
    except FAILURES as error:
        options.fail(error)
    if as_json:
        typer.echo(json.dumps({"toppedUp": added, "calls": calls}))
        return
    _print((), (), calls, keys)
    if not calls:
        typer.echo(f"{usd(added)} USD of stake restored" if added else "no stake is missing")


async def _top_up(config: Config, keys: SigningKeys) -> tuple[Amount, list[str]]:
    async with owner_desk(config, keys, SystemClock()) as desk:
        return await desk.top_up()


async def _withdraw(
    config: Config, keys: SigningKeys, to: Address | None, amount: Amount | None
) -> Withdrawn:
    async with owner_desk(config, keys, SystemClock()) as desk:
        return await withdraw_now(desk, to, amount)


async def _leave(
    config: Config, keys: SigningKeys, is_waiting: bool, as_json: bool, is_surplus: bool
) -> Departure:
    clock, told = SystemClock(), set[str]()
    if not is_surplus:
        await asyncio.to_thread(leaving.begin_leaving, config.home)
    async with owner_desk(config, keys, clock) as desk:
        while True:
            if is_surplus:
                return await free_surplus(desk, await _jobs_left(config.home))
            await tell_to_take_work(config.home, is_wanted=False)
            try:
                found = await leave_now(desk, await _jobs_left(config.home))
            except Unavailable as error:
                if not is_waiting:
                    raise
                # Not re-raised: the daemon takes stake back itself, or the chain is away.
                if str(error) not in told and not as_json:
                    told.add(str(error))
                    typer.echo(f"waits: {error}", err=True)
                await clock.sleep(LOOK_SECONDS)
                continue
            if not is_waiting or found.is_over:
                return found
            lines = [*found.done, *(_wait_line(item) for item in found.waits), *found.calls]
            for line in lines if not as_json else ():
                if line.split(" until ")[0] not in told:
                    told.add(line.split(" until ")[0])
                    typer.echo(line)
            await clock.sleep(_pause(found.waits, clock.now()))


def _pause(waits: Iterable[Wait], now: float) -> float:
    """Returns the seconds until something may have changed: a date, or what has none."""
    dates = [item.until for item in waits]
    left = min(dates, default=0) - now
    return min(LOOK_LONGEST_SECONDS, max(LOOK_SECONDS, left))


async def _jobs_left(home: Path) -> JobsLeft:
    try:
        tree = await ask_daemon(home, "GET", "/v1/status")
    except Unavailable:
        # Not re-raised: a provider that has never run has no job.
        return JobsLeft(is_known=not (home / "status.json").exists())
    until = max((int(item["commitBy"]) for item in tree["leases"]), default=0)
    by_class = Counter(_class(item) for item in tree["leases"])
    offered = {_class(item): int(item["count"]) for item in tree["slots"]}
    return JobsLeft(True, len(tree["leases"]), len(tree["jury"]), until, by_class, offered)


def _class(tree: canonical.Json) -> Hash32:
    return Hash32(bytes.fromhex(tree["pool"][2:]))


def _opened(folder: Path, password_file: Path | None) -> tuple[Config, SigningKeys]:
    """Returns configuration and keys. Raises Refused before `init`."""
    settings = settings_file.read(folder)
    config = Config.of(settings, folder)
    return config, options.locked_keys(folder, settings, password_file)


def _receiver(text: str) -> Address | None:
    found = typed_values.address_of(text, "--to")
    if text and found == ZERO_ADDRESS:
        raise Refused(Code.MALFORMED, "--to: nobody has the key of the zero address")
    return found if text else None


def _amount(text: str, to: str) -> Amount | None:
    """Returns a typed amount in millionths of a USD; None = all."""
    if not text:
        return None
    if not to:
        raise Refused(
            Code.MALFORMED,
            f"AMOUNT {text}: name the account that gets it with --to; earnings go to your payout "
            "account without it",
        )
    found = Amount(typed_values.usd_price(text, "AMOUNT"))
    if not found:
        raise Refused(Code.BAD_AMOUNT, f"AMOUNT {text!r}: more than 0")
    return found


def _show(found: Withdrawn, calls: Iterable[str], keys: SigningKeys, as_json: bool) -> None:
    if as_json:
        typer.echo(canonical.encode(found).decode())
        return
    _print(found.done, found.waits, calls, keys)


def _print(
    done: Iterable[str], waits: Iterable[Wait], calls: Iterable[str], keys: SigningKeys
) -> None:
    for line in done:
        typer.echo(line)
    for item in waits:
        typer.echo(_wait_line(item))
    calls = tuple(calls)
    if calls:
        typer.echo(f"The owner's key is not here. With the key of 0x{keys.account.hex()} call:")
    for call in calls:
        typer.echo(f"  {call}")


def _left_line(item: Wait) -> str:
    when = f", {until_text(item.until, SystemClock().now())} if it comes" if item.until else ""
    return f"not waited for: {item.what}{when}"


def _wait_line(item: Wait) -> str:
    when = f", {until_text(item.until, SystemClock().now())}" if item.until else ""
    return f"waits: {item.what}{when}"
