"""The functions of the commands of `quorate devnet`."""

import asyncio
import json
import os
import shlex
import shutil
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from quorate_contracts.deploy import Deployment
from quorate_contracts.money_texts import TEST_TOKEN, currency_of
from quorate_devnet.demo.run_demo import DemoOptions
from quorate_devnet.demo.run_demo import demo as run_demo
from quorate_devnet.market.background import start, stop
from quorate_devnet.market.config import (
    EXECUTOR_HELP,
    MARKER,
    ChainKind,
    DevnetConfig,
    ExecutorChoice,
    one_of,
)
from quorate_devnet.market.devnet import Devnet, devnet_facts, running
from quorate_devnet.market.genesis import deploy_once, give
from quorate_devnet.market.ipfs_peer import built_program
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.values import replace
from quorate_runtime.process import crash_points
from quorate_runtime.process.settings_flags import read_flags, typed_words, with_flags

DEFAULT_FOLDER = Path("devnet")
MARKER_NAME = "devnet.json"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 4

Folder = Annotated[
    Path,
    typer.Option(
        "--dir", help="Folder of the devnet; devnet.json appears in it once everything is up."
    ),
]
Executor = Annotated[str, typer.Option("--executor", help=EXECUTOR_HELP)]
RunningFolder = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="Folder of the devnet; default: that of QUORATE_DEVNET, else devnet."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line on standard output.")
]


@with_flags(DevnetConfig)
def up(
    folder: Folder = DEFAULT_FOLDER,
    *,
    detach: Annotated[
        bool,
        typer.Option("--detach", "-d", help="Return once it is up; `quorate devnet down` ends it."),
    ] = False,
    as_json: AsJson = False,
    **typed: Any,
) -> None:
    """Start a devnet and serve until Ctrl-C, which ends all of it."""
    try:
        config = DevnetConfig(folder.resolve(), **read_flags(DevnetConfig, typed))
    except Refused as refused:
        raise fail(refused.detail, EXIT_USAGE) from refused
    except ValueError as error:
        raise fail(str(error), EXIT_USAGE) from error
    if config.chain is ChainKind.ANVIL and shutil.which("anvil") is None:
        raise fail(
            (
                "--chain anvil: anvil is not on PATH; install Foundry, or omit --chain to "
                "use the devnet's own"
            ),
            EXIT_UNAVAILABLE,
        )
    if detach:
        words = typed_words(DevnetConfig, typed)
        raise typer.Exit(_start_detached([*words, "--dir", str(config.folder)], folder, as_json))
    raise typer.Exit(_until_interrupted(config, as_json))


def down(given: RunningFolder = None, as_json: AsJson = False) -> None:
    """End the devnet of a folder, and wait until all of it is gone."""
    folder = _running_folder(given)
    try:
        stop(folder)
    except Unavailable as error:  # the program ends here with a sentence and an exit code
        raise fail(str(error), EXIT_UNAVAILABLE) from error
    ended = {"folder": str(folder), "ended": True}
    typer.echo(json.dumps(ended) if as_json else f"the devnet in {folder} has ended")


