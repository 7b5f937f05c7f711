"""Parties that mean harm, each in a market where all others are honest and nothing fails (I11).

What honest parties lose there, they lose by that party's acts. A named party plays one known
attack; a meddler does random acts, legal or not, for the members of its coalition.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from random import Random

from quorate_coordinator.core.model.entities import Decided, Job
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import Witness
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.orders import Submission
from quorate_protocol.rules.receipts.receipt_bill import result_of
from quorate_protocol.units import (
    Amount,
    Hash32,
    Label,
    Nonce,
    Outcome,
    Price,
    Round,
    Seconds,
    Small,
)
from quorate_protocol.values import replace
from sim import i11, intruder_provider, workload
from sim.client import ORDINARY, Client
from sim.i11 import Ledger, Lost, Paid, Slots
from sim.network import Silence
from sim.parties import DOMAIN
from sim.plan import CALM, NEW_CLIENT, USD, Behaviour, JobPlan, Market, Meddle, Plan, draw
from sim.provider import Provider
from sim.workload import DEAD_IMAGE, GPUS, NO_ENGINE, STORE_ROOM
from sim.world import World

OWNERS, JOBS = 7, 6
STRIKE_FEES = Amount(5 * USD)  # as on the main network
LYING_PAIR = "lies, and its coordinator leaves others out"
CLIENT, OWNER, COORDINATOR = "client-1", f"provider-{OWNERS - 1}", "coordinator"
ODD = ["random", "times-out", "memory", "fails", "unstorable", "huge", "dear", "stop", "read"]
ODD += ["absent", "sends-nothing", "one-fetches", "some-fetch"]
BY_CLIENT = [*(f"order {kind}" for kind in ODD), "withhold", "vouch", "stop", "read", "give back"]
BY_CLIENT += ["witness", "close"]
BY_OWNER = [f"be {kind}" for kind in ["honest", "sleeper", "mute", "late", "deaf", "silent"]]
BY_OWNER += ["do postpone", "do decline", "do nothing"]
BY_COORDINATOR = ["stingy", "generous", "deaf", "hear", "contradict"]
GATEWAYS = {
    "absent": workload.EMPTY_GATEWAY,
    "sends-nothing": workload.HEAD_GATEWAY,
    "one-fetches": workload.ONE_GATEWAY,
    "some-fetch": workload.SOME_GATEWAY,
}
# What is admitted below is no act of these, so that each of them has to keep I11.
RANDOM: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "meddler: client": ((CLIENT,), BY_CLIENT),
    "meddler: owner": ((OWNER,), BY_OWNER),
    "meddler: coordinator": ((COORDINATOR,), BY_COORDINATOR),
    "meddler: client, owner": ((CLIENT, OWNER), BY_CLIENT + BY_OWNER),
    "meddler: client, coordinator": ((CLIENT, COORDINATOR), BY_CLIENT + BY_COORDINATOR),
    "meddler: owner, coordinator": ((OWNER, COORDINATOR), BY_OWNER + BY_COORDINATOR),
}
# party -> who is in it, what it does, and how often
NAMED: dict[str, tuple[tuple[str, ...], str, int]] = {
    "nobody": ((), "", 0),
    "bait: full store": ((CLIENT,), "order huge", 10),
    NO_ENGINE: ((CLIENT,), "order registry", 10),
    "bait: nobody pulls": ((CLIENT,), "order registry", 10),
    "bait: CUDA 99": ((CLIENT,), "order cuda-99", 10),
    "bait: nobody has it": ((CLIENT,), "order absent", 10),
    "bait: nobody fetches": ((CLIENT,), "order sends-nothing", 10),
    "bait: one owner fetches": ((CLIENT,), "order one-fetches", 10),
    "reads a refused output": ((CLIENT,), "order unstorable read", 10),
    "frames an owner": ((CLIENT,), "order frames", 10),
    "differs per machine": ((CLIENT,), "order random", 10),
    "postpones audits": ((OWNER,), "do postpone", 1),
    "pads usage": ((OWNER,), "do pad", 1),
    "lies": ((OWNER,), "be liar", 1),
    NEW_CLIENT: ((OWNER,), "be liar", 1),
    "assigns and forgets": ((COORDINATOR,), "unbacked", 1),
    "leaves owners out": ((COORDINATOR,), "deaf", 1),
    LYING_PAIR: ((OWNER, COORDINATOR), "be liar, deaf to most, spare", 1),
}
PARTIES = (*NAMED, *RANDOM)
ADMITTED: dict[str, tuple[int, str]] = {
    "bait: nobody pulls": (3_000, "the coordinator takes no image of a registry before owners do"),
    "frames an owner": (
        3_000,
        "its client pays two runs; the fund pays two repeats, and who is outvoted loses its pay",
    ),
    NEW_CLIENT: (
        2_000,
        "two honest owners repeat each job, the fund pays them, and no fault counts",
    ),
    "pads usage": (400, "an owner is paid from its Assignment on, though the run began later"),
    "assigns and forgets": (
        2_000,
        "an owner works unpaid up to its own `trust` for one coordinator, then it declines (6.83)",
    ),
    LYING_PAIR: (
        2_000,
        "nobody decides between two results: the honest run is unpaid and its client not charged",
    ),
}
"""Attacks that no rule stops yet, the most that one market of a minute loses by each, and why."""


def plan(seed: int, party: str) -> Plan:
    """A calm market of honest owners and one honest client, and the acts of the party."""
    random = Random(f"meddles/{party}/{seed}")
    if party in RANDOM:
        members, acts = RANDOM[party]
        meddles = [Meddle(random.uniform(2, 50), random.choice(acts)) for _ in range(20)]
    else:
        members, acts_at_once, count = NAMED[party]
        acts = acts_at_once.split(", ")
        meddles = [Meddle(3 + 4 * number, act) for number in range(count) for act in acts]
    rogue = Behaviour.LIAR if OWNER in members else Behaviour.HONEST  # only when an act says so
    # Faults over jobs of two clients count before a coordinator accuses.
    honest = 1 if CLIENT in members else 2
    jobs = [
        JobPlan(number % honest, number + 1, random.uniform(8, 50), None) for number in range(JOBS)
    ]
    calm = Plan(
        seed=seed,
        market=Market.SMALL,
        limits=replace(draw(seed).limits, name="devnet", chain_depth=1, strike_fees=STRIKE_FEES),
        behaviours=(*[Behaviour.HONEST] * (OWNERS - 1), rogue),
        jobs=tuple(jobs),
        weather=CALM,
        cuts=(),
        clocks=(),
        outage=None,
        crash_chance=0.0,
        unbacked_chance=0.0,
        has_reorganisations=False,
        has_intruder=False,
        is_poor=False,
        capital=200 * USD,
        trust=USD,
        has_gpus=party == "bait: CUDA 99",
        party=party,
        meddles=tuple(sorted(meddles, key=lambda item: item.at)),
    )
    return calm


def members_of(party: str) -> i11.Coalition:
    """The coalition of a party."""
    return frozenset(RANDOM[party][0] if party in RANDOM else NAMED[party][0])


@dataclass(slots=True)
class Meddler:
    """Does the acts of a plan, and counts what everybody paid and lost."""

    world: World
    members: i11.Coalition = field(init=False)
    slots: Slots = field(default_factory=Slots)
    orders: int = 0

    def __post_init__(self) -> None:
        self.members = members_of(self.world.plan.party)
        if OWNER in self.members:
            self.owner.behaviour = Behaviour.HONEST

    @property
    def client(self) -> Client:
        """The client of the party."""
        return self.world.clients[1]

    @property
    def owner(self) -> Provider:
        """The owner of the party."""
        return self.world.providers[-1]

    def honest(self) -> list[Provider]:
        """The owners that mean no harm."""
        return [item for item in self.world.providers if item.name not in self.members]

    def start(self) -> None:
        """Plans the acts, and looks at the run slots each second."""
        for number, meddle in enumerate(self.world.plan.meddles):
            random = self.world.plan.stream(f"meddle/{number}/{meddle.act}")
            self.world.schedule.after(meddle.at, partial(self._act, meddle.act, random))
        self.world.schedule.after(1, self._look)

    # ----------------------------------------------------------------------------------------- acts

    def _act(self, act: str, random: Random) -> None:
        if not self.world.coordinator.is_up or self.world.is_calm:
            return
        first, _, rest = act.partition(" ")
        try:
            match first:
                case "order":
                    self._order(rest.split()[0], rest.split()[1:], random)
                case "be":
                    self.owner.behaviour = Behaviour(rest)
                case "do":
                    self.owner.manner = rest
                case _:
                    self._other(act, random)
        except (Refused, Silence):
            pass  # an act that is refused costs nobody anything

    def _other(self, act: str, random: Random) -> None:
        client, daemon = self.client, self.world.coordinator
        mine = list(client.acked)
        match act:
            case "withhold" | "vouch":
                client.is_withholding = act == "withhold"
            case "stop" if mine:
                client.stop(random.choice(mine))
            case "read" if mine:
                client.read_logs(random.choice(mine))
            case "give back":
                daemon.give_back(client.account.address, Amount(random.choice([1, 10**6, 10**9])))
            case "close":
                client.close_tab()
            case "witness" if mine and self.world.checks.commits:
                self._witness(random.choice(mine), random)
            case "stingy" | "generous":
                daemon.plan = dataclasses.replace(daemon.plan, is_stingy=act == "stingy")
            case "unbacked" | "backed":
                daemon.plan = dataclasses.replace(
                    daemon.plan, unbacked_chance=0.5 * (act == "unbacked")
                )
            case "deaf" | "hear":
                victims = [item.owner for item in self.honest()[1:3]]
                daemon.deaf_to = frozenset(victims if act == "deaf" else ())
            case "deaf to most":  # one is left for the draw, so that orders are taken
                daemon.deaf_to = frozenset(item.owner for item in self.honest()[1:])
            case "spare":
                daemon.accuses = False
            case "contradict":
                victim = random.choice(self.honest())
                attack = random.choice(intruder_provider.ATTACKS)(self.world, victim, random)
                if attack is not None:
                    attack[0]()
            case _:
                pass

    def _witness(self, job_id: Hash32, random: Random) -> None:
        commit = random.choice(list(self.world.checks.commits))
        now = self.world.coordinator.now
        message = Witness(
            commit, self.client.ack_hashes[job_id], Round(random.randrange(1, 400)), now
        )
        signed: Envelope[Witness] = seal(DOMAIN, message, self.client.session_key.sign)
        self.world.coordinator.take_signed(signed)

    def _order(self, kind: str, then: list[str], random: Random) -> None:
        self.orders += 1
        plain = workload.make_spec(random, f"odd-{self.orders}", has_gpus=self.world.plan.has_gpus)
        spec, changes = _odd(kind, plain), dict(ORDINARY)
        if kind == "dear":
            changes["max_price_per_hour"] = Price(10**6)
        order = self.client.order(spec, random, nonce=Nonce(1_000 + self.orders), **changes)
        order = replace(order, max_executions=Small(random.choice([3, 5, 7])))
        submission = self.client.submission(spec, order)
        stops = random.uniform(0, 8) if kind == "stop" else None
        self.client.place(submission, stops)
        if "read" in then or kind == "read":
            job_id = digest(DOMAIN, order)
            for seconds in (2, 4, 6):
                read = partial(self.client.read_logs, job_id)
                self.world.schedule.after(seconds, read)

    # -------------------------------------------------------------------------------------- looking

    def _look(self) -> None:
        state, now = self.world.coordinator.core.state, self.world.coordinator.now
        for provider in self.honest():
            price = int(provider.slots[0].on_demand)
            known = state.providers.get(provider.owner)
            if known is not None and known.unsecured_until > now:
                count = sum(int(slot.count) for slot in provider.slots)
                self.slots.off_offer(provider.name, price, count, 1.0)
            for lease, item in provider.core.executions.items():
                asked = int(item.assignment.message.price_per_hour)
                commit = item.commit()
                if commit is not None:
                    self.slots.committed(provider.name, lease, asked, int(commit.usage_ms))
                elif item.occupies_slot:
                    self.slots.occupied(provider.name, lease, asked, 1.0)
        self.world.schedule.after(1, self._look)

    # -------------------------------------------------------------------------------------- the end

    def ledger(self) -> Ledger:
        """What everybody paid and lost."""
        found, state = Ledger(), self.world.coordinator.core.state
        names = {item.owner: item.name for item in self.world.providers}
        clients = {item.account.address: item.name for item in self.world.clients}
        leases = self.world.coordinator.leases()
        for job in self.world.coordinator.jobs():
            who = clients[job.submission.order.message.client]
            for credit in job.split.credits:
                owner = names[leases[credit.assignment_hash].provider]
                found.paid.append(Paid(who, owner, credit.amount))
            found.paid.append(Paid(who, COORDINATOR, job.split.fee))
            found.paid.append(Paid(who, COORDINATOR, job.split.fund))
        for provider in self.world.providers:
            stake = (
                self.world.chain.staked[provider.owner] - self.world.chain.stakes[provider.owner]
            )
            found.paid.append(Paid(provider.name, "", stake))
            found.lost.append(Lost(provider.name, "stake", stake))
        earned = {
            names[owner]: item.final + item.held
            for owner, item in state.payees.items()
            if owner in names
        }
        found.lost.extend(self.slots.losses(earned))
        for client in self.world.clients:
            if client.name not in self.members:
                found.lost.extend(self._of_client(client))
        from_fund = sum(client.fund_spent for client in state.clients.values())
        found.lost.append(Lost(COORDINATOR, "fund", from_fund))  # the fund is its own money (6.2)
        found.transactions.update(self.world.chain.sent)
        return found

    def _of_client(self, client: Client) -> list[Lost]:
        """Orders of an honest client that were refused, are unverified, or cost too much."""
        jobs = {
            job.id: job
            for job in self.world.coordinator.jobs()
            if job.submission.order.message.client == client.account.address
        }
        found = []
        for submission in client.submissions:
            job = jobs.get(submission.order.digest(DOMAIN))
            ran = workload.truth(submission.spec, "provider-1")
            price = ran.milliseconds * 110_000 / 3_600_000
            if job is None:
                found.append(Lost(client.name, "orders refused", price))
                continue
            charged = job.split.charged - job.split.refund
            if not self._is_verified(submission, job):
                found.append(Lost(client.name, "orders unverified", charged + price))
                continue
            fair = len(job.split.credits) * ran.milliseconds * 121_000 / 3_600_000 * 1.08
            found.append(Lost(client.name, "overcharged", charged - fair))
        return found

    def _is_verified(self, submission: Submission, job: Job) -> bool:
        """Whether the client got the true result under a label that says verified.

        Owners that a coordinator does not ask lose nothing by that: nobody owes them work. What it
        can win by their absence is a wrong result, and that is counted here.
        """
        body = self.world.checks.accounts.ledger.receipts.get(job.id)
        if body is None or not isinstance(job.phase, Decided):
            return False
        verdict = body.verdict.message
        true = workload.truth(submission.spec, "").result()
        is_accepted = verdict.outcome is Outcome.ACCEPTED and verdict.label is not Label.UNVERIFIED
        first = next(
            (it for it in body.executions if it.assignment.digest(DOMAIN) in verdict.group), None
        )
        return is_accepted and first is not None and result_of(first) == true


def _odd(kind: str, spec: JobSpec) -> JobSpec:
    """A spec that is ordinary but for one thing."""

    def command(word: str) -> tuple[str, ...]:
        return (spec.argv[0], word, *spec.argv[2:])

    bait = replace(spec, argv=command("pure"), start_within=Seconds(30))
    match kind:
        case "absent" | "sends-nothing" | "one-fetches" | "some-fetch":
            return replace(bait, gateways=(GATEWAYS[kind],))
        case "huge":
            return replace(bait, image_bytes=STORE_ROOM + 1)
        case "registry":
            return replace(bait, image=DEAD_IMAGE, image_bytes=0)
        case "cuda-99":
            gpu = replace(GPUS, cuda_min=990)
            return replace(bait, resources=replace(bait.resources, gpu=gpu))
        case "dear" | "stop" | "read":
            return bait
        case _:
            return replace(spec, argv=command(kind))


def play(seed: int, party: str) -> tuple[i11.Score, str | None]:
    """One market's score, and the first violation if there is one."""
    return play_plan(plan(seed, party))


def play_plan(chosen: Plan) -> tuple[i11.Score, str | None]:
    """As `play`, for any plan with a party."""
    world = World(chosen)
    meddler = Meddler(world)
    meddler.start()
    violation = None
    try:
        world.run()
    # any exception of a core is a finding, reported with its seed
    except Exception as error:  # noqa: BLE001
        violation = f"{type(error).__name__}: {error}"
    found = i11.score(meddler.ledger(), chosen.party, chosen.seed, meddler.members)
    return found, violation or i11.violation(found, ADMITTED)
