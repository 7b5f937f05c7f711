"""What a coordinator says about itself, and the HTTP client that asks it with the provider's token.

The coordinator describes itself at GET /v1/info: its account, keys and contracts. A file saves that
description. The daemon checks it against the chain before it signs anything for the coordinator
(`registration.check_coordinator`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from msgspec.structs import fields

from quorate_content.dag.cid import Cid
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source, host_name
from quorate_content.transfer.staging_routes import upload_file
from quorate_contracts import trusted_deployment
from quorate_contracts.artifact import CONTRACTS
from quorate_contracts.deploy import Deployment
from quorate_node.base.operator_keys import OperatorKeys, send_under_any_key
from quorate_node.market.content_sources import JobSources, job_sources
from quorate_protocol.codec import canonical
from quorate_protocol.limits import BY_NAME, DEVNET
from quorate_protocol.messages.bearer import Bearer, make_token
from quorate_protocol.messages.ports import Clock, Signer
from quorate_protocol.messages.receipt import RECEIPT_BYTES_MAX
from quorate_protocol.messages.views import InfoView, ObservedView
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32, Seconds, UnixSeconds
from quorate_runtime.files import write_atomic
from quorate_runtime.http.client_sessions import read_bounded
from quorate_runtime.http.coordinator_routes import Route, Routes

TOKEN_SECONDS = 3600
ANSWER_BYTES_MAX = 1 << 20
TIMEOUT = aiohttp.ClientTimeout(total=10.0)


def deployment_from_info(info: InfoView) -> Deployment:
    """Raises Refused(MALFORMED) if the description lacks a contract or has impossible values."""
    named = info.contracts
    absent = set(CONTRACTS) - named.keys()
    if (
        absent
        or info.limits not in BY_NAME
        or not 0 < info.chain_id < 2**63
        or not 0 < info.beacon.period < 2**31
    ):
        raise Refused(
            Code.MALFORMED,
            f"coordinator 0x{info.coordinator.hex()}: its /v1/info lacks a contract or has "
            f"impossible values",
        )
    return Deployment(
        chain_id=info.chain_id,
        start_block=BlockNumber(0),
        limits=info.limits,
        token=named["TestToken"],
        stakes=named["Stakes"],
        escrow=named["Escrow"],
        jobs=named["Jobs"],
        beacon=named["Beacon"],
        court=named["Court"],
        faults=named["Faults"],
        beacon_key=info.beacon.public_key,
        beacon_period=Seconds(info.beacon.period),
        beacon_genesis=info.beacon.genesis_time,
        genesis=info.genesis,
    )


def saved_info_path(folder: Path, url: str) -> Path:
    place = urlsplit(url)
    return folder / f"{place.hostname}-{place.port or place.scheme}.json"


async def fetch_info(
    session: aiohttp.ClientSession, url: str, saved: Path, home: Path | None = None
) -> InfoView:
    """Saves the answer; if there is none returns the saved one, so that a provider can start
    without its coordinator. The owner's key stakes at the contracts, so those of the first contact,
    or of the deployment in `home`, must never change. Raises Refused with what changed, or
    Unavailable.
    """
    earlier = _read_saved_info(saved)
    try:
        info = canonical.from_json(InfoView, await get_json(session, url + Routes.INFO.path))
    except Unavailable:
        # With a saved description the provider starts without this coordinator, because its leases
        # may still run here.
        if earlier is None:
            raise
        info = earlier
    other = trusted_deployment.strange(home, info) if home else ""
    if other:
        raise Refused(Code.UNSUPPORTED, f"{url}: {other}")
    if earlier is not None:
        _check_unchanged(url, saved, earlier, info)
    if info != earlier:
        _save_info(saved, info)
    return info


def _check_unchanged(url: str, saved: Path, earlier: InfoView, info: InfoView) -> None:
    known, fresh = deployment_from_info(earlier), deployment_from_info(info)
    changed = [
        item.name
        for item in fields(Deployment)
        if getattr(known, item.name) != getattr(fresh, item.name)
    ]
    if earlier.coordinator != info.coordinator:
        changed.insert(0, "coordinator")
    if changed:
        why = (
            f"{url} is not the coordinator that this provider knows: {', '.join(changed)} "
            f"changed; the provider stakes and signs nothing for it"
        )
        raise Refused(
            Code.UNSUPPORTED, f"{why}. If you know that the market was set up again, remove {saved}"
        )


def _read_saved_info(path: Path) -> InfoView | None:
    try:
        return canonical.decode(InfoView, path.read_bytes()) if path.exists() else None
    except Refused as refused:
        why = (
            f"{path} is damaged ({refused.detail}): restore it from a backup, or remove it to "
            f"trust what its coordinator says now"
        )
        raise Refused(Code.MALFORMED, why) from refused


def _save_info(path: Path, info: InfoView) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, canonical.encode(info))


async def get_json(
    session: aiohttp.ClientSession,
    url: str,
    headers: dict[str, str] | None = None,
    bytes_max: int = ANSWER_BYTES_MAX,
) -> canonical.Json:
    """Raises Refused with the server's code, Unavailable without an answer."""
    try:
        async with session.get(
            url, headers=headers, timeout=TIMEOUT, allow_redirects=False
        ) as response:
            data, status = await read_bounded(response, bytes_max), response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unavailable(
            f"{url} does not answer ({str(error) or type(error).__name__})", 2.0
        ) from error
    if 300 <= status < 400 or status in (408, 429, 500, 502, 503, 504):
        raise Unavailable(f"{url}: status {status}", 2.0)
    tree = canonical.parse(data, bytes_max)
    if status != 200:
        code = str(tree.get("code", "")) if isinstance(tree, dict) else ""
        raise Refused(Code(code) if code in set(Code) else Code.UNKNOWN, f"{url}: status {status}")
    return tree


