"""The settings file `<home>/coordinator.json`, which `coordinator init` writes and `up` reads."""

from pathlib import Path

from msgspec import Struct

from quorate_contracts import deploy
from quorate_coordinator.config import FEE_CAP_GWEI
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Bps
from quorate_runtime.http.client_networks import X_FORWARDED_FOR

FILE = "coordinator.json"


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


def write(home: Path, settings: Settings) -> None:
    """Writes the file. Only its owner may read it, because a database URL may contain a
    password.
    """
    path = home / FILE
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(canonical.encode(settings))


def read(home: Path) -> Settings:
    """Reads the file. Raises Refused with the remedy: UNKNOWN if it is missing, MALFORMED if it is
    damaged.
    """
    path = home / FILE
    try:
        settings = canonical.decode(Settings, path.read_bytes())
        if not 0 <= settings.port <= 65535:
            raise Refused(Code.MALFORMED, f"port: {settings.port} is not between 0 and 65535")
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
