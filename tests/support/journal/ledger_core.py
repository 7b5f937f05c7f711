"""A small core with rules, randomness, refusals and effects: what tests of the actor and the
journal run.
"""

from dataclasses import dataclass
from typing import assert_never

from quorate_protocol.refusals import Code, Refused
from quorate_protocol.step import Input, Outcome
from quorate_protocol.tables import Cell, Table, Tables
from quorate_protocol.units import Amount, Hash32
from quorate_runtime.actor.actor_codec import CanonicalCodec


@dataclass(frozen=True, slots=True)
class Paid:
    """Money came in for a name."""

    name: str
    amount: Amount


@dataclass(frozen=True, slots=True)
class Closed:
    """The account is no more."""

    name: str


Event = Paid | Closed


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell the world about a balance."""

    name: str
    balance: Amount
    number: int

    @property
    def key(self) -> str:
        return f"notify/{self.number}"

    @property
    def lane(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Farewell:
    """Tell the world that an account is gone."""

    name: str

    @property
    def key(self) -> str:
        return f"farewell/{self.name}"

    @property
    def lane(self) -> str:
        return self.name


Effect = Notify | Farewell


class Ledger(Tables):
    """Balances; the last input's time and random value are kept so that replay must hand them
    back.
    """

    def __init__(self) -> None:
        self.balances: Table[str, Amount] = Table(str, Amount)
        self.count: Cell[int] = Cell(int, 0)
        self.last_random: Cell[Hash32] = Cell(Hash32, Hash32(bytes(32)))
        self.last_at: Cell[int] = Cell(int, 0)

    def step(self, item: Input[Event]) -> Outcome[Effect]:
        """Pays in or closes; refuses amounts of zero and unknown names, after having written."""
        with self.transaction():
            self.count.value += 1
            self.last_random.value, self.last_at.value = item.random, item.at
            match item.event:
                case Paid(name, amount):
                    balance = Amount(self.balances.get(name, Amount(0)) + amount)
                    self.balances[name] = balance
                    if amount == 0:
                        raise Refused(Code.BAD_AMOUNT, "nothing was paid")
                    return Outcome((Notify(name, balance, self.count.value),), balance)
                case Closed(name):
                    if name not in self.balances:
                        raise Refused(Code.UNKNOWN, name)
                    del self.balances[name]
                    return Outcome((Farewell(name),), None)
                case other:
                    assert_never(other)


def ledger_codec() -> CanonicalCodec[Event, Effect]:
    """Codec of the ledger's events and effects."""
    return CanonicalCodec(Event, Effect)