def demo(
    executor: Executor = "auto",
    out: Annotated[
        Path, typer.Option("--out", help="Folder for render.png and receipt.json.")
    ] = Path("demo-out"),
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Folder to keep the devnet's files in; default: a temporary one."
        ),
    ] = None,
    go_peer: Annotated[
        Path | None,
        typer.Option(
            "--go-peer",
            envvar="QUORATE_GO_PEER",
            exists=True,
            dir_okay=False,
            help="Program of an IPFS peer; default: the one built in tests/interop/go_peer.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the whole story: a picture and a price computed, a liar caught and slashed, everyone
    else paid.
    """
    try:
        choice = one_of(ExecutorChoice, executor, "--executor")
    except ValueError as error:
        raise fail(str(error), EXIT_USAGE) from error
    if choice is ExecutorChoice.NOOP:
        raise fail(
            "the demo runs real programs; use --executor docker, bwrap or process", EXIT_USAGE
        )
    _interrupt_on_end()
    kept = folder.resolve() if folder else None
    program = go_peer.resolve() if go_peer else built_program()
    raise typer.Exit(run_demo(DemoOptions(out, choice, as_json, kept, program)))


def demo_rent(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Folder to keep the devnet's files in; default: a temporary one."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rent a machine and serve a model, with ssh, Jupyter and keys, and measure it. Needs Docker,
    root and ssh.
    """
    from quorate_devnet.demo.rent_demo import demo_rent as run_demo_rent

    _interrupt_on_end()
    raise typer.Exit(run_demo_rent(folder.resolve() if folder else None, as_json))


def status(given: RunningFolder = None, as_json: AsJson = False) -> None:
    """Show what runs in a folder."""
    folder = _running_folder(given)
    facts = _facts(folder)
    if as_json:
        typer.echo(json.dumps(facts, sort_keys=True))
        return
    for line in _lines(facts, folder):
        typer.echo(line)


def deploy(
    chain_url: Annotated[
        str,
        typer.Option(
            "--chain-url", help="URL of a devnet chain whose development accounts hold coins."
        ),
    ],
    beacon_url: Annotated[
        str, typer.Option("--beacon-url", help="URL of the beacon that the contracts will use.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help=(
                "Path of the devnet.json to write; an existing one is kept if the chain knows "
                "its contracts."
            ),
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Deploy only the contracts, for a market whose parts run elsewhere: in containers or on
    several machines.
    """
    try:
        made = asyncio.run(deploy_once(chain_url, beacon_url, out))
    # the program ends here with a sentence and an exit code
    except (Refused, Unavailable) as error:
        raise fail(str(error), EXIT_UNAVAILABLE) from error
    facts = {"chainId": made.chain_id, "file": str(out)}
    typer.echo(json.dumps(facts) if as_json else f"contracts on chain {made.chain_id}: {out}")


def fund(
    accounts: Annotated[
        list[str],
        typer.Argument(help="Addresses (0x...), or folders of a provider, coordinator or client."),
    ],
    usd: Annotated[
        int, typer.Option(help="Test dollars for each account.", min=0, max=1_000_000)
    ] = 2_000,
    folder: RunningFolder = None,
    as_json: AsJson = False,
) -> None:
    """Give coins and test dollars to your own provider, coordinator or client, so that it can join
    the devnet.
    """
    facts = _facts(_running_folder(folder))
    try:
        funded = ["0x" + address.hex() for address in asyncio.run(give(facts, accounts, usd))]
    # the program ends here with a sentence and an exit code
    except (Refused, Unavailable) as error:
        raise fail(str(error), EXIT_UNAVAILABLE) from error
    except ValueError as error:
        raise fail(str(error), EXIT_USAGE) from error
    deployment = canonical.from_json(Deployment, facts["deployment"])
    currency = replace(currency_of(deployment), symbol=TEST_TOKEN)
    for line in (
        [json.dumps({"funded": funded, "usd": usd})]
        if as_json
        else [
            f"{item}: {usd} USD in {currency.name}, and {currency.coin} for gas, on "
            f"{currency.chain}"
            for item in funded
        ]
    ):
        typer.echo(line)


def _interrupt_on_end() -> None:
    """SIGTERM ends like Ctrl-C, so that nothing is left behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))


def _running_folder(given: Path | None) -> Path:
    """Returns the folder of --dir, else that of the environment's devnet.json, else the default."""
    if given is not None:
        return given
    marker = os.environ.get("QUORATE_DEVNET")
    return Path(marker).parent if marker else DEFAULT_FOLDER


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError) as error:
        remedy = f"start one: quorate devnet up --dir {shlex.quote(str(folder))}"
        raise fail(
            f"no devnet is up in {folder} ({_reason(error)}); {remedy}", EXIT_UNAVAILABLE
        ) from error
    return facts


def _reason(error: Exception) -> str:
    return f"{MARKER_NAME}: {error.strerror}" if isinstance(error, OSError) else str(error)


def _start_detached(words: list[str], folder: Path, as_json: bool) -> int:
    try:
        ended = start(words, folder, lambda line: typer.echo(line, err=True))
    except Unavailable as error:  # the program ends here with a sentence and an exit code
        raise fail(str(error), EXIT_UNAVAILABLE) from error
    if ended:
        return ended
    facts = _facts(folder)
    for line in (
        [json.dumps(facts, sort_keys=True)]
        if as_json
        else [*_lines(facts, folder), f"{_down(folder)} ends all of it"]
    ):
        typer.echo(line)
    return 0


def _until_interrupted(config: DevnetConfig, as_json: bool) -> int:
    crash_points.configure(os.environ.get(crash_points.CRASH_VARIABLE, ""))
    try:
        return asyncio.run(_serve(config, as_json))
    # the program ends here with a sentence and an exit code
    except (Refused, Unavailable) as error:
        raise fail(str(error), EXIT_UNAVAILABLE) from error
    except ValueError as error:
        raise fail(str(error), EXIT_USAGE) from error


async def _serve(config: DevnetConfig, as_json: bool) -> int:
    """Serves until a signal comes or a part dies. If one dies, prints the end of its log."""
    serving = asyncio.current_task()
    assert serving is not None, "inside a running loop"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Cancelled at any point, also during the start. What was started is ended on the way out.
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    is_up = False
    try:
        async with running(config, lambda sentence: typer.echo(sentence, err=True)) as devnet:
            is_up = True
            _show(devnet, as_json)
            ended = await devnet.processes.one_ended()
            typer.echo(
                (
                    f"devnet: {ended.name} ended with status "
                    f"{ended.process.returncode}:\n{ended.tail()}"
                ),
                err=True,
            )
            return EXIT_FAILED
    except asyncio.CancelledError:
        # Not raised again, because a signal asked for it. A caller that waits for the devnet must
        # learn that it never came up.
        if not is_up:
            typer.echo(
                "devnet: interrupted before it was up; all started parts have ended", err=True
            )
        return 0 if is_up else EXIT_FAILED


def _show(devnet: Devnet, as_json: bool) -> None:
    facts = devnet_facts(devnet)
    if as_json:
        typer.echo(json.dumps(facts, sort_keys=True))
        return
    for line in (
        *_lines(facts, devnet.config.folder),
        f"up in {devnet.seconds:.1f} s; Ctrl-C ends all of it",
    ):
        typer.echo(line)


def _lines(facts: dict[str, Any], folder: Path) -> list[str]:
    clients = ", ".join(item["name"] for item in facts["clients"])
    liars = sum(1 for item in facts["providers"] if item["isLiar"])
    return [
        f"chain        {facts['chainUrl']}",
        f"beacon       {facts['beaconUrl']}",
        f"coordinator  {facts['coordinator']['url']}",
        (
            f"providers    {len(facts['providers'])} ({liars} of them lie), executor "
            f"{facts['executor']}, connected over {facts['transport']}"
        ),
        f"clients      {clients}: quorate --devnet {shlex.quote(str(folder / MARKER_NAME))} offers",
    ]


def _down(folder: Path) -> str:
    return "quorate devnet down" + (
        "" if folder == DEFAULT_FOLDER else f" --dir {shlex.quote(str(folder))}"
    )


def fail(message: str, status: int) -> typer.Exit:
    typer.echo(f"devnet: {message}", err=True)
    return typer.Exit(status)
