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
from quorate_runtime.process.settings_flags import check_bounds

FILE = "coordinator.json"
FILE_BYTES_MAX = 1 << 20
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
        tree = canonical.parse(path.read_bytes(), FILE_BYTES_MAX)
    except FileNotFoundError as error:
        raise Refused(
            Code.UNKNOWN, f"{path} is missing; run `quorate coordinator init` first"
        ) from error
    except OSError as error:
        told = f"{path} cannot be read ({error.strerror}); let this user read it"
        raise Refused(Code.MALFORMED, told) from error
    except Refused as damage:
        raise Refused(
            Code.MALFORMED,
            f"{path}: {damage.detail}; correct it, or move it away and make it again with "
            "`quorate coordinator init` and your options: keys stay",
        ) from damage
    try:
        settings = canonical.from_json(Settings, tree)
        check_bounds(settings)
        check_p2p("p2pListen", settings.p2p_listen, "p2pAnnounce", settings.p2p_announce)
    except Refused as fault:
        raise Refused(Code.MALFORMED, f"{path}: {fault.detail}; correct it there") from fault
    return settings
