"""A case against a liar while jurors and coordinator are killed.

The file says which program dies at which point, and what the chain must show in the end.
"""

import asyncio

from quorate_contracts.court_facts import Outcome
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated import court, stakes
from quorate_devnet.demo.accounting import ChainHistory, read_chain_history
from quorate_protocol.refusals import Unavailable
from quorate_runtime.chain import ChainClient, Rpc
from support.crash.crash_chain import sums_that_do_not_hold
from support.crash.crash_market import POLL_SECONDS, Armed, CrashMarket, Target
from support.crash.crash_plan import Trial
from support.crash.points import Program

PROVIDERS, LIARS = 5, 1
PARALLEL = 4  # number of jobs in progress, of two clients in turn
CASE_SECONDS = 120.0  # seconds from the first job until the last planned death
DECIDED_SECONDS = 120.0
# In the order in which a juror passes them; points in one line are milliseconds apart.
PASSED = (
    "actor.before-append.ChainCaseOpened",
    "actor.after-append.ChainCaseOpened",
    "actor.before-append.ChainJuryDrawn",
    "actor.after-append.ChainJuryDrawn",
    "effect.before.Reexecute",
    "actor.before-append.Reexecuted",
    "actor.after-append.Reexecuted",
    "effect.after.Reexecute",
    "effect.before.SendVote",
    "chain.before-sign",
    "chain.before-send",
    "chain.after-send",
    "chain.after-receipt",
    "chain.after-settle",
    "actor.before-append.VoteConfirmed",
    "actor.after-append.VoteConfirmed",
    "effect.after.SendVote",
    "actor.before-append.ChainVoted",
    "actor.after-append.ChainVoted",
    "actor.before-append.ChainVotingEnded",
    "actor.after-append.ChainVotingEnded",
    "effect.before.SendJuryReveal",
    "effect.after.SendJuryReveal",
    "actor.before-append.ChainCaseDecided",
    "actor.after-append.ChainCaseDecided",
)


def seats(trials: tuple[Trial, ...], jurors: list[str]) -> dict[Trial, str]:
    """Assigns each trial to a program, in the order of deaths.

    Jurors take turns, so that each has as much time as possible to come back.
    """
    mine = sorted(
        (trial for trial in trials if trial.program is Program.PROVIDER),
        key=lambda trial: PASSED.index(trial.point),
    )
    placed = {trial: jurors[place % len(jurors)] for place, trial in enumerate(mine)}
    return placed | {
        trial: trial.program.value for trial in trials if trial.program is Program.COORDINATOR
    }


async def judge(crash: CrashMarket, trials: tuple[Trial, ...]) -> set[Trial]:
    """Runs one case from the first lie to the last juror's pay; returns the trials whose point was
    passed.

    It adds problems to `violations`.
    """
    placed = seats(trials, crash.providers[LIARS:])
    targets = {trial: Target([Armed(name, trial.point)]) for trial, name in placed.items()}
    for item in {
        target.armed[0].name: target.armed[0] for target in reversed(targets.values())
    }.values():
        crash.arm(item.name, item.point)
    await crash.feed(list(targets.values()), PARALLEL, (), CASE_SECONDS)
    problems = ["nobody has looked yet"]
    try:
        async with asyncio.timeout(DECIDED_SECONDS):
            while problems := await _unsettled(crash):
                await asyncio.sleep(POLL_SECONDS * 10)
                await crash.revive([])
    except TimeoutError:
        crash.violations += problems  # not re-raised: added to the violations
    return {trial for trial, target in targets.items() if target.is_hit}


async def _unsettled(crash: CrashMarket) -> list[str]:
    """Returns what is still missing on chain.

    The chain must show one conviction and one slash. Each juror is paid once, and no money is lost
    (I1, I5).
    """
    devnet = crash.devnet
    client, contracts = (
        ChainClient(Rpc(devnet.chain_url, crash.session)),
        Contracts.of(devnet.deployment),
    )
    try:
        history = await read_chain_history(client, contracts)
        return await sums_that_do_not_hold(crash) + _verdicts(devnet.providers[0], history)
    except Unavailable as error:
        return [f"the chain is away: {error}"]  # not re-raised: the next round asks again


def _verdicts(liar: bytes, books: ChainHistory) -> list[str]:
    opened = [event for event in books.of(court.CaseOpened) if isinstance(event, court.CaseOpened)]
    decided = [event for event in books.of(court.Decided) if isinstance(event, court.Decided)]
    burned = [event for event in books.of(stakes.Burned) if isinstance(event, stakes.Burned)]
    problems = [] if opened else ["no case was opened"]
    problems += ["a case is against an honest provider" for case in opened if case.accused != liar]
    if len(decided) != len(opened):
        problems.append(f"{len(decided)} of {len(opened)} cases are decided")
    problems += [
        f"stake was taken from 0x{event.account.hex()}" for event in burned if event.account != liar
    ]
    convicted = [case for case in decided if case.outcome == Outcome.CONVICTED]
    if len(burned) != len(convicted) or not convicted:
        problems.append(f"{len(convicted)} convictions, and stake was taken {len(burned)} times")
    return problems
