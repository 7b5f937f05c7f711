"""What an act costs honest people, and what it costs its author (I11)."""

from dataclasses import dataclass

from quorate_protocol.limits import USD

GWEI = {0: 0.0, 1: 2.5, 5: 12.5}  # USD for a million gas, at 2,500 USD a coin


@dataclass(frozen=True)
class Side:
    """What one account lost: token units (below zero: gained) and gas."""

    tokens: float
    gas: float = 0

    def at(self, gwei: int) -> float:
        """USD at a gas price."""
        return self.tokens / USD + self.gas * GWEI[gwei] / 10**6


@dataclass(frozen=True)
class Act:
    """What every honest account lost by an act, and what its authors lost."""

    honest: tuple[Side, ...]
    author: tuple[Side, ...]

    def loss(self, gwei: int) -> float:
        """USD that honest accounts lost. A gain of one does not make good another's loss."""
        return sum(max(0.0, each.at(gwei)) for each in self.honest)

    def ratio(self, gwei: int) -> float:
        """Loss by cost; infinite if the author gains."""
        loss, cost = self.loss(gwei), sum(each.at(gwei) for each in self.author)
        return 0.0 if loss < 1e-6 else float("inf") if cost <= 0 else loss / cost
