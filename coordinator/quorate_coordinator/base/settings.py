"""The settings file `<home>/coordinator.json`, which `coordinator init` writes and `up` reads."""

import logging
from collections.abc import Set
from pathlib import Path

from msgspec import Struct

from quorate_contracts import deploy
from quorate_coordinator.base.config import ACCUSE_USD, FEE_CAP_GWEI
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Bps
from quorate_protocol.values import replace
from quorate_runtime.files import write_atomic
from quorate_runtime.http.client_networks import X_FORWARDED_FOR
from quorate_runtime.p2p.multiaddrs import (
    LISTEN_EXAMPLE,
    dial_address,
    listen_address,
    listen_beside,
)

FILE = "coordinator.json"
P2P_OFF = "off"
ANNOUNCED_MAX = 4

log = logging.getLogger(__name__)


class Settings(Struct, frozen=True):
    """The operator's choices."""

    deployment: deploy.Deployment
    chain_url: str
    beacon_url: str
    host: str
    port: int
    public_url: str
    fee_bps: Bps
    trusted_proxies: tuple[str, ...] = ()
    proxy_header: str = X_FORWARDED_FOR
    fee_cap_gwei: int = FEE_CAP_GWEI
    database: str = ""  # URL of the tables that people query; "" = a SQLite file
    p2p_listen: str = ""  # multiaddr; "" = the port after the HTTP port; "off" = no libp2p
    p2p_announce: tuple[str, ...] = ()  # multiaddrs that others dial; none = as it listens
    metrics_from: tuple[str, ...] = ()  # networks that may read metrics, beside this machine
    import_logs: tuple[str, ...] = ()  # URLs of other coordinators whose public logs are read
    second_chain_url: str = ""  # if named, only what both nodes say counts
    backup: str = ""  # folder of the second place; "" = none
    accuse_usd: int = ACCUSE_USD  # burned in 30 days to accuse providers by itself, at most


def check_p2p(listen_name: str, listen: str, announce_name: str, announce: tuple[str, ...]) -> None:
    """Raises Refused, which names the flag or field, for multiaddrs that cannot be used."""
    if listen not in ("", P2P_OFF):
        listen_address(listen_name, listen)
    if len(announce) > ANNOUNCED_MAX:
        raise Refused(Code.MALFORMED, f"{announce_name}: {len(announce)}, at most {ANNOUNCED_MAX}")
    for text in announce:
        dial_address(announce_name, text)


def p2p_listen(settings: Settings, port: int) -> str:
    """Returns the multiaddr to listen on beside an HTTP port.

    It is "" if the operator wants no libp2p, or named none and the HTTP address gives none.
    """
    if settings.p2p_listen:
        return "" if settings.p2p_listen == P2P_OFF else settings.p2p_listen
    try:
        return listen_beside(settings.host, port)
    except Refused as refused:
        # Not re-raised: providers can use WebSocket.
        log.warning(
            "no libp2p beside %s:%s: %s; name an address: quorate coordinator init --p2p-listen %s",
            settings.host,
            port,
            refused.detail,
            LISTEN_EXAMPLE,
        )
        return ""


def changed(kept: Settings, typed: Settings, named: Set[str]) -> Settings:
    """Returns the settings after a new `init`: `kept`, with the fields that the user named.

    Two chain nodes are named together.
    """
    names = named | ({"second_chain_url"} if "chain_url" in named else set())
    return replace(
        kept, **{name: getattr(typed, name) for name in Settings.__struct_fields__ if name in names}
    )


def differences(before: Settings, after: Settings) -> list[str]:
    """Returns the names of the options whose values differ, such as "chain-url"."""
    return [
        name.replace("_", "-")
        for name in Settings.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    ]


def write(home: Path, settings: Settings) -> None:
    """Replaces the file atomically.

    Only its owner may read it, because a database URL may contain a password.
    """
    write_atomic(home / FILE, canonical.encode(settings))


def read(home: Path) -> Settings:
    """Reads the file. Raises Refused with the remedy: UNKNOWN if it is missing, MALFORMED if it is
    damaged.
    """
    path = home / FILE
    try:
        settings = canonical.decode(Settings, path.read_bytes())
        if not 0 <= settings.port <= 65535:
            raise Refused(Code.MALFORMED, f"port: {settings.port} is not between 0 and 65535")
        check_p2p("p2pListen", settings.p2p_listen, "p2pAnnounce", settings.p2p_announce)
    except OSError as error:
        raise Refused(
            Code.UNKNOWN,
            f"{path} cannot be read ({error.strerror}); run `quorate coordinator init` first",
        ) from error
    except Refused as damage:
        raise Refused(
            Code.MALFORMED,
            f"{path} is damaged ({damage.detail}); make it again with `quorate coordinator init`: "
            f"keys stay",
        ) from damage
    return settings
