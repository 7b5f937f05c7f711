"""Attacks by cases and absent jurors, run to their ends under mainnet's rules."""

from collections.abc import Sequence
from functools import partial

from contracts.griefing_accounts import Damage, Grievance, grievance
from contracts.market import ACCUSER, BOSS, CLASS, Market, key, peopled
from contracts.trial import TRUTH, Trial
from quorate_contracts.bindings.court import CaseOutcome
from quorate_contracts.bindings.stakes import OPEN_MAX
from quorate_protocol.limits import DAY, MAINNET, USD
from quorate_protocol.units import ZERO_HASH, Address, Hash32

ACCUSED, WITNESS = key("owner0").address, key("owner1").address
CLIENTS = [key(f"client{number}") for number in range(2)]
ACCUSERS = frozenset({ACCUSER.address, WITNESS, *(client.address for client in CLIENTS)})
RUN_COST = 20_000 * 2 * USD // 3_600_000  # what computing one execution again costs a juror
PROVIDERS = MAINNET.jury_owners_min + 1


def world() -> Market:
    """Returns a market of mainnet's rules in which juries can be drawn."""
    made = peopled(MAINNET, PROVIDERS)
    made.evm.travel(max(MAINNET.jury_slot_age, MAINNET.case_allocation_age, MAINNET.profile_delay))
    made.evm.travel(DAY)
    return made


def case(made: Market, shown: bytes) -> Trial:
    """Returns an accusation, not opened, by a provider whose commits say `shown`."""
    runs = [made.execution(ACCUSED, client, b"an honest answer") for client in CLIENTS]
    trial = Trial(made, runs)
    trial.evidence = [each.against(made, shown) for each in trial.evidence]
    return trial


def judge(grief: Grievance, trial: Trial, answers: Sequence[Hash32]) -> None:
    """Lets the jury answer, each as late as it may. The liable account pays for the draw."""
    grief.charge(trial.draw, [trial.now.accused])
    run = [answers] * len(trial.jurors)
    for juror in trial.jurors:
        grief.work[juror] += RUN_COST * sum(answer != ZERO_HASH for answer in answers)
    late(trial)
    grief.charge(lambda: trial.vote(run), trial.jurors)
    late(trial)
    grief.charge(lambda: trial.reveal(run), trial.jurors)


def decide(grief: Grievance, trial: Trial) -> bool:
    """Decides a case at the cost of the liable account; returns whether it was convicted."""
    grief.charge(trial.decide, [trial.now.accused])
    return trial.now.outcome == CaseOutcome.CONVICTED


def late(trial: Trial) -> None:
    """Moves to the last second in which a case still takes something."""
    trial.market.evm.now = max(trial.market.evm.now, trial.now.deadline)


def false_accusation() -> Damage:
    """A provider commits to a false result, and its accomplice accuses the honest one."""
    made = world()
    with grievance(made, ACCUSERS) as grief:
        trial = case(made, b"a false answer")
        trial.open()
        judge(grief, trial, trial.own())
        assert not decide(grief, trial)
        return grief.ended()


def void_retries() -> Damage:
    """The accuser withdraws the inputs, so the jury cannot execute; it opens its case twice."""
    made = world()
    with grievance(made, ACCUSERS) as grief:
        trial = case(made, b"a false answer")
        for _ in range(2):
            trial.open()
            judge(grief, trial, [ZERO_HASH] * 2)
            decide(grief, trial)
        return grief.ended()


def stake_frozen(slots: int = 1) -> Damage:
    """The accuser opens nothing at the end, so the case takes its longest; it opens it twice.

    The accused has this many slots, each with its stake.
    """
    made = world()
    for opened in range(1, slots, OPEN_MAX):
        count = min(OPEN_MAX, slots - opened)
        made.evm.send(ACCUSED, made.contracts.stakes.open_slots(CLASS, count))
    with grievance(made, ACCUSERS) as grief:
        trial = case(made, b"a false answer")
        for _ in range(2):
            trial.open()
            judge(grief, trial, trial.own())
            late(trial)
            made.evm.travel(MAINNET.jury_window + 1)
            last = made.contracts.court.decide(trial.case, [])
            grief.charge(partial(made.evm.send, BOSS.address, last), [ACCUSED])
        return grief.ended()


def absent(seats: int, does_vote: bool) -> Damage:
    """Some jurors stay away, or vote and do not reveal, in the case of an honest accuser."""
    made = world()
    trial = Trial(made, [made.execution(ACCUSED, client, b"a lie") for client in CLIENTS])
    with grievance(made, ()) as grief:
        trial.open()
        trial.draw()
        away, rest = trial.jurors[:seats], trial.jurors[seats:]
        grief.attackers = frozenset(away)
        grief.apart.add(ACCUSED)  # it lied
        grief.gas.clear()  # what the case costs without an attack
        grief.work[ACCUSER.address] += MAINNET.jury_gas_fee  # its reward is for that gas
        _vote(grief, trial, rest)
        if does_vote:
            grief.charge(lambda: trial.vote([TRUTH[:2]] * seats, away), away)
        else:
            late(trial)
            made.evm.travel(1)
            made.evm.send(ACCUSER.address, made.contracts.court.advance(trial.case))
            grief.charge(trial.draw, [ACCUSER.address])
            fresh = [juror for juror in trial.jurors if juror not in rest]
            _vote(grief, trial, fresh)
            rest = trial.jurors
        grief.charge(lambda: trial.reveal([TRUTH[:2]] * len(rest), rest), rest)
        late(trial)
        made.evm.travel(1)
        grief.charge(trial.decide, [ACCUSED])
        return grief.ended()


def _vote(grief: Grievance, trial: Trial, jurors: Sequence[Address]) -> None:
    """Lets these jurors execute and vote."""
    for juror in jurors:
        grief.work[juror] += 2 * RUN_COST
    grief.charge(lambda: trial.vote([TRUTH[:2]] * len(jurors), jurors), jurors)