@dataclass
class Coordinator:
    """The HTTP client of one coordinator. It signs its requests for one provider."""

    url: str
    info: InfoView
    session: aiohttp.ClientSession
    provider: Address
    operator_keys: OperatorKeys
    clock: Clock

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")

    @property
    def address(self) -> Address:
        return self.info.coordinator

    def headers(self, signer: Signer) -> dict[str, str]:
        expires = UnixSeconds(int(self.clock.now()) + TOKEN_SECONDS)
        bearer = Bearer(self.provider, signer.address, expires)
        return {"Authorization": make_token(bearer, self.info.chain_id, self.address, signer.sign)}

    def source(self) -> Source:
        """Returns the coordinator's staging store, as a gateway to fetch from."""
        return Source(
            self.url + Routes.UPLOAD.path,
            tuple(self.headers(self.operator_keys.for_coordinator(self.address)[0]).items()),
            name=host_name("coordinator", self.url),
        )

    def sources(self, named: tuple[str, ...]) -> JobSources:
        """Only the own store gets the token and may be private; on a devnet all may."""
        return job_sources(named, (self.source(),), self.info.limits == DEVNET.name)

    async def upload(
        self, store: ContentStore, cid: Cid, route: Route[Any] = Routes.UPLOAD
    ) -> None:
        async with await store.lease(cid) as lease:

            async def put(signer: Signer) -> None:
                await upload_file(
                    self.session, self.url + route.path, lease.path, cid, self.headers(signer)
                )

            await send_under_any_key(self.operator_keys.for_coordinator(self.address), put)

    async def observed_address(self) -> str:
        """Empty if it cannot tell. Refused or Unavailable."""
        view: ObservedView = canonical.from_json(
            ObservedView, await get_json(self.session, self.url + Routes.OBSERVED.path)
        )
        return view.address

    async def receipt(self, job_id: Hash32) -> bytes:
        """Refused or Unavailable while the coordinator shows none."""
        url = self.url + Routes.RECEIPT.at(job=job_id)

        async def get(signer: Signer) -> canonical.Json:
            return await get_json(self.session, url, self.headers(signer), RECEIPT_BYTES_MAX)

        keys = self.operator_keys.for_coordinator(self.address)
        return canonical.canonical(await send_under_any_key(keys, get))
