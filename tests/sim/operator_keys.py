"""A provider's operator keys: the current one, and past ones for their time (PROTOCOL §2)."""

from dataclasses import dataclass, field

from quorate_runtime.keys.crypto import KeySigner
from sim.parties import key

APART = 16  # numbers of the role's keys: the n-th key of provider 3 is number 3 + 16 n


@dataclass(slots=True)
class OperatorKeys:
    """The owner's keystore and the registry in one: a rotation is valid at once."""

    number: int
    _since: list[tuple[int, KeySigner]] = field(
        default_factory=list
    )  # (first second, key), oldest first

    def __post_init__(self) -> None:
        self._since.append((0, key("operator", self.number)))

    @property
    def current(self) -> KeySigner:
        """The current key."""
        return self._since[-1][1]

    @property
    def past(self) -> list[KeySigner]:
        """Past keys, oldest first."""
        return [signer for _, signer in self._since[:-1]]

    def at(self, moment: int) -> KeySigner:
        """The key that is valid at a time; in the second of a rotation the older one."""
        return next(
            (signer for since, signer in reversed(self._since) if since < moment), self._since[0][1]
        )

    def rotate(self, now: int) -> None:
        """Makes a new key valid from now on."""
        self._since.append((now, key("operator", self.number + APART * len(self._since))))
