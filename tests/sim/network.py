"""A simulated network that loses, repeats, delays and reorders requests and answers.

A sender cannot tell which of these happened. Every link has its own random numbers, so that
removing one node leaves the messages of the others unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from quorate_protocol.refusals import Refused
from sim.plan import ANY, CALM, Cut, Plan, Weather
from sim.schedule import Schedule

Answer = Refused | object | None
"""A refusal, the other side's answer, or None when no answer came in time."""


class Silence(Exception):
    """The other side gives no answer: it is down, or crashed during the request."""


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
        """Ends all faults: from now on every message arrives once and soon. Delayed ones still come
        late.
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
        """Runs `act` at the target when the request arrives.

        That may be twice, and long after `answered(None)`.
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
                return  # as in a real network: the sender sees only that no answer came
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
