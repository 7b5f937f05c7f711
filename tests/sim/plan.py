"""Draws the plan of a seed: who takes part, their behaviour, network, clocks and crashes.

Every part is drawn from a random stream of its own, and so are the events while it is played
(`Plan.stream`). So a part can be removed and the rest stays the same, which shrinking needs
(`shrink`).
"""

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TypedDict

from quorate_protocol.limits import DEVNET, Limits
from quorate_protocol.messages.classes import CPUS, Pool
from quorate_protocol.units import Amount
from quorate_protocol.values import replace
from sim.parties import GPU_POOL, WIDE_POOL

SAFETY_SECONDS = 60
SMALL_CREDIT = 5_000
NEW_CLIENT = "lies to a new client"  # the party in whose market no client has paid a fee before
USD = 1_000_000
# Seconds. A clock that was ahead stands still until the others have caught up, and so does a
# process that uses it.
CLOCK_AHEAD_MAX = 40


class Behaviour(StrEnum):
    """How a provider acts in the safety phase; later all are honest and running."""

    HONEST = "honest"
    LIAR = "liar"  # returns another output than the true one, at the lowest price
    SLEEPER = "sleeper"  # accepts, never commits, and says that it fetches
    MUTE = "mute"  # commits and never reveals
    DENIER = "denier"  # declines everything
    LATE = "late"  # takes longer than the deadlines for everything
    COPIER = "copier"  # copies the commit that it saw from another
    PEEKER = "peeker"  # runs nothing, waits until it can see another's result, and returns that
    COLLUDER = "colluder"  # agrees with others on one false output
    EQUIVOCATOR = "equivocator"  # signs a second commit for the same assignment
    DEAF = "deaf"  # takes no frames
    SILENT = "silent"  # its heartbeats do not name the leases on which it works


LYING = frozenset({Behaviour.LIAR, Behaviour.COLLUDER, Behaviour.PEEKER})
"""Behaviours whose results may be wrong."""


class Market(StrEnum):
    """Which audit rule the coordinator will apply."""

    SMALL = "small"  # 3 to 6 owners: quorum-2
    TINY = "tiny"  # 2 owners: unverified
    LARGE = "large"  # 8 owners with passed audits: adaptive, held pay


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances for one message, and delays of slow ones."""

    drop: float
    repeat: float
    slow: float  # up to 3 s
    lost_for_long: float  # beyond every deadline of the devnet
    longest: float = 40.0  # seconds of the last delay


CALM = Weather(0.0, 0.0, 0.0, 0.0)
ANY = "*"


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut link: nothing gets from `source` to `target` after `start` seconds. `ANY` is
    everybody.
    """

    source: str
    target: str
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ClockFault:
    """A wrong clock: by `offset` s, by `drift` more each second, by `jump` more from `jump_at`
    on.
    """

    node: str
    offset: float
    drift: float
    jump_at: float
    jump: float

    def error(self, elapsed: float) -> float:
        """Seconds by which the clock is ahead."""
        return self.offset + self.drift * elapsed + (self.jump if elapsed >= self.jump_at else 0.0)


@dataclass(frozen=True, slots=True)
class Window:
    """A time span: from `start` on for some seconds."""

    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Rotation:
    """A provider's wish to change its operator key at `at`."""

    provider: int
    at: float


@dataclass(frozen=True, slots=True)
class Leaving:
    """At `at` a client takes its money back. It asks its coordinator, or closes its tab.

    `withholds`: it signs no voucher from then on, until its tab is closed.
    """

    client: int
    at: float
    asks: bool
    withholds: bool = False


@dataclass(frozen=True, slots=True)
class Sleep:
    """A daemon that is off for long: almost as long as the delay that must not hurt it.

    When a provider falls asleep, its coordinator closes its tab.
    """

    node: str
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class GpuLoss:
    """One GPU of a provider falls off its bus at `at`, for longer than any task runs."""

    provider: int
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class GossipFaults:
    """Chances that a listener gets a message not at all, twice, or seconds late. `rewind` is the
    chance that an older message of the same source comes beside it.
    """

    loss: float
    repeat: float
    slow: float
    rewind: float


