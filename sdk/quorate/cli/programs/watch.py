"""`quorate watch`: challenges epochs that pay an account less than was signed to it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli.context import JsonFlag, context_of, emit, note, run_async
from quorate.errors import ProfileError, UsageError, translated

if TYPE_CHECKING:
    from quorate_contracts.watch.watch_file import Action
    from quorate_protocol.units import Address

Account = Annotated[
    str, typer.Option("--account", help="Account to watch for (default: that of watch.json).")
]
Urls = Annotated[
    list[str] | None, typer.Option("--coordinator", help="URL of a coordinator; may be repeated.")
]
Deployment = Annotated[
    Path | None, typer.Option("--deployment", help="The deployment.json of the market.")
]
ChainUrl = Annotated[str, typer.Option("--chain-url", help="URL of a chain node.")]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="Key that pays gas and bonds: a wallet's key file.")
]
List = Annotated[bool, typer.Option("--list", help="Print what was done, and end.")]


def watch(
    ctx: typer.Context,
    key: KeyFile = None,
    account: Account = "",
    coordinator: Urls = None,
    deployment: Deployment = None,
    chain_url: ChainUrl = "",
    is_list: List = False,
    json: JsonFlag = False,
) -> None:
    """Watches the epochs of coordinators for one account, and challenges those that pay it less
    than was signed. `--home` is a folder with watch.json, such as a copy of a provider's.
    """
    from quorate_contracts.watch.watch_file import read_watch

    context = context_of(ctx)
    if context.home is None:
        raise UsageError("name the folder with watch.json: --home FOLDER")
    with translated():
        state = read_watch(context.home, _account(account))
    if is_list:
        for action in state.actions:
            _tell(action, json)
        return
    if key is None or deployment is None or not chain_url:
        raise UsageError("watch needs --key FILE, --deployment FILE and --chain-url URL")
    _watch(
        context.home,
        state.account,
        (key, context.password_file),
        deployment,
        chain_url,
        tuple(coordinator or ()),
        json,
    )


def _watch(
    home: Path,
    account: "Address",
    key: tuple[Path, Path | None],
    deployment: Path,
    chain_url: str,
    urls: tuple[str, ...],
    is_json: bool,
) -> None:
    from quorate_contracts import trusted_deployment
    from quorate_contracts.chain_cli.deployer_key import open_key
    from quorate_contracts.watch import alone
    from quorate_runtime.clock import SystemClock
    from quorate_runtime.http.urls import web_url
    from quorate_runtime.keys.keystore import KeystoreError

    def told(action: "Action") -> None:
        _tell(action, is_json)

    with translated():
        try:
            signer = open_key(*key)
        except KeystoreError as error:
            raise ProfileError(str(error)) from error
        bases = tuple(web_url("--coordinator", url, "https://...") for url in urls)
        chain = web_url("--chain-url", chain_url, "https://...")
        made = trusted_deployment.read(deployment)
        wanted = alone.Wanted(home, account, made, chain, bases, signer, told)
        note(f"watching for 0x{account.hex()}; gas and bonds are paid by 0x{signer.address.hex()}")
        run_async(alone.watch(wanted, SystemClock()))


def _account(text: str) -> "Address | None":
    from quorate_protocol.units import Address

    digits = text.removeprefix("0x")
    try:
        if not text or len(bytes.fromhex(digits)) == 20:
            return Address(bytes.fromhex(digits)) if text else None
    except ValueError:
        pass  # not re-raised: the sentence below says the same
    raise UsageError(f"--account {text[:60]}: an account is 0x and 40 hex digits")


def _tell(action: "Action", is_json: bool) -> None:
    if not is_json:
        typer.echo(f"{action.at} {action.line()}")
        return
    tree: dict[str, Any] = {
        "at": action.at,
        "coordinator": "0x" + action.coordinator.hex(),
        "what": action.what,
        "epoch": action.epoch,
        "amount": action.amount,
        "outcome": action.outcome,
    }
    emit(tree)
