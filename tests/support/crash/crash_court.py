"""A case against a liar while jurors and coordinator are killed.

The file says which program dies at which point, and what the chain must show in the end.
"""

import asyncio

from quorate_contracts.bindings import events as chain_events
from quorate_contracts.deploy import Contracts
from quorate_devnet.demo.accounting import ChainHistory, read_chain_history
from quorate_protocol.refusals import Unavailable
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.process.crash_points import Program
from support.crash.crash_chain import sums_that_do_not_hold
from support.crash.crash_market import POLL_SECONDS, Armed, CrashMarket, Target
from support.crash.crash_plan import Trial

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
    "actor.before-append.ChainVotingEnded",
    "actor.after-append.ChainVotingEnded",
    "effect.before.SendJuryReveal",
    "effect.after.SendJuryReveal",
    "actor.before-append.ChainCaseDecided",
    "actor.after-append.ChainCaseDecided",
    "effect.before.WithdrawCredit",
    "effect.after.WithdrawCredit",
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
        credit = [contracts.court.credit_of(account) for account in devnet.providers]
        left = [query.decode(await client.call(query.to, query.data)) for query in credit]
        problems = await sums_that_do_not_hold(crash) + _verdicts(
            devnet.providers[0], await read_chain_history(client, contracts)
        )
    except Unavailable as error:
        return [f"the chain is away: {error}"]  # not re-raised: the next round asks again
    return problems + [
        f"provider-{index} has not withdrawn {amount}"
        for index, amount in enumerate(left)
        if amount
    ]


def _verdicts(liar: bytes, books: ChainHistory) -> list[str]:
    opened = [
        event
        for event in books.of(chain_events.CaseOpened)
        if isinstance(event, chain_events.CaseOpened)
    ]
    decided = [
        event for event in books.of(chain_events.Decided) if isinstance(event, chain_events.Decided)
    ]
    problems = [] if len(opened) == 1 else [f"{len(opened)} cases were opened"]
    problems += [
        f"case {case.case_id} is against an honest provider"
        for case in opened
        if case.accused != liar
    ]
    problems += (
        []
        if len(decided) == len(opened)
        else [f"{len(decided)} of {len(opened)} cases are decided"]
    )
    slashed = [
        event.account
        for event in books.of(chain_events.Slashed)
        if isinstance(event, chain_events.Slashed)
    ]
    problems += (
        []
        if slashed == [liar]
        else [f"stake was taken from {[account.hex() for account in slashed]}"]
    )
    return problems + [f"case {case.case_id}: acquitted" for case in decided if not case.convicted]
