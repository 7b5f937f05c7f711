"""`quorate verify --settlement TX`: what a payroll or a redemption paid, beside the public log."""

import tempfile
from pathlib import Path

import typer

from quorate.base.errors import UsageError, translated
from quorate.base.exit_codes import ExitCode
from quorate.cli.context import emit, run_async
from quorate.cli.tables import table
from quorate.client.money.chain_access import checked_url
from quorate.job.quantities import parse_hex
from quorate.trust.settlement_check import (
    Comparison,
    PayLog,
    Settlement,
    compare,
    pay_log,
    read_pay,
    read_settlement,
)
from quorate_contracts.chain_check import check_chain
from quorate_contracts.deploy import Deployment
from quorate_protocol.units import Hash32, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.rpc import Rpc
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.http.log_download import LogDownload

COLUMNS = ["ACCOUNT", "PAID SO FAR", "IN THE LOG", ""]


def verify_settlement(
    transaction: str,
    deployment: Deployment | None,
    rpc: str,
    log: Path | None,
    url: str,
    json: bool,
) -> None:
    """Prints the comparison. Exits with the code of bad evidence if it does not hold."""
    if deployment is None or not rpc:
        raise UsageError("--settlement also needs --rpc URL and --deployment FILE")
    if (log is None) == (not url):
        raise UsageError("--settlement also needs the public log: --log FILE, or --url URL")
    settlement, pays = run_async(_read(_hash(transaction), deployment, rpc, log, url))
    if pays.head.coordinator != settlement.coordinator:
        raise UsageError(
            f"the transaction is of coordinator 0x{settlement.coordinator.hex()}, the log of "
            f"0x{pays.head.coordinator.hex()}"
        )
    found = compare(settlement, pays)
    if json:
        emit(_tree(settlement, found))
    else:
        _print(settlement, found)
    if not found.is_good:
        raise typer.Exit(int(ExitCode.INVALID_EVIDENCE))


async def _read(
    transaction: Hash32, deployment: Deployment, rpc: str, log: Path | None, url: str
) -> tuple[Settlement, PayLog]:
    async with plain_session() as session:
        client = ChainClient(Rpc(checked_url(rpc), session))
        with translated():
            await check_chain(client, deployment)
        settlement = await read_settlement(client, deployment, transaction)
        if log is not None:
            return settlement, read_pay(log)
        with tempfile.TemporaryFile() as body, translated():
            source = LogDownload(url, session, body)
            head = await source.head()
            await source.fetch(head)
            body.seek(0)
            return settlement, pay_log(head, body)


def _hash(text: str) -> Hash32:
    told = f"--settlement: {text[:80]!r}; write the hash of a transaction, as 0x-hex"
    return Hash32(parse_hex(text, 32, told))


def _tree(settlement: Settlement, found: Comparison) -> dict[str, object]:
    return {
        "kind": settlement.kind,
        "coordinator": f"0x{settlement.coordinator.hex()}",
        "root": f"0x{settlement.root.hex()}",
        "lines": found.lines,
        "valid": found.is_good,
        "accounts": [
            {
                "account": f"0x{row.account.hex()}",
                "paidMicroUsd": row.paid,
                "loggedMicroUsd": row.logged,
                "verdict": row.verdict,
            }
            for row in found.rows
        ],
        "unproven": list(found.unproven),
    }


def _print(settlement: Settlement, found: Comparison) -> None:
    typer.echo(f"{settlement.kind} of coordinator 0x{settlement.coordinator.hex()}")
    if found.lines is not None:
        typer.echo(f"its root is that of the first {found.lines} lines of the log")
    rows = [
        [
            f"0x{row.account.hex()}",
            f"{usd(row.paid)} USD",
            "-" if row.logged is None else f"{usd(row.logged)} USD",
            {"covered": "earned", "more": "MORE THAN EARNED"}.get(row.verdict, "not provable"),
        ]
        for row in found.rows
    ]
    table(COLUMNS, rows)
    for line in found.unproven:
        typer.echo(f"not proven: {line}")
