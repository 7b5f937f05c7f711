"""The crash matrix as data: which scenario passes which crash point, what no market of minutes passes, and which part is tried today."""

import os
import re
import time
from dataclasses import dataclass
from enum import StrEnum

from crash_points import points_of
from quorate_runtime.crash import Program


class Scenario(StrEnum):
    """What has to happen so that a point is passed."""

    JOBS = "jobs"  # ordinary jobs, two executions each
    STOP = "stop"  # the client stops a job that runs
    LOSE = "lose"  # a container is removed under its provider
    START = "start"  # the program starts
    DRAIN = "drain"  # the owner drains a provider
    CONFIGURE = "configure"  # a provider starts with another price
    REORGANISE = "reorganise"  # the chain takes blocks back
    SESSION = "session"  # a client shows its session before an order
    FUND = "fund"  # the client deposits and allocates
    CLAIM = "claim"  # so many jobs that pay becomes final and is claimed
    LATE = "late"  # what comes ten minutes after a job: a provider forgets most of it. Played last
    COURT = "court"  # a liar is caught twice and judged
    SANDBOX = "sandbox"  # jobs under an executor without an engine
    DEVNET = "devnet"  # a devnet starts and ends
    NEVER = "never"  # see UNREACHABLE


BY_TYPE: dict[str, Scenario] = {
    "StopArrived": Scenario.STOP, "StopTask": Scenario.STOP, "StopReceived": Scenario.STOP, "Failed": Scenario.LOSE,
    "OfferDue": Scenario.START, "SendOffer": Scenario.START, "Restarted": Scenario.START, "OfferReceived": Scenario.START,
    "DrainRequested": Scenario.DRAIN, "Configured": Scenario.CONFIGURE, "ChainReorganised": Scenario.REORGANISE,
    "SessionReceived": Scenario.SESSION,
    **dict.fromkeys(("EpochFinal", "ClaimStood", "SendClaim"), Scenario.CLAIM),
    **dict.fromkeys(
        ("CaseOpened", "JuryDrawn", "Reexecuted", "VoteStood", "VotingEnded", "CaseDecided", "Reexecute", "SendVote", "SendJuryReveal",
         "WithdrawCredit", "OpenCase"), Scenario.COURT,
    ),
}  # fmt: skip

UNREACHABLE: dict[str, str] = {
    "SendDecline": "a coordinator that sees everything offers nothing that would be declined; test_node_daemon does",
    "DeclineReceived": "as SendDecline; test_coordinator_flow does it",
    "Forget": "is due seven days after a verdict; test_node_daemon holds what it does, and it can be repeated",
    "TransactionRefused": "only a contract that refuses an honest coordinator's posting leads there; test_coordinator_flow does it",
}
WITHOUT_ENGINE = "supervisor."
ROTATION, ONLY = "QUORATE_CRASH_ROTATION", "QUORATE_CRASH_ONLY"


@dataclass(frozen=True, slots=True)
class Trial:
    """One program to kill at one point."""

    program: Program
    point: str
    scenario: Scenario


def trials() -> tuple[Trial, ...]:
    """All of them, or those that QUORATE_CRASH_ONLY, a regular expression, finds in `program:point`."""
    only = re.compile(os.environ.get(ONLY, ""))
    found = (Trial(program, point, scenario_of(program, point)) for program in Program for point in points_of(program))
    return tuple(trial for trial in found if only.search(f"{trial.program}:{trial.point}"))


def scenario_of(program: Program, point: str) -> Scenario:
    """Where a point is passed."""
    kind = point.rpartition(".")[2]
    if program is Program.PROVIDER and kind == "Tick":
        return Scenario.LATE  # nothing else of an ordinary job is due by time alone
    if kind in UNREACHABLE:
        return Scenario.NEVER
    if program is Program.DEVNET:
        return Scenario.DEVNET
    if program is Program.CLIENT and point.startswith("chain."):
        return Scenario.FUND
    if program is Program.PROVIDER and point.startswith("chain."):
        return Scenario.COURT  # the coordinator claims for everybody: votes are a provider's usual transactions
    return Scenario.SANDBOX if point.startswith(WITHOUT_ENGINE) else BY_TYPE.get(kind, Scenario.JOBS)


def rotation() -> int:
    """Which part of the matrix is tried: QUORATE_CRASH_ROTATION, else the number of the day."""
    return int(os.environ.get(ROTATION) or time.time() // 86_400)


def wants_all() -> bool:
    """`make crash`."""
    return os.environ.get(ROTATION) == "all"


def part(items: tuple[Trial, ...], count: int, turn: int) -> tuple[Trial, ...]:
    """`count` of them, others the next turn, all of them in as few turns as can be."""
    if not items:
        return ()
    first = turn * count % len(items)
    return tuple((items + items)[first : first + min(count, len(items))])
