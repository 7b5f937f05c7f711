"""`quorate keys`: who may ask this profile's services, and what each may spend."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from quorate.cli.context import JsonFlag, context_of, emit, note
from quorate.cli.tables import table
from quorate.serving.key_book import Key, KeyBook
from quorate_protocol.units import usd

keys_app = typer.Typer(
    help="Make and revoke the keys of services.", no_args_is_help=True, add_completion=False
)
KeyName = Annotated[str, typer.Argument(metavar="NAME", help="How you call the key.")]


@keys_app.command("create")
def create(
    ctx: typer.Context,
    name: KeyName,
    budget: Annotated[str, typer.Option(help="The most USD that it may spend.")] = "",
    rate: Annotated[str, typer.Option(help="Its most requests, such as 60/m.")] = "",
    expires: Annotated[str, typer.Option(help="How long it is valid, such as 30d.")] = "",
    webhook: Annotated[
        str, typer.Option(help="URL that is told at 50, 80 and 100 % of the budget.")
    ] = "",
    json: JsonFlag = False,
) -> None:
    """Makes a key and prints it. It is shown once: only its hash is kept."""
    book = _book(ctx)
    text = book.create(name, time.time(), budget or None, rate, expires, webhook)
    if json:
        return emit({"name": name, "key": text})
    typer.echo(text)
    note("keep it: it is not shown again")


@keys_app.command("list")
def list_keys(ctx: typer.Context, json: JsonFlag = False) -> None:
    """Prints each key, and what it has spent by model."""
    book = _book(ctx)
    keys, usage, now = book.keys(), book.usage(), time.time()
    if json:
        rows = [_key_json(key, now) for key in keys]
        models = [
            {
                "name": it.name,
                "model": it.model,
                "requests": it.requests,
                "tokensIn": it.tokens_in,
                "tokensOut": it.tokens_out,
                "spentMicroUsd": int(it.spent),
            }
            for it in usage
        ]
        return emit({"keys": rows, "usage": models})
    table(
        ["KEY", "SPENT", "BUDGET", "RATE", "UNTIL", "STATE"],
        [
            [
                key.name,
                usd(key.spent),
                "any" if key.budget is None else usd(key.budget),
                f"{key.rate} in {key.period} s" if key.rate else "any",
                _date(key),
                key.state(now),
            ]
            for key in keys
        ],
    )
    if usage:
        table(
            ["KEY", "MODEL", "REQUESTS", "TOKENS IN", "TOKENS OUT", "USD"],
            [
                [
                    it.name, it.model, str(it.requests), str(it.tokens_in), str(it.tokens_out),
                    usd(it.spent),
                ]
                for it in usage
            ],
        )  # fmt: skip


@keys_app.command("revoke")
def revoke(ctx: typer.Context, name: KeyName, json: JsonFlag = False) -> None:
    """Ends a key at once. Its name and what it spent are kept."""
    _book(ctx).revoke(name)
    if json:
        return emit({"name": name, "revoked": True})
    note(f"key {name} is revoked; requests under way end by themselves")


def _book(ctx: typer.Context) -> KeyBook:
    return KeyBook(Path(context_of(ctx).readable_home()))


def _date(key: Key) -> str:
    if key.expires is None:
        return "no end"
    return datetime.fromtimestamp(key.expires, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _key_json(key: Key, now: float) -> dict[str, object]:
    return {
        "name": key.name,
        "spentMicroUsd": int(key.spent),
        "budgetMicroUsd": None if key.budget is None else int(key.budget),
        "requests": key.rate,
        "periodSeconds": key.period,
        "expires": key.expires,
        "revoked": bool(key.revoked),
        "state": key.state(now),
    }
