"""The settings of one coordinator: a JSON file in its folder."""

from dataclasses import dataclass
from pathlib import Path

from quorate_contracts import deploy
from quorate_coordinator.config import FEE_CAP_GWEI
from quorate_protocol.codec import canonical
from quorate_protocol.units import Bps
from quorate_runtime.http.client_networks import X_FORWARDED_FOR

SETTINGS = "coordinator.json"


@dataclass(frozen=True, slots=True)
class Settings:
    """What `quorate coordinator init` writes and `up` reads."""

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


def write_settings(folder: Path, settings: Settings) -> None:
    """Writes the settings into a coordinator's folder. Only its owner may read them, because a
    database's URL may hold a password.
    """
    path = folder / SETTINGS
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(canonical.encode(settings))