@dataclass(frozen=True, slots=True)
class Meddle:
    """One act of a party that means harm (`sim.meddler`), at `at`."""

    at: float
    act: str


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One order. Its kind and fields come from its own random stream."""

    client: int
    number: int
    at: float
    stop_after: float | None  # seconds after the Ack at which its client stops it


@dataclass(frozen=True, slots=True)
class Plan:
    """One seed's plan."""

    seed: int
    market: Market
    limits: Limits
    behaviours: tuple[Behaviour, ...]
    jobs: tuple[JobPlan, ...]
    weather: Weather
    cuts: tuple[Cut, ...]
    clocks: tuple[ClockFault, ...]
    outage: Window | None  # when the beacon gives no rounds
    crash_chance: float  # at each of the points where a process can crash
    unbacked_chance: float  # that the coordinator's shell assigns a job once more, without its core
    has_reorganisations: bool
    has_intruder: bool
    is_poor: bool  # clients with just enough money
    leaver: int | None = None  # a provider that exits while jobs run
    rotations: tuple[Rotation, ...] = ()
    leavings: tuple[Leaving, ...] = ()  # at most one per client
    sleeps: tuple[Sleep, ...] = ()
    vanishes: float | None = None  # when the coordinator is gone for good
    is_stingy: bool = False  # it sends no vouchers and no payrolls in the safety phase
    capital: int = 100 * USD  # of the coordinator, for guarantees
    trust: int = USD  # of every owner
    # the job of the first client that has an escrow of its own; while it is settled, the
    # coordinator may be asleep
    funded_job: int | None = None
    sleeps_at_funded: bool = False
    # the coordinator's chain node is away, the others' nodes are not
    chain_outage: Window | None = None
    has_boasters: bool = False  # limits are long, and providers claim that they ran up to them
    has_gpus: bool = False  # all run slots and all jobs have GPUs
    has_two_pools: bool = False  # every third owner has slots of another pool
    gpu_losses: tuple[GpuLoss, ...] = ()
    has_absent_inputs: bool = False  # nobody can fetch what the second client's jobs name
    has_two_classes: bool = False  # every third owner has machines of another determinism class
    has_coin_flips: bool = False  # the second client's programs toss a coin
    inputs_gone: Window | None = None  # when nobody can fetch any input
    has_second_coordinator: bool = False  # it assigns jobs to the same providers
    has_busy_jurors: bool = False  # it takes their run slots before a jury is drawn
    gossip: GossipFaults | None = None  # of offers; None = offers come over connections only
    has_rentals: bool = False  # each client also rents a machine
    has_spot: bool = False  # every owner has a spot price too, and every second client asks for it
    never_vouches: bool = False  # client 1 signs no voucher in the safety phase
    # Who means harm, while all others are honest and nothing else fails (I11); and what it does.
    party: str = ""
    meddles: tuple[Meddle, ...] = ()
    salt: int = 0  # other random numbers for the same plan

    @property
    def pool(self) -> Pool:
        """The pool of all run slots, or of most."""
        return GPU_POOL if self.has_gpus else CPUS

    def pool_of(self, number: int) -> Pool:
        """That of a provider's run slots."""
        return WIDE_POOL if self.has_two_pools and number % 3 == 1 else self.pool

    def stream(self, name: str) -> Random:
        """The random numbers of one part of the market."""
        return Random(f"{name}/{self.seed}/{self.salt}")

    def credit(self, client: int) -> int:
        """What a client may order for without a voucher, by the fees of earlier jobs."""
        if self.party:
            # A client that does random acts may stop paying for good.
            is_new = self.party == NEW_CLIENT or (client == 1 and "meddler: client" in self.party)
            return 0 if is_new else 5 * USD
        return SMALL_CREDIT if self.never_vouches and client == 1 else 0

    @property
    def has_gateway(self) -> bool:
        """Whether the second client names a gateway instead of uploading."""
        is_plain = not self.party and not self.has_coin_flips
        return is_plain and Random(f"gateway/{self.seed}").random() < 0.1

    @property
    def has_fund(self) -> bool:
        """Whether earlier jobs have filled the audit fund."""
        return self.market is Market.LARGE or bool(self.party)

    def ring(self) -> frozenset[int]:
        """Providers that collude."""
        return frozenset(
            number for number, kind in enumerate(self.behaviours) if kind is Behaviour.COLLUDER
        )

    def ahead(self) -> int:
        """The most seconds by which any clock is ahead."""
        errors = [clock.error(elapsed) for clock in self.clocks for elapsed in (0, SAFETY_SECONDS)]
        return max(0, *(int(error) + 1 for error in errors)) if errors else 0


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(f"plan/{seed}")
    market = random.choices([Market.SMALL, Market.TINY, Market.LARGE], [75, 8, 17])[0]
    count = {Market.SMALL: random.randint(3, 6), Market.TINY: 2, Market.LARGE: 8}[market]
    kinds, jobs = _kinds(Random(f"kinds/{seed}"), market, count)
    faults = Random(f"faults/{seed}")
    nodes = [
        "coordinator",
        *(f"provider-{number}" for number in range(count)),
        "client-0",
        "client-1",
    ]
    # The full rule needs a mainnet's name and eight owners. With the devnet's times a whole hold
    # fits into a run.
    limits = replace(
        DEVNET,
        name="mainnet" if market is Market.LARGE else DEVNET.name,
        # Clients have paid no fees when a market begins. In most markets their faults count.
        strike_fees=Amount(Random(f"strike fees/{seed}").choice([0, 0, DEVNET.strike_fees])),
        chain_depth=Random(f"chain depth/{seed}").choice([1, 1, 2, 4]),
    )
    storms = [
        CALM,
        Weather(0.05, 0.1, 0.1, 0.01),
        Weather(0.15, 0.2, 0.2, 0.04),
        Weather(0.05, 0.15, 0.2, 0.06, longest=120.0),
    ]
    return Plan(
        seed=seed,
        market=market,
        limits=limits,
        behaviours=(*kinds, *[Behaviour.HONEST] * (count - len(kinds))),
        jobs=tuple(_job(seed, index) for index in range(jobs)),
        weather=faults.choice(storms),
        cuts=_cuts(Random(f"cuts/{seed}"), nodes),
        clocks=_clocks(Random(f"clocks/{seed}"), nodes),
        outage=Window(faults.uniform(5, 30), faults.uniform(4, 30))
        if faults.random() < 0.2
        else None,
        crash_chance=faults.choice([0.0, 0.002, 0.01]),
        unbacked_chance=0.3 if faults.random() < 0.15 else 0.0,
        has_reorganisations=faults.random() < 0.3,
        has_intruder=faults.random() < 0.5,
        is_poor=faults.random() < 0.15,
        leaver=count - 1 if faults.random() < 0.1 and count > 3 else None,
        rotations=_rotations(Random(f"rotations/{seed}"), count),
        leavings=_leavings(Random(f"leavings/{seed}")),
        sleeps=_sleeps(Random(f"sleeps/{seed}"), count, limits),
        **_money(Random(f"money/{seed}"), market),
        chain_outage=_chain_outage(Random(f"chain outage/{seed}")),
        has_gpus=(has_gpus := Random(f"gpus/{seed}").random() < 0.25),
        has_two_pools=has_gpus
        and market is Market.SMALL
        and count >= 5
        and Random(f"two pools/{seed}").random() < 0.7,
        gpu_losses=_gpu_losses(Random(f"gpu losses/{seed}"), count) if has_gpus else (),
        has_second_coordinator=(shares := Random(f"second coordinator/{seed}").random() < 0.35),
        has_busy_jurors=shares and Random(f"busy jurors/{seed}").random() < 0.7,
        gossip=_gossip(Random(f"gossip/{seed}")),
        has_absent_inputs=Random(f"absent inputs/{seed}").random() < 0.1,
        has_two_classes=Random(f"two classes/{seed}").random() < 0.3,
        has_coin_flips=Random(f"coin flips/{seed}").random() < 0.1,
        has_rentals=(rents := Random(f"rentals/{seed}").random() < 0.4),
        has_spot=rents and Random(f"spot/{seed}").random() < 0.6,
        inputs_gone=_inputs_gone(Random(f"inputs gone/{seed}"), market),
        never_vouches=Random(f"never vouches/{seed}").random() < 0.15,
    )


