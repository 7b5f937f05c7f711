"""I11 before court and Faults: what each act costs honest people, and what it costs its author.

`ACTS` is a table of data. A loss counts tokens, gas, and the job that jurors repeat; a gain of one
honest account does not make good another's loss. `ADMITTED` are the acts that no rule stops, with
the reason why they stay.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import comb

import pytest

from contracts.court_trial import CONVICTED, DRAWING, RIGHT, Trial
from contracts.court_world import LIE, TRUTH, peopled_court
from contracts.executions import result
from contracts.griefing import GWEI, Act, Side
from contracts.test_faults import K, acks, prove, two_commits
from contracts.test_juries import long_list
from contracts.world import account
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import ZERO_HASH, Hash32

WORK = 60 * 2 * USD // 3600  # what it costs a juror to repeat the job
FEE, PAY = DEVNET.jury_gas_fee, DEVNET.jury_pay_min
WHOLE = 7 * (FEE + PAY)
BOUND = 2 * WHOLE + 10 * USD  # of an act that is admitted
WRONG = result(LIE)


def _case(digests: Sequence[Hash32], answers: tuple[bytes, bytes] = (TRUTH, LIE)) -> Trial:
    """A whole case over the answers of accused and contradiction, with these votes."""
    trial = Trial(peopled_court(), peopled_court().evidence(answers=answers))
    trial.open()
    trial.judged(digests)
    return trial


def _jurors(trial: Trial, seats: range, does_work: bool = True) -> tuple[Side, ...]:
    """What jurors lost: their gas and work, less their pay."""
    start = 1000 * USD
    found = []
    for seat in seats:
        owner = trial.world.owners[trial.jury[seat]]
        gas = trial.gas("vote")[seat] + trial.gas("reveal")[seat]
        found.append(Side(start - trial.world.balance(owner) + WORK * does_work, gas))
    return tuple(found)


def _accuser(trial: Trial) -> Side:
    """An accuser that sends all that moves its case."""
    gas = sum(sum(trial.gas(step)) for step in ("open", "beacon", "draw", "decide"))
    return Side(WHOLE, gas)


def false_accusation() -> Act:
    trial = _case([RIGHT] * 7)
    return Act(_jurors(trial, range(7)), (_accuser(trial),))


def void_case() -> Act:
    """The accuser withholds inputs: jurors fetch nothing, vote void, and get their gas fee."""
    trial = _case([ZERO_HASH] * 7)
    return Act(_jurors(trial, range(7), does_work=False), (_accuser(trial),))


def own_jurors(seats: int) -> Act:
    """An accuser's own jurors hold so many seats, and lie; the accused is honest."""
    trial = _case([WRONG] * seats + [RIGHT] * (7 - seats))
    accused = Side(DEVNET.slot_stake - trial.world.stake("owner0"))
    author = (_accuser(trial), *_jurors(trial, range(seats), does_work=False))
    return Act((accused, *_jurors(trial, range(seats, 7))), author)


def own_owners(share: float) -> Act:
    """An accuser owns this share of a class; its jurors lie where they convict, else they work."""
    honest, author = list[Side](), list[Side]()
    for seats in range(8):
        chance = comb(7, seats) * share**seats * (1 - share) ** (7 - seats)
        trial = _case([WRONG] * seats + [RIGHT] * (7 - seats) if seats >= 5 else [RIGHT] * 7)
        own, rest = _jurors(trial, range(seats), seats < 5), _jurors(trial, range(seats, 7))
        accused = Side(DEVNET.slot_stake - trial.world.stake("owner0"))
        honest += [Side(each.tokens * chance, each.gas * chance) for each in (accused, *rest)]
        paid = (_accuser(trial), *own)
        author += [Side(each.tokens * chance, each.gas * chance) for each in paid]
    return Act(tuple(honest), tuple(author))


def liars_block(seats: int) -> Act:
    """Friends of a guilty accused hold so many seats and lie; the accuser must pay again."""
    trial = _case([RIGHT] * (7 - seats) + [keccak256(b"x")] * seats, (LIE, TRUTH))
    honest = _jurors(trial, range(7 - seats))
    return Act((_accuser(trial), *honest), _jurors(trial, range(7 - seats, 7), does_work=False))


