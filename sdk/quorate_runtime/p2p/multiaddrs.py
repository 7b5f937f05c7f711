"""Checks multiaddrs as text, when people type them or coordinators show them. Imports no libp2p."""

from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from quorate_protocol.refusals import Code, Refused

CHARACTERS_MAX = 300
LISTEN_EXAMPLE = "/ip4/0.0.0.0/tcp/7701"
DIAL_EXAMPLE = "/ip4/203.0.113.7/tcp/7701"
_IP_VERSIONS = {"ip4": 4, "ip6": 6}
_NAMES = ("dns", "dns4", "dns6")


def listen_address(name: str, text: str) -> str:
    """Returns a multiaddr to listen on. Refused, which names the flag or field, for other text."""
    if _parts(text, port_min=0)[0] not in _IP_VERSIONS:
        raise Refused(
            Code.MALFORMED,
            f"{name} {text[:CHARACTERS_MAX]!r}: it is an IP address and a TCP port to listen on, "
            f"such as {LISTEN_EXAMPLE}",
        )
    return text


def dial_address(name: str, text: str) -> str:
    """Returns a multiaddr that others can dial. Refused, which names the flag or field, for other
    text.
    """
    kind, host, _ = _parts(text, port_min=1)
    if not kind or (kind in _IP_VERSIONS and ip_address(host).is_unspecified):
        raise Refused(
            Code.MALFORMED,
            f"{name} {text[:CHARACTERS_MAX]!r}: it is what others dial, such as {DIAL_EXAMPLE} or "
            "/dns4/market.example/tcp/7701, without /p2p/...",
        )
    return text


def http_before(text: str) -> str:
    """Returns the URL of the port before a libp2p port, where a coordinator serves HTTP unless its
    operator chose otherwise. "" for other text.
    """
    kind, host, port = _parts(text, port_min=2)
    shown = f"[{host}]" if kind == "ip6" else host
    return f"http://{shown}:{port - 1}" if kind else ""


def is_public(text: str) -> bool:
    """Whether a multiaddr names a host, or an IP address outside private networks."""
    kind, host, _ = _parts(text, port_min=1)
    return kind in _NAMES or (kind in _IP_VERSIONS and ip_address(host).is_global)


def listen_beside(host: str, port: int) -> str:
    """Returns the multiaddr of the port after an HTTP port; any free port if that is 0.
    Refused(MALFORMED) if the host is no IP address, or has no port after this one.
    """
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"{host!r} is no IP address") from error
    return listen_address(
        "the port after the HTTP port", multiaddr(address, port + 1 if port else 0)
    )


def multiaddr(address: IPv4Address | IPv6Address, port: int) -> str:
    return f"/ip{address.version}/{address}/tcp/{port}"


def announced(listened: str, public_url: str) -> str:
    """Returns the multiaddr that others dial for one that a host listens on; "" if none is known. A
    host that listens on all addresses is reached under the host name of its public URL.
    """
    kind, host, port = _parts(listened, port_min=1)
    if kind not in _IP_VERSIONS:
        return ""
    if not ip_address(host).is_unspecified:
        return listened
    public = urlsplit(public_url).hostname or ""
    if not public:
        return ""
    try:
        return multiaddr(ip_address(public), port)
    except ValueError:
        return f"/dns/{public}/tcp/{port}"


def _parts(text: str, port_min: int) -> tuple[str, str, int]:
    """(kind of host, host, port) of /KIND/HOST/tcp/PORT; ("", "", 0) for other text."""
    parts = text.split("/")
    none = ("", "", 0)
    if len(text) > CHARACTERS_MAX or len(parts) != 5 or parts[0] or parts[3] != "tcp":
        return none
    kind, host, port = parts[1], parts[2], parts[4]
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5
    if not is_port or not port_min <= int(port) <= 65535:
        return none
    if kind in _NAMES:
        is_name = host.isascii() and host.replace("-", "").replace(".", "").isalnum()
        return (kind, host, int(port)) if is_name else none
    try:
        is_right = ip_address(host).version == _IP_VERSIONS.get(kind) and "%" not in host
    except ValueError:
        return none  # the caller says what is wrong with it
    return (kind, host, int(port)) if is_right else none
