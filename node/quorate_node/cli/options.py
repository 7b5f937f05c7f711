"""What the commands of `quorate node` share: option types, the provider's folder and exit codes.

Only the `cli*` modules read flags and the environment.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from quorate_node.base import provider_keys
from quorate_node.base.config import ExecutorKind, Settings
from quorate_node.base.provider_keys import OwnerKeys, ProviderKeys
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import ZERO_ADDRESS, Address
from quorate_runtime.keys.keystore import Keystore
from quorate_runtime.keys.locked_keys import LockedKeys
from quorate_runtime.keys.passphrase import passphrase_of
from quorate_runtime.process.command_errors import (
    EXIT_REFUSED,
    EXIT_UNAVAILABLE,
    remember_json,
    say_error,
)
from quorate_runtime.process.program_start import first_cause, program_home

home_of = partial(program_home, program="node")
KEYS_FOLDER = "keys"  # the keystore, inside the provider's folder

# ----------------------------------------------------------------------------- of several commands

Home = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of this provider (default: $QUORATE_HOME/node or XDG)"),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", help="File with the keystore's passphrase (mode 0600)"),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON line on stdout", callback=remember_json)
]

# ---------------------------------------------------------------------------------------- of `init`

Coordinators = Annotated[
    list[str] | None,
    typer.Option("--coordinator", help="Base URL of a coordinator to serve; repeatable"),
]
DevnetFile = Annotated[
    Path | None, typer.Option("--devnet", help="devnet.json (or its folder) of a devnet to join")
]
LimitsName = Annotated[
    str,
    typer.Option(
        "--limits", help="mainnet, testnet, or devnet: cheap keys, allows the process executor"
    ),
]
PriceAmount = Annotated[
    str,
    typer.Argument(
        metavar="[AMOUNT]",
        help="USD per slot-hour, such as 0.25; with --gpu per GPU-hour (default: only propose one)",
    ),
]
EvictedLease = Annotated[
    str, typer.Argument(metavar="LEASE", help="The rental, as `quorate node status` names it")
]
EvictedFor = Annotated[
    str, typer.Option("--why", help="Required: what its client is told, such as: a report of abuse")
]
PricedGpu = Annotated[
    str,
    typer.Option(
        "--gpu", help="GPUs that get the price, such as H100; all = those without their own"
    ),
]
DeploymentFile = Annotated[
    Path | None,
    typer.Option(
        help="deployment.json (or FILE#HASH) that you trust; other deployments are refused"
    ),
]

# ------------------------------------------------------------------------------------------ of `up`

ExecutorOverride = Annotated[
    ExecutorKind | None, typer.Option("--executor", help="Use this executor instead of the setting")
]
PortOverride = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Gateway port; 0 = any free port")
]
AgreeToStake = Annotated[
    bool, typer.Option("--yes", help="Stake for what is on offer without a question")
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log JSON lines")]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        help="Log to this file; it is rotated at 16 MiB and five old files are kept "
        "(default: stderr)",
    ),
]

# ----------------------------------------------------------- of `drain`, `withdraw` and `leave`

WithdrawAmount = Annotated[
    str, typer.Argument(metavar="[AMOUNT]", help="USD to send, such as 12.50 (default: all)")
]
WithdrawTo = Annotated[
    str, typer.Option("--to", help="Account that gets the USD of the owner's wallet")
]
OnlySurplus = Annotated[
    bool, typer.Option("--surplus", help="Only free stake that no run slot uses; keep taking work")
]
UnlockedFor = Annotated[str, typer.Option("--for", help="How long, such as 30m or 8h; at most 7d")]
WaitToTheEnd = Annotated[bool, typer.Option("--wait", help="Wait until everything is done")]
TakeWorkAgain = Annotated[bool, typer.Option("--off", help="Take work again")]


def fail(error: BaseException) -> NoReturn:
    """Says what is wrong, also as JSON where that was asked for. Exits: 4 for Unavailable, else
    3.
    """
    error = first_cause(error)
    code = error.code.value if isinstance(error, Refused) else ""
    # Codes are for programs, which ask for --json.
    text = str(error).removeprefix(f"{code}: ")
    status = EXIT_UNAVAILABLE if isinstance(error, Unavailable) else EXIT_REFUSED
    say_error("node", text, status, code)
    raise typer.Exit(status)


def open_keystore(
    folder: Path, settings: Settings, password_file: Path | None, is_first: bool = False
) -> Keystore:
    """Returns the keystore of a provider's folder.

    If `is_first`, the user chooses its passphrase now.
    """
    passphrase = passphrase_of(password_file, os.environ, "provider", is_first)
    return Keystore.at(folder / KEYS_FOLDER, passphrase, DEVNET if settings.is_devnet else MAINNET)


def passphrase_prompt(password_file: Path | None) -> Callable[[], str]:
    """Returns a function that gets the passphrase from a file or asks for it."""
    return lambda: passphrase_of(password_file, os.environ, "provider")


def locked_keys(folder: Path, settings: Settings, password_file: Path | None) -> OwnerKeys:
    """Returns the keys for a command. The first signature asks for the passphrase, unless an agent
    has the keys.
    """
    keys = LockedKeys(folder / KEYS_FOLDER, passphrase_prompt(password_file))
    return provider_keys.locked(folder / KEYS_FOLDER, keys, *owner_and_payout(settings))


def load_keys(folder: Path, settings: Settings, password_file: Path | None) -> ProviderKeys:
    return provider_keys.load(
        open_keystore(folder, settings, password_file), *owner_and_payout(settings)
    )


def owner_and_payout(settings: Settings) -> tuple[Address | None, Address | None]:
    """Returns the owner and payout accounts that the settings name; None for one that they do
    not.
    """
    owner, payout = settings.owner, settings.payout
    return (None if owner == ZERO_ADDRESS else owner, None if payout == ZERO_ADDRESS else payout)


def hex_text(value: bytes) -> str:
    return "0x" + value.hex()
