"""The command `quorate verify`: checks a receipt or a settlement, and prints what it shows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.base.errors import UsageError
from quorate.base.exit_codes import ExitCode
from quorate.cli.context import JsonFlag, context_of, emit, note, run_async
from quorate.cli.receipt_text import lines_of, summary_of
from quorate.cli.settlement_text import verify_settlement
from quorate.cli.terminal_text import one_line
from quorate.client.money.chain_access import checked_url
from quorate.job.quantities import parse_hex
from quorate.trust import receipt_verification as verification
from quorate.trust.receipt_chain import check_chain
from quorate_contracts import trusted_deployment
from quorate_contracts.deploy import Deployment
from quorate_protocol.messages.receipt import Check, Receipt
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address

if TYPE_CHECKING:
    from quorate.client.market import Market

NOT_PINNED = (
    "identities are not pinned: chain, contracts, beacon and coordinator are the receipt's own "
    "word; name a deployment that you trust with --deployment FILE"
)
NO_RECEIPT = "{path} is not a receipt ({why}); give the file that `quorate get` names"


def verify(
    ctx: typer.Context,
    receipt: Annotated[Path | None, typer.Argument(help="Path of a receipt file.")] = None,
    deployment: Annotated[
        Path | None, typer.Option(help="Path of the deployment.json that you trust.")
    ] = None,
    coordinator: Annotated[
        str, typer.Option(help="Account of the coordinator that you trust, as 0x-hex.")
    ] = "",
    spec: Annotated[
        Path | None, typer.Option(help="Path of the job spec's document, to check it too.")
    ] = None,
    rpc: Annotated[
        str, typer.Option(help="URL of a chain node, to check slots, keys and money on chain.")
    ] = "",
    settlement: Annotated[
        str, typer.Option(metavar="TX", help="Hash of a payroll or redemption, to check that.")
    ] = "",
    log: Annotated[
        Path | None, typer.Option(help="Path of the coordinator's saved log, for --settlement.")
    ] = None,
    url: Annotated[
        str, typer.Option(help="URL of the coordinator, whose log is fetched for --settlement.")
    ] = "",
    outputs: Annotated[
        bool, typer.Option("--outputs", help="Fetch your run's outputs and compare them again.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Checks a receipt: signatures, draw, times, outcome and pay. With --rpc also the chain.

    With --settlement it compares what a transaction paid with the coordinator's public log.
    """
    known = _deployment(deployment, rpc)
    if settlement:
        return verify_settlement(settlement, known, rpc, log, url, json)
    if receipt is None:
        raise UsageError("name a receipt file, or a transaction with --settlement TX")
    market = context_of(ctx).reading_market() if outputs else None
    _verify_receipt(receipt, known, _account(coordinator), spec, rpc, market, json)


def _verify_receipt(
    receipt: Path,
    known: Deployment | None,
    account: Address | None,
    spec: Path | None,
    rpc: str,
    market: "Market | None",
    json: bool,
) -> None:
    data = verification.read(receipt)
    report, body = verification.verify(data), verification.body_of(data)
    found = list(report.checks)
    summary: dict[str, object] = {}
    if body is not None and report.valid:
        found += verification.pinned(body, known, account) if known else ()
        if known is None and account is not None:
            found += _of_coordinator(body, account)
        found += verification.of_spec(body, verification.read_spec(spec)) if spec else ()
        summary = summary_of(body)
        found += run_async(_compared_again(market, body)) if market else ()
    is_chain_checked = bool(rpc) and body is not None and all(check.is_good for check in found)
    if is_chain_checked and body is not None and known is not None:
        found += _on_chain(body, known, rpc)
    failed = [check for check in found if not check.is_good]
    pins = known is not None
    if json:
        emit(
            {
                "valid": not failed,
                "pinned": pins,
                "chain_checked": is_chain_checked,
                "checks": len(found),
                "failed": [{"name": check.name, "detail": check.detail} for check in failed],
                **summary,
            }
        )
    else:
        if not pins:
            typer.echo(NOT_PINNED)
        for line in lines_of(summary) if summary else ():
            typer.echo(one_line(line))
        if body is None:
            why = failed[0].detail if failed else "it has no body"
            typer.echo(one_line(NO_RECEIPT.format(path=receipt, why=why)))
        for check in failed:
            typer.echo(one_line(f"INVALID  {check.name}: {check.detail}"))
        if not failed:
            typer.echo(
                f"valid: {len(found)} signatures, hashes and rules hold (chain_checked: "
                f"{str(is_chain_checked).lower()})"
            )
    if failed:
        raise typer.Exit(int(ExitCode.INVALID_EVIDENCE))


def _deployment(path: Path | None, rpc: str) -> Deployment | None:
    if path is None:
        if rpc:
            raise UsageError("--rpc also needs --deployment FILE: it says whose contracts to ask")
        return None
    try:
        return trusted_deployment.read(path)
    except Refused as refused:
        raise UsageError(f"--deployment: {refused.detail}") from refused


def _account(text: str) -> Address | None:
    if not text:
        return None
    told = f"--coordinator: {text[:64]!r} is no account; write 0x and 40 hex digits"
    return Address(parse_hex(text, 20, told))


def _of_coordinator(body: Receipt, account: Address) -> list[Check]:
    named = body.order.message.coordinator
    return [Check("pin:coordinator", named == account, f"the coordinator is 0x{named.hex()}")]


async def _compared_again(market: "Market", body: Receipt) -> tuple[Check, ...]:
    async with market:
        found = await market.compare_again(body)
        if not found:
            note(
                "--outputs: this run's results were compared by digest; nothing is left to compare"
            )
        return found


def _on_chain(body: Receipt, known: Deployment, url: str) -> tuple[Check, ...]:
    return run_async(check_chain(body, known, checked_url(url)))
