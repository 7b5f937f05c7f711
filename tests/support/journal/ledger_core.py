"""A small core with rules, randomness, refusals and effects, for tests of actor and journal."""

from typing import assert_never

from msgspec import Struct

from quorate_protocol.codec.tables import Table, Tables
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.step import Input, StepOutcome
from quorate_protocol.units import Amount, Hash32
from quorate_runtime.actor.actor_codec import PackedCodec


class Paid(Struct, frozen=True, tag=True):
    """Somebody paid money into an account."""

    name: str
    amount: Amount


class Closed(Struct, frozen=True, tag=True):
    """The account was closed."""

    name: str


Event = Paid | Closed


class Notify(Struct, frozen=True, tag=True):
    """Reports a balance."""

    name: str
    balance: Amount
    number: int

    @property
    def key(self) -> str:
        return f"notify/{self.number}"

    @property
    def lane(self) -> str:
        return self.name


class Farewell(Struct, frozen=True, tag=True):
    """Reports that an account was closed."""

    name: str

    @property
    def key(self) -> str:
        return f"farewell/{self.name}"

    @property
    def lane(self) -> str:
        return self.name


Effect = Notify | Farewell


ONLY = "last"


class Last(Struct, frozen=True):
    """The number of steps that succeeded, and the input of the newest one."""

    count: int
    random: Hash32
    at: int


class Ledger(Tables):
    """Keeps balances, and the time and random value of the last input, so that a test can compare
    them after a replay.
    """

    def __init__(self) -> None:
        self.balances: Table[str, Amount] = Table(str, Amount)
        self.last: Table[str, Last] = Table(str, Last)

    @property
    def count(self) -> int:
        """The number of steps that succeeded."""
        return self.last[ONLY].count if self.last else 0

    @property
    def newest(self) -> Last:
        """The input of the newest step."""
        return self.last[ONLY]

    def step(self, item: Input[Event]) -> StepOutcome[Effect]:
        """Pays in or closes. Refuses zero amounts and unknown names after it wrote the state."""
        with self.transaction():
            count = self.count + 1
            self.last[ONLY] = Last(count, item.random, item.at)
            match item.event:
                case Paid(name, amount):
                    balance = Amount(self.balances.get(name, Amount(0)) + amount)
                    self.balances[name] = balance
                    if amount == 0:
                        raise Refused(Code.BAD_AMOUNT, "nothing was paid")
                    return StepOutcome((Notify(name, balance, count),), balance)
                case Closed(name):
                    if name not in self.balances:
                        raise Refused(Code.UNKNOWN, name)
                    del self.balances[name]
                    return StepOutcome((Farewell(name),), None)
                case other:
                    assert_never(other)


def ledger_codec() -> PackedCodec[Event, Effect]:
    """The codec of the ledger's events and effects."""
    return PackedCodec(Event, Effect)
