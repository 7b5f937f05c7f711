"""The crash matrix as data: which scenario passes which crash point, and which points this run
tries.
"""

import os
import re
import subprocess
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from support.crash.points import Program
from support.crash.program_points import points_of


class Scenario(StrEnum):
    """What has to happen so that a point is passed."""

    JOBS = "jobs"  # ordinary jobs, two executions each
    STOP = "stop"  # the client stops a running job
    LOSE = "lose"  # a container is removed while its provider runs
    START = "start"  # the program starts
    DRAIN = "drain"  # the owner drains a provider
    CONFIGURE = "configure"  # a provider starts with another price
    # an owner allows one image, which is not that of the jobs; declines are soon forgotten
    DECLINE = "decline"
    REORGANISE = "reorganise"  # the chain reverts blocks
    SESSION = "session"  # a client shows its session before an order
    FUND = "fund"  # the client deposits into its tab
    COURT = "court"  # a liar is caught and judged
    SANDBOX = "sandbox"  # jobs under an executor without an engine
    DEVNET = "devnet"  # a devnet starts and ends


BY_TYPE: dict[str, Scenario] = {
    "StopReceived": Scenario.STOP,
    "StopTask": Scenario.STOP,
    "TaskFailed": Scenario.LOSE,
    "OfferDue": Scenario.START,
    "SendOffer": Scenario.START,
    "Restarted": Scenario.START,
    "OfferReceived": Scenario.START,
    "DrainRequested": Scenario.DRAIN,
    "Configured": Scenario.CONFIGURE,
    "ChainReorganised": Scenario.REORGANISE,
    "Compared": Scenario.START,
    "SessionReceived": Scenario.SESSION,
    **dict.fromkeys(("SendDecline", "DeclineReceived", "ForgetLease"), Scenario.DECLINE),
    **dict.fromkeys(
        (
            "CaseOpened",
            "ChainCaseOpened",
            "ChainJuryDrawn",
            "JuryDrawn",
            "Reexecuted",
            "VoteConfirmed",
            "ChainVoted",
            "ChainVotingEnded",
            "CaseDecided",
            "ChainCaseDecided",
            "Reexecute",
            "SendVote",
            "SendJuryReveal",
            "OpenCase",
        ),
        Scenario.COURT,
    ),
}

OTHER_MARKETS = (
    Scenario.SANDBOX,
    Scenario.COURT,
)  # each needs its own market; CI runs one of them per turn
WITHOUT_ENGINE = "supervisor."
CONTAINER_STEPS = ("container.", "mount.", "unmount.", "output.")
# Where the simulator kills daemons: rentals, logs that a client reads, stores whose room changes,
# machines with GPUs, orders with an escrow of their own, clients that leave, what a second Commit
# causes, content that a client names and does not upload, outputs that are compared, payments that
# the chain refuses, and locks and redemptions, which these markets need at their start only. Nobody
# kills one at an owner's eviction.
NOT_TRIED = (
    "ContentTaken",
    "CompareOutputs",
    "OutputsCompared",
    "GpusRead",
    "ScheduleRead",
    "EquivocationSeen",
    "ProveEquivocation",
    "OrderFunded",
    "KeepEvidence",
    "ShowExecution",
    "after-fund",
    "PayOrder",
    "ReleaseOrder",
    "GiveBackAsked",
    "SendGiveBack",
    "AllowanceNamed",
    "MeterReceived",
    "MeterAnswered",
    "SendMeter",
    "EvictRequested",
    "LogRead",
    "StoreRead",
    "TransactionRefused",
    "SendRedeem",
    "SendLocks",
    "ChainStateQueried",
)
ROTATION, ONLY = "QUORATE_CRASH_ROTATION", "QUORATE_CRASH_ONLY"


@dataclass(frozen=True, slots=True)
class Trial:
    """One program to kill at one point."""

    program: Program
    point: str
    scenario: Scenario

    def __str__(self) -> str:
        return f"{self.program}:{self.point}"


def trials() -> tuple[Trial, ...]:
    """Returns all trials, or those whose `program:point` matches QUORATE_CRASH_ONLY, a regular
    expression.
    """
    only = re.compile(os.environ.get(ONLY, ""))
    found = (
        Trial(program, point, scenario_of(program, point))
        for program in Program
        for point in points_of(program)
        if point.rpartition(".")[2] not in NOT_TRIED
    )
    return tuple(trial for trial in found if only.search(str(trial)))


def wanted(*scenarios: Scenario) -> tuple[Trial, ...]:
    """Trials of these scenarios."""
    return tuple(trial for trial in trials() if trial.scenario in scenarios)


def scenario_of(program: Program, point: str) -> Scenario:
    """The scenario that passes a point."""
    kind = point.rpartition(".")[2]
    if program is Program.PROVIDER and kind == "Tick":
        # in an ordinary job nothing becomes due by time alone for ten minutes
        return Scenario.DECLINE
    if program is Program.DEVNET:
        return Scenario.DEVNET
    if program is Program.CLIENT and point.startswith("chain."):
        return Scenario.FUND
    if program is Program.PROVIDER and point.startswith("chain."):
        return Scenario.COURT  # votes are a provider's usual transactions
    return (
        Scenario.SANDBOX if point.startswith(WITHOUT_ENGINE) else BY_TYPE.get(kind, Scenario.JOBS)
    )


@cache
def rotation() -> int:
    """Returns which part of the matrix this run tries.

    It is QUORATE_CRASH_ROTATION, else a number from the commit, else from the day.
    """
    told = os.environ.get(ROTATION)
    if told:
        return int(told)
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return int(
            subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout[
                :12
            ],
            16,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return int(time.time() // 86_400)  # not re-raised: a copy without its history uses the day


def wants_all() -> bool:
    """Whether the whole matrix is tried (`make crash`)."""
    return os.environ.get(ROTATION) == "all"


def part(items: tuple[Trial, ...], count: int, context: int) -> tuple[Trial, ...]:
    """Returns `count` of the trials.

    The next turn gets others, and as few turns as possible get all.
    """
    if not items:
        return ()
    first = context * count % len(items)
    return tuple((items + items)[first : first + min(count, len(items))])
