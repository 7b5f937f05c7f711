"""A soak's `Plan`, and the keys, folders and times that follow from it."""

from dataclasses import dataclass
from pathlib import Path

from quorate_node.base.provider_keys import ProviderKeys
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.units import Price
from quorate_runtime.keys.crypto import KeySigner, PeerKey

PROVIDERS_MAX = 250  # each has its own network (/24) in 127.0.0.0/16
PRICE = Price(3_600_000)
SLOTS = 2
NOOP_MILLISECONDS = 100
WHOLE = 4  # providers that are whole daemons; the others lack what only asks the chain


@dataclass(frozen=True, slots=True)
class Plan:
    """One soak. RequestRates are per second; churn is in percent of the providers per minute."""

    folder: Path
    seconds: float
    providers: int
    churn: float
    rate: float  # jobs that clients submit, at most
    outstanding: int  # jobs in progress, at most
    clients: int
    per_process: int
    coordinator_kills: int
    drain_seconds: float

    def __post_init__(self) -> None:
        """ValueError names an invalid value."""
        if not 3 <= self.providers <= PROVIDERS_MAX or self.per_process < 1 or self.clients < 1:
            raise ValueError(
                f"3 to {PROVIDERS_MAX} providers, one client and one provider a process at "
                "least, please"
            )

    def hosts(self) -> list[range]:
        """Providers by process."""
        return [
            range(first, min(first + self.per_process, self.providers))
            for first in range(0, self.providers, self.per_process)
        ]

    def host_home(self, number: int) -> Path:
        """The folder of a process's providers."""
        return self.folder / f"provider-host-{number}"

    def kill_every(self) -> float:
        """Seconds between two kills of a provider process, so that `churn` die per minute; 0 =
        never.
        """
        a_minute = self.providers * self.churn / 100
        return 60 * min(self.per_process, self.providers) / a_minute if a_minute else 0.0

    def coordinator_dies_at(self) -> list[float]:
        """Seconds after the start at which the coordinator is killed.

        All are in the first third, so that the rest shows how one process grows.
        """
        return [
            self.seconds / 3 * (context + 1) / (self.coordinator_kills + 1)
            for context in range(self.coordinator_kills)
        ]


def provider_keys(seed: bytes, index: int) -> ProviderKeys:
    """Keys without a key store, because opening two hundred key stores is not part of the test."""
    owner, operator = (
        KeySigner(hash_tuple("soak", seed, role, index)) for role in ("owner", "operator")
    )
    peer, box = (hash_tuple("soak", seed, role, index) for role in ("peer", "box"))
    return ProviderKeys(owner.address, owner.address, operator, PeerKey(peer), box, owner)


def listen_host(index: int) -> str:
    """The loopback address of a provider."""
    return f"127.0.{index + 1}.1"
