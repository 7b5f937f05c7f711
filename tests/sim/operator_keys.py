"""A provider's operator keys: today's, and those it had, which answer for what they were valid
for (PROTOCOL §2).
"""

from dataclasses import dataclass, field

from quorate_runtime.keys.crypto import KeySigner
from sim.parties import key

APART = 16  # numbers of the role's keys: the n-th key of provider 3 is number 3 + 16 n


@dataclass(slots=True)
class OperatorKeys:
    """Both the owner's keystore and what the registry knows: in the simulator a rotation stands
    as soon as it is made.
    """

    number: int
    _since: list[tuple[int, KeySigner]] = field(
        default_factory=list
    )  # from which second on; oldest first

    def __post_init__(self) -> None:
        self._since.append((0, key("operator", self.number)))

    @property
    def current(self) -> KeySigner:
        """The key of today."""
        return self._since[-1][1]

    @property
    def past(self) -> list[KeySigner]:
        """Those that were rotated away, oldest first."""
        return [signer for _, signer in self._since[:-1]]

    def at(self, moment: int) -> KeySigner:
        """The key that answers for a moment; of two in the second of a rotation the older."""
        return next(
            (signer for since, signer in reversed(self._since) if since < moment), self._since[0][1]
        )

    def rotate(self, now: int) -> None:
        """A new key from now on."""
        self._since.append((now, key("operator", self.number + APART * len(self._since))))
