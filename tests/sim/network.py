"""Request and answer between nodes that lose, repeat, delay and reorder each of them. Nobody learns which it was."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from quorate_protocol.refusals import Refused
from sim.plan import CALM, Absence, Weather
from sim.schedule import Schedule

Answer = Refused | object | None
"""A refusal, whatever the other side answered, or None when nothing came in time."""


class Silence(Exception):
    """The other side gives no answer: it is down, or died while it worked on the request."""


@dataclass(slots=True)
class Network:
    """One network; `heal` ends all its faults."""

    schedule: Schedule
    random: Random
    weather: Weather
    absences: tuple[Absence, ...]
    start_ms: int

    def heal(self) -> None:
        """From now on every message arrives, soon and once."""
        self.weather, self.absences = CALM, ()

    def request(self, source: str, target: str, act: Callable[[], object], answered: Callable[[Answer], None], seconds: float) -> None:
        """`act` runs at the target when the request arrives, perhaps twice, perhaps long after `answered(None)`."""
        is_open = [True]

        def close(answer: Answer) -> None:
            if is_open[0]:
                is_open[0] = False
                answered(answer)

        def arrive() -> None:
            if not self._is_reachable(source, target):
                return
            try:
                answer: Answer = act()
            except Refused as refused:
                answer = refused
            except Silence:
                return  # as on a real wire: no answer is all that the sender sees
            if not self._is_lost():
                self.schedule.after(self._delay(), lambda: close(answer))

        if self._is_reachable(source, target):
            copies = 2 if self.random.random() < self.weather.repeat else 1
            for _ in range(copies):
                if not self._is_lost():
                    self.schedule.after(self._delay(), arrive)
        self.schedule.after(seconds, lambda: close(None))

    def _is_lost(self) -> bool:
        return self.random.random() < self.weather.drop

    def _delay(self) -> float:
        chance = self.random.random()
        if chance < self.weather.lost_for_long:
            return self.random.uniform(3, 40)
        if chance < self.weather.lost_for_long + self.weather.slow:
            return self.random.uniform(0.2, 3)
        return self.random.uniform(0.002, 0.06)

    def _is_reachable(self, source: str, target: str) -> bool:
        at = (self.schedule.now_ms - self.start_ms) / 1000
        return not any(item.node in (source, target) and item.start <= at < item.start + item.seconds for item in self.absences)
