"""What one seed draws: who takes part, how they behave, how bad the network is, when processes die."""

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from quorate_protocol.limits import DEVNET, Limits

SAFETY_SECONDS = 60


class Behaviour(StrEnum):
    """How a provider acts during the safety phase; later everybody is honest and awake."""

    HONEST = "honest"
    LIAR = "liar"  # other output than the truth, at the lowest price
    SLEEPER = "sleeper"  # accepts and never commits
    MUTE = "mute"  # commits and never reveals
    DENIER = "denier"  # declines everything
    LATE = "late"  # everything takes longer than the deadlines
    COPIER = "copier"  # commits what it saw another commit
    EQUIVOCATOR = "equivocator"  # signs a second commit for the same assignment
    DEAF = "deaf"  # takes no frame in


class Market(StrEnum):
    """Which rule the coordinator will apply."""

    SMALL = "small"  # 3 to 6 owners: quorum-2
    TINY = "tiny"  # 2 owners: unverified
    LARGE = "large"  # 8 owners with a history: adaptive, held pay


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances for one message, and how long the slow ones take."""

    drop: float
    repeat: float
    slow: float  # up to 3 s
    lost_for_long: float  # 3 to 40 s: beyond every deadline of the devnet


CALM = Weather(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Absence:
    """A node that cannot be reached from `start` on, seconds after the beginning."""

    node: str
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One seed's script."""

    seed: int
    market: Market
    limits: Limits
    behaviours: tuple[Behaviour, ...]
    jobs: int
    weather: Weather
    absences: tuple[Absence, ...]
    crash_chance: float  # at each of the points where a process can die
    has_reorganisations: bool
    has_intruder: bool
    is_poor: bool  # clients with just enough money


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(f"plan/{seed}")
    market = random.choices([Market.SMALL, Market.TINY, Market.LARGE], [75, 8, 17])[0]
    count = {Market.SMALL: random.randint(3, 6), Market.TINY: 2, Market.LARGE: 8}[market]
    bad = random.randint(0, max(1, (count - 1) // 2))
    kinds = [random.choice([kind for kind in Behaviour if kind is not Behaviour.HONEST]) for _ in range(bad)]
    jobs = random.randint(4, 9)
    if random.random() < 0.35 and market is Market.SMALL and count > 3:
        kinds[:1], jobs = [Behaviour.LIAR], random.randint(8, 12)  # enough lies for a case
    weather = random.choice([CALM, Weather(0.05, 0.1, 0.1, 0.01), Weather(0.15, 0.2, 0.2, 0.04)])
    nodes = ["coordinator", *(f"provider-{number}" for number in range(count)), "client-0", "client-1"]
    absences = tuple(
        Absence(random.choice(nodes), random.uniform(3, SAFETY_SECONDS - 10), random.uniform(1, 30)) for _ in range(random.randint(0, 3))
    )
    # The full rule wants a mainnet's name and eight owners; with the devnet's times a whole hold fits into a run.
    limits = replace(DEVNET, name="mainnet") if market is Market.LARGE else DEVNET
    return Plan(
        seed=seed,
        market=market,
        limits=limits,
        behaviours=(*kinds, *[Behaviour.HONEST] * (count - len(kinds))),
        jobs=jobs,
        weather=weather,
        absences=absences,
        crash_chance=random.choice([0.0, 0.002, 0.01]),
        has_reorganisations=random.random() < 0.3,
        has_intruder=random.random() < 0.5,
        is_poor=random.random() < 0.15,
    )
