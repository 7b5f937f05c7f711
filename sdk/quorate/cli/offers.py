"""`quorate offers`: the book of a coordinator, or what gossip says."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.base.errors import UsageError
from quorate.cli import rendering
from quorate.cli.context import Context, JsonFlag, context_of, emit, note, run_async
from quorate.cli.tables import table
from quorate.job.quantities import parse_duration, parse_price
from quorate.trust.attestation_checks import deployment_check
from quorate.trust.market_by_gossip import GossipedMarket, listen, listening_seconds
from quorate_attestation.gpu_match import names_called
from quorate_contracts import trusted_deployment
from quorate_contracts.deploy import Deployment
from quorate_protocol.messages.offer import Offer
from quorate_protocol.refusals import Refused
from quorate_protocol.units import UnixSeconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.http.urls import web_url

if TYPE_CHECKING:
    from quorate.trust.attestation_verification import CheckedSlot
SECONDS_MAX = 3_600
DEVNET_FILE_BYTES_MAX = 1 << 20

GpuText = Annotated[
    str | None, typer.Option("--gpu", help="Only offers with GPUs of this name, such as H100.")
]
PriceText = Annotated[
    str | None,
    typer.Option("--max-price", help="Only offers of at most this price in USD per hour."),
]
Rentals = Annotated[
    bool, typer.Option("--rentals", help="Only machines for rent, with their disk and bandwidth.")
]
OnChain = Annotated[
    bool, typer.Option("--on-chain", help="Ask the chain too, whether each signer is the provider.")
]
Verifying = Annotated[
    bool, typer.Option("--verify", help="Check attestations too: signatures, draw and arithmetic.")
]
ByGossip = Annotated[
    bool,
    typer.Option("--p2p", help="Read gossip and the chain, and ask no coordinator (needs libp2p)."),
]
Listening = Annotated[
    str,
    typer.Option(
        "--for",
        help="With --p2p: listen for so long, such as 30s (default: until each provider has "
        "published once).",
    ),
]
DeploymentFile = Annotated[
    Path | None,
    typer.Option(
        "--deployment",
        help="With --p2p: the deployment.json of the market (default: the profile's, or the "
        "devnet's).",
    ),
]
ChainUrl = Annotated[
    str | None,
    typer.Option("--chain-url", help="With --p2p: URL of a chain node (default: the devnet's)."),
]


def offers(
    ctx: typer.Context,
    gpu: GpuText = None,
    max_price: PriceText = None,
    rentals: Rentals = False,
    on_chain: OnChain = False,
    verify: Verifying = False,
    p2p: ByGossip = False,
    listening: Listening = "",
    deployment: DeploymentFile = None,
    chain_url: ChainUrl = None,
    json: JsonFlag = False,
) -> None:
    """Lists offers, each checked by this program: form, signature and expiry.

    With --p2p they come by gossip, and the chain says whether key and stake are the provider's.
    """
    named = names_called(gpu or "")
    most = None if max_price is None else parse_price(max_price, "--max-price")

    def fits(offer: Offer) -> bool:
        has_model = gpu is None or any(
            gpu.lower() in slot.gpu.lower() or slot.gpu.lower() in named for slot in offer.slots
        )
        prices = [
            price
            for slot in offer.slots
            for price in (slot.spot, slot.on_demand, slot.reserved)
            if price
        ]
        if rentals and not any(kind.is_rental for kind in offer.kinds):
            return False
        return has_model and (most is None or any(price <= most for price in prices))

    seconds = _seconds(listening)
    if p2p:
        known, url = _market_of(context_of(ctx), deployment, chain_url)
        run_async(_by_gossip(known, url, seconds, verify, fits, json))
        return
    if listening or deployment is not None or chain_url is not None:
        raise UsageError("--for, --deployment and --chain-url need --p2p")
    run_async(_of_the_book(context_of(ctx), on_chain, verify, fits, json, rentals))


def _seconds(text: str) -> int | None:
    """Returns how long to listen, or None for the default."""
    if not text:
        return None
    seconds = parse_duration(text, "--for")
    if seconds > SECONDS_MAX:
        raise UsageError(f"--for: {text} is too long; write 1h or less")
    return seconds


async def _of_the_book(
    context: Context,
    on_chain: bool,
    verify: bool,
    fits: Callable[[Offer], bool],
    is_json: bool,
    is_rental: bool,
) -> None:
    async with context.reading_market() as market:
        views = await market.checked_offers(on_chain)
        wanted = tuple(row for row in views if fits(row.view.offer))
        if verify:
            wanted = await market.with_attestation(wanted, on_chain)
    if is_json:
        emit({"offers": [rendering.offer_json(row) for row in wanted]})
    else:
        rows = rendering.rental_rows(wanted) if is_rental else rendering.offer_rows(wanted)
        columns = rendering.RENTAL_COLUMNS if is_rental else rendering.OFFER_COLUMNS
        table(columns, rows)
        _note_if_empty(len(wanted), len(views))
    _note_bad(sum(1 for row in wanted if row.problem))
    for row in wanted:
        _note_attestation(rendering.short(row.view.offer.provider), row.slots)


async def _by_gossip(
    deployment: Deployment,
    chain_url: str,
    seconds: int | None,
    verify: bool,
    fits: Callable[[Offer], bool],
    is_json: bool,
) -> None:
    wait = listening_seconds(deployment) if seconds is None else seconds
    note(f"listening to gossip for {wait} s")
    found = await listen(deployment, chain_url, wait, SystemClock())
    wanted = tuple(row for row in found.offers if fits(row.heard.envelope.offer))
    if verify:
        now = UnixSeconds(int(SystemClock().now()))
        async with deployment_check(deployment, now, chain_url) as check:
            wanted = tuple(
                [replace(row, slots=await check.check(row.heard.envelope.offer)) for row in wanted]
            )
    if is_json:
        emit(
            {
                "offers": [rendering.gossiped_offer_json(row) for row in wanted],
                "coordinators": [rendering.announced_json(one) for one in found.coordinators],
                "reached": found.reached,
                "refused": found.refused,
            }
        )
    else:
        table(rendering.OFFER_COLUMNS, rendering.gossiped_offer_rows(wanted))
        _note_if_empty(len(wanted), len(found.offers))
    _note_bad(sum(1 for row in wanted if row.problem))
    for row in wanted:
        _note_attestation(rendering.short(row.heard.envelope.offer.provider), row.slots)
    _note_sources(found)


def _note_sources(found: GossipedMarket) -> None:
    note(
        f"reached {found.reached} of {len(found.coordinators)} coordinators on chain; "
        f"{found.refused} messages were refused"
    )


def _note_if_empty(wanted: int, found: int) -> None:
    if not wanted:
        note(
            f"none of the {found} offers fits these filters"
            if found
            else "there are no offers here now; try again later"
        )


def _note_bad(count: int) -> None:
    if count:
        note(f"{count} offers failed their check; no job should be priced by them")


def _note_attestation(provider: str, slots: "tuple[CheckedSlot, ...]") -> None:
    """Says why a slot is not verified, and which figures are only told."""
    for slot in slots:
        if slot.problem:
            note(f"{provider}: attestation not verified: {slot.problem}")
        elif slot.is_verified:
            seconds = slot.elapsed_ms / 1000
            note(f"{provider}: elapsed {seconds:.1f} s is {rendering.VERIFIERS_WORD}")


def _market_of(
    context: Context, deployment: Path | None, chain_url: str | None
) -> tuple[Deployment, str]:
    """Returns the deployment and the chain node's URL, without a coordinator and without keys.

    Flags come first, then the devnet's file or the profile's trusted deployment.
    """
    path, url = deployment, chain_url
    if context.devnet is not None:
        path, url = path or context.devnet, url or _devnet_chain_url(context.devnet)
    path = path or context.profile_home() / trusted_deployment.FILE
    if deployment is None and not path.exists():
        raise UsageError(
            f"--p2p: {path} is not there: name the deployment.json of a market that you trust with "
            "--deployment FILE, or a devnet with quorate --devnet FILE"
        )
    if not url:
        raise UsageError("--p2p: name a chain node with --chain-url URL")
    try:
        return trusted_deployment.read(path), web_url("--chain-url", url, "http://127.0.0.1:8545")
    except Refused as refused:
        raise UsageError(refused.detail) from refused


def _devnet_chain_url(path: Path) -> str:
    """Returns the chain node's URL in a devnet.json; "" if it names none. Another function refuses
    a file that is damaged.
    """
    try:
        tree: Any = json.loads(path.read_bytes()[:DEVNET_FILE_BYTES_MAX])
    except (OSError, ValueError):
        return ""  # not re-raised: reading the deployment names what is wrong with the file
    url = tree.get("chainUrl") if isinstance(tree, dict) else None
    return url if isinstance(url, str) else ""
