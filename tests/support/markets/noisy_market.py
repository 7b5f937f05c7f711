"""The scripted market with jobs whose results agree within a tolerance."""

from collections.abc import Sequence
from itertools import cycle

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import CompareOutputs, Effect
from quorate_coordinator.core.model.entities import Job
from quorate_protocol.messages.classes import CPUS, Pool
from quorate_protocol.messages.job_spec import Compare
from quorate_protocol.units import Address, Comparator, Hash32, Ppm
from support.markets.scripted_market import Market, Party
from support.offers import machine_of

NUMERIC = Compare(Comparator.NUMERIC, ("*.npy",), Ppm(1))
Places = dict[Address, int | None]


class NoisyMarket(Market):
    """Each owner's output lies at a place of a line, in ppb; None for one that cannot be read."""

    answers = True

    def __init__(self, *places: int | None, pools: Sequence[Pool] = (CPUS,)) -> None:
        """The owners have these pools in turn."""
        parties = [
            Party(number, lies=True, tale=number + 1, host=machine_of(pool), pool=pool)
            for number, pool in zip(range(len(places)), cycle(pools), strict=False)
        ]
        self.places: Places = {
            party.owner: place for party, place in zip(parties, places, strict=True)
        }
        self.asked: list[CompareOutputs] = []
        super().__init__(*parties)

    def _perform(self, effect: Effect) -> None:
        super()._perform(effect)
        if isinstance(effect, CompareOutputs):
            self.asked.append(effect)

    def deliver(self) -> None:
        super().deliver()
        while self.answers and self.asked:
            self.answer(self.asked.pop(0))
            super().deliver()

    def answer(self, effect: CompareOutputs) -> None:
        one, other = (self.place(name) for name in (effect.one, effect.other))
        apart = None if one is None or other is None else abs(one - other)
        self.send(ev.OutputsCompared(effect.job_id, effect.one, effect.other, apart))

    def place(self, name: Hash32) -> int | None:
        return self.places[self.core.state.leases[name].provider]

    def decided(self, nonce: int = 1, **changes: object) -> Job:
        job_id = self.order(0, nonce, compare=NUMERIC, **changes)
        self.until_decided(job_id)
        return self.job(job_id)
