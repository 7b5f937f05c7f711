"""The settings file `<home>/coordinator.json`, which `coordinator init` writes and `up` reads."""

import logging
from pathlib import Path

from quorate_coordinator.base.config import Settings
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Code, Refused
from quorate_runtime.files import write_atomic
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


def check_p2p(listen_name: str, listen: str, announce_name: str, announce: tuple[str, ...]) -> None:
    """Raises Refused, which names the flag or field."""
    if listen not in ("", P2P_OFF):
        listen_address(listen_name, listen)
    if len(announce) > ANNOUNCED_MAX:
        raise Refused(Code.MALFORMED, f"{announce_name}: {len(announce)}, at most {ANNOUNCED_MAX}")
    for text in announce:
        dial_address(announce_name, text)


def p2p_listen(settings: Settings, port: int) -> str:
    """ "" if the operator wants no libp2p, or named none and the HTTP address gives none."""
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


def differences(before: Settings, after: Settings) -> list[str]:
    return [
        name.replace("_", "-")
        for name in Settings.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    ]


def write(home: Path, settings: Settings) -> None:
    """Only its owner may read it, because a database URL may contain a password."""
    write_atomic(home / FILE, canonical.encode(settings))


def read(home: Path) -> Settings:
    """Raises Refused with the remedy: UNKNOWN if it is missing, MALFORMED if it is damaged."""
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
