"""Request and answer between nodes that lose, repeat, delay and reorder each of them. Nobody
learns which it was.

Every link has chance of its own, so that a node that is taken out leaves the others' messages as
they were.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from quorate_protocol.refusals import Refused
from sim.plan import ANY, CALM, Cut, Plan, Weather
from sim.schedule import Schedule

Answer = Refused | object | None
"""A refusal, whatever the other side answered, or None when nothing came in time."""


class Silence(Exception):
    """The other side gives no answer: it is down, or died while it worked on the request."""


@dataclass(slots=True)
class Network:
    """One network; `heal` ends all its faults."""

    schedule: Schedule
    plan: Plan
    start_ms: int = field(init=False)
    weather: Weather = field(init=False)
    cuts: tuple[Cut, ...] = field(init=False)
    _links: dict[tuple[str, str], Random] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.start_ms, self.weather, self.cuts = (
            self.schedule.now_ms,
            self.plan.weather,
            self.plan.cuts,
        )

    def heal(self) -> None:
        """From now on every message arrives, soon and once. What was delayed before still comes
        when it comes.
        """
        self.weather, self.cuts = CALM, ()

    def request(
        self,
        source: str,
        target: str,
        act: Callable[[], object],
        answered: Callable[[Answer], None],
        seconds: float,
    ) -> None:
        """`act` runs at the target when the request arrives, perhaps twice, perhaps long after
        `answered(None)`.
        """
        is_open, random = [True], self._link(source, target)

        def close(answer: Answer) -> None:
            if is_open[0]:
                is_open[0] = False
                answered(answer)

        def arrive() -> None:
            if not self._is_open(source, target):
                return
            try:
                answer: Answer = act()
            except Refused as refused:
                answer = refused
            except Silence:
                return  # as on a real wire: no answer is all that the sender sees
            if self._is_open(target, source) and random.random() >= self.weather.drop:
                self.schedule.after(self._delay(random), lambda: close(answer))

        if self._is_open(source, target):
            copies = 2 if random.random() < self.weather.repeat else 1
            for _ in range(copies):
                if random.random() >= self.weather.drop:
                    self.schedule.after(self._delay(random), arrive)
        self.schedule.after(seconds, lambda: close(None))

    def _link(self, source: str, target: str) -> Random:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = self.plan.stream(f"link/{source}/{target}")
        return found

    def _delay(self, random: Random) -> float:
        chance = random.random()
        if chance < self.weather.lost_for_long:
            return random.uniform(3, self.weather.longest)
        if chance < self.weather.lost_for_long + self.weather.slow:
            return random.uniform(0.2, 3)
        return random.uniform(0.002, 0.06)

    def _is_open(self, source: str, target: str) -> bool:
        if not self.cuts:
            return True
        at = (self.schedule.now_ms - self.start_ms) / 1000
        return not any(
            cut.start <= at < cut.start + cut.seconds
            and cut.source in (source, ANY)
            and cut.target in (target, ANY)
            for cut in self.cuts
        )