def _kinds(random: Random, market: Market, count: int) -> tuple[list[Behaviour], int]:
    """(dishonest providers, number of jobs)."""
    bad = random.randint(0, max(1, (count - 1) // 2))
    lone: list[Behaviour] = [
        kind for kind in Behaviour if kind not in (Behaviour.HONEST, Behaviour.COLLUDER)
    ]
    kinds, jobs = [random.choice(lone) for _ in range(bad)], random.randint(4, 9)
    chance = random.random()
    if chance < 0.3 and market is Market.SMALL and count > 3:
        kinds[:1], jobs = [Behaviour.LIAR], random.randint(8, 12)  # enough lies for a case
    elif chance < 0.6 and market is Market.LARGE:
        kinds[:1], jobs = (
            [Behaviour.LIAR],
            random.randint(12, 18),
        )  # enough unaudited lies that one is found while others are held
    elif chance > 0.85 and market is not Market.TINY:
        kinds[:2] = [Behaviour.COLLUDER] * 2
        if count > 5 and random.random() < 0.4:
            kinds[:3], jobs = [Behaviour.COLLUDER] * 3, random.randint(8, 12)
    return kinds, jobs


def _job(seed: int, index: int) -> JobPlan:
    random = Random(f"job/{seed}/{index}")
    stop = random.uniform(0, 8) if random.random() < 0.12 else None
    return JobPlan(index % 2, index // 2 + 1, random.uniform(1, 30), stop)


def _cuts(random: Random, nodes: list[str]) -> tuple[Cut, ...]:
    """Partitions of one node, links that fail in one direction, and a coordinator that is silent
    for long.
    """
    found = []
    for _ in range(random.randint(0, 3)):
        start, node = random.uniform(3, SAFETY_SECONDS - 10), random.choice(nodes)
        match random.choice(["both", "both", "in", "out", "silent", "mute to one"]):
            case "both":
                seconds = random.uniform(1, 30)
                found += [Cut(node, ANY, start, seconds), Cut(ANY, node, start, seconds)]
            case "in":
                found.append(Cut(ANY, node, start, random.uniform(1, 20)))
            case "out":
                found.append(Cut(node, ANY, start, random.uniform(1, 20)))
            case "silent":
                found.append(
                    Cut(
                        "coordinator",
                        ANY,
                        random.uniform(0, 20),
                        random.uniform(15, SAFETY_SECONDS),
                    )
                )
            case _:
                found.append(Cut("coordinator", node, 0.0, SAFETY_SECONDS))
    return tuple(found)


def _rotations(random: Random, count: int) -> tuple[Rotation, ...]:
    if random.random() < 0.75:
        return ()
    return tuple(
        Rotation(random.randrange(count), random.uniform(3, 40))
        for _ in range(random.randint(1, 3))
    )


def _gossip(random: Random) -> GossipFaults | None:
    if random.random() < 0.5:
        return None
    loss = random.choice([0.0, 0.1, 0.5, 0.9])
    return GossipFaults(loss, random.uniform(0, 0.5), random.uniform(0, 0.5), 0.3)


def _inputs_gone(random: Random, market: Market) -> Window | None:
    """Inputs that are gone for some time end the re-executions of held jobs without a result."""
    if market is not Market.LARGE or random.random() < 0.5:
        return None
    start = random.uniform(8, 40)
    return Window(start, SAFETY_SECONDS - start)


def _gpu_losses(random: Random, count: int) -> tuple[GpuLoss, ...]:
    return tuple(
        GpuLoss(random.randrange(count), random.uniform(3, 45), random.uniform(15, 30))
        for _ in range(random.choice([0, 1, 2, 4]))
    )


def _leavings(random: Random) -> tuple[Leaving, ...]:
    if random.random() < 0.75:
        return ()
    clients = random.sample([0, 1], random.randint(1, 2))
    return tuple(
        Leaving(client, random.uniform(3, 50), random.random() < 0.5, random.random() < 0.3)
        for client in clients
    )


def _sleeps(random: Random, count: int, limits: Limits) -> tuple[Sleep, ...]:
    """13 of the 14 days of a provider's tab, 6 and 3 of the 7 days of a client's tab."""
    if random.random() < 0.8:
        return ()
    node, days, close = random.choice(
        [
            (f"provider-{random.randrange(count)}", 13 / 14, limits.coordinator_close),
            (f"client-{random.randrange(2)}", 6 / 7, limits.client_close),
            ("coordinator", 3 / 7, limits.client_close),
        ]
    )
    return (Sleep(node, random.uniform(10, 40), days * close),)


class _Money(TypedDict):
    vanishes: float | None
    is_stingy: bool
    capital: int
    trust: int
    funded_job: int | None
    sleeps_at_funded: bool


def _money(random: Random, market: Market) -> _Money:
    is_funded = market is not Market.TINY and random.random() < 0.25
    return {
        "vanishes": random.uniform(10, 50) if random.random() < 0.08 else None,
        "is_stingy": random.random() < 0.1,
        "capital": random.choice([0, 20_000, 5 * USD, 200 * USD]),
        "trust": random.choice([1_000, 3_000, USD]),
        "funded_job": 1 if is_funded else None,
        "sleeps_at_funded": random.random() < 0.6,
    }


def _chain_outage(random: Random) -> Window | None:
    """The coordinator's own node is away, perhaps while a tab closes."""
    if random.random() < 0.9:
        return None
    return Window(random.uniform(5, 50), random.uniform(5, 40))


def _clocks(random: Random, nodes: list[str]) -> tuple[ClockFault, ...]:
    if random.random() < 0.5:
        return ()
    found = []
    for node in random.sample(nodes, random.randint(1, 3)):
        offset = random.choice(
            [0.0, random.uniform(-1.5, 1.5), random.uniform(-90, CLOCK_AHEAD_MAX / 2)]
        )
        jump = random.choice([0.0, random.uniform(-100, CLOCK_AHEAD_MAX / 2)])
        found.append(
            ClockFault(
                node,
                offset,
                random.choice([0.0, random.uniform(-0.05, 0.005)]),
                random.uniform(5, 50),
                jump,
            )
        )
    return tuple(found)