def absent(seats: int) -> Act:
    """So many jurors of an honest accuser's case stay away; they give up their pay."""
    trial = Trial(peopled_court(), peopled_court().evidence())
    trial.open()
    jury = trial.draw()
    first = sum(trial.gas("draw")) + sum(trial.gas("beacon"))
    trial.vote(dict.fromkeys(jury[seats:], RIGHT))
    trial.late()
    trial.advance()
    if trial.phase == DRAWING:
        trial.draw()
    trial.reveal(dict.fromkeys(jury[seats:], RIGHT))
    assert trial.decide().outcome == CONVICTED
    moved = sum(sum(trial.gas(step)) for step in ("advance", "draw", "beacon")) - first
    return Act((Side(0, moved),), (Side(seats * (FEE + PAY)),))


def sham_case() -> Act:
    """A friend of the accused keeps its execution in a case that nobody can open."""
    trial = Trial(peopled_court(), peopled_court().evidence())
    trial.open()
    views = dict.fromkeys(trial.draw(), RIGHT)
    trial.vote(views)
    trial.reveal(views)
    trial.late(DEVNET.jury_window + 1)
    trial.decide([])
    jurors = _jurors(trial, range(7))
    asked = Side(0, trial.gas("decide")[0])  # by a juror that wants its pay
    opened = Side(WHOLE, sum(sum(trial.gas(step)) for step in ("open", "beacon", "draw")))
    return Act((*jurors[1:], Side(jurors[0].tokens, jurors[0].gas + asked.gas)), (opened,))


def own_fault() -> Act:
    """A provider proves its own two Commits, to get the fee."""
    world = peopled_court()
    sent = prove(world, "equivocation", two_commits(world))
    lost = DEVNET.slot_stake - world.stake("owner0") - world.tokens("stranger")
    return Act((), (Side(lost, sent.gas),))


def stolen_statement_key() -> Act:
    world = peopled_court()
    sent = prove(world, "two_acks", acks(world, b"a", world.now, world.now))
    lost = DEVNET.coordinator_bond - world.ask(world.stakes, "bond_of", account(K))
    return Act((Side(lost),), (Side(-world.tokens("stranger"), sent.gas),))


def long_lists(dead: int) -> Act:
    """An owner makes a list long and leaves: each later draw takes more tries. It has no use of
    its stake for three weeks, at a tenth a year.
    """
    world = long_list(9, dead)
    trial = Trial(world, world.evidence())
    trial.open()
    trial.draw()
    more = sum(trial.gas("draw")) - 105_000
    use = dead * DEVNET.slot_stake / 10 * 21 / 365
    return Act((Side(0, more),), (Side(use, dead * 24_600),))


ACTS: dict[str, Callable[[], Act]] = {
    "a false accusation": false_accusation,
    "a case without inputs": void_case,
    "two own jurors lie": partial(own_jurors, 2),
    "an accuser owns a fifth of the class": partial(own_owners, 0.2),
    "an accuser owns half of the class": partial(own_owners, 0.5),
    "an accuser owns three fifths": partial(own_owners, 0.6),
    "two jurors absent": partial(absent, 2),
    "a case that nobody can open": sham_case,
    "a provider proves its own fault": own_fault,
    "a list of 800 dead places": partial(long_lists, 800),
}
ADMITTED: dict[str, tuple[str, Callable[[], Act]]] = {
    "five own jurors convict": ("five of seven seats are a jury", partial(own_jurors, 5)),
    "three liars block a verdict": ("two thirds need five of seven", partial(liars_block, 3)),
    "three jurors absent": ("a round and a draw are gas; pay is not", partial(absent, 3)),
    "a stolen statement key": ("10 USD a week, then 100", stolen_statement_key),
}


@pytest.mark.rule("7.10")
@pytest.mark.parametrize("name", ACTS)
def test_no_act_costs_the_honest_more_than_its_author(name: str) -> None:
    act = ACTS[name]()
    assert max(act.ratio(gwei) for gwei in GWEI) <= 1


@pytest.mark.parametrize("name", ADMITTED)
def test_what_is_admitted_is_bounded(name: str) -> None:
    act = ADMITTED[name][1]()
    assert 0 < act.loss(1) <= BOUND / USD
