"""Mutants of Court, Cases and their modules."""

from contracts.mutation.mutant import Change, of

COURT = (
    *of(
        "Court",
        Change(
            "a quorum needs one vote less", "(2 * revealed + 2) // 3", "(2 * revealed + 1) // 3"
        ),
        Change(
            "half of the votes do not void a case",
            "if 2 * ((votes >> (4 * docket.VOID_ANSWER)) & 15) >= revealed:",
            "if 2 * ((votes >> (4 * docket.VOID_ANSWER)) & 15) > revealed:",
        ),
        Change(
            "a vote in the last second is late",
            "assert s.phase == docket.VOTING and block.timestamp <= s.deadline",
            "assert s.phase == docket.VOTING and block.timestamp < s.deadline",
        ),
        Change(
            "a reveal in the last second is late",
            "assert s.phase == docket.REVEALING and block.timestamp <= s.deadline",
            "assert s.phase == docket.REVEALING and block.timestamp < s.deadline",
        ),
        Change(
            "a case moves on in its last second",
            'assert block.timestamp > s.deadline, "early"',
            'assert block.timestamp >= s.deadline, "early"',
        ),
        Change(
            "a case is decided in the last second of its reveals",
            "(s.phase == docket.REVEALING and block.timestamp > s.deadline)",
            "(s.phase == docket.REVEALING and block.timestamp >= s.deadline)",
        ),
        Change(
            "a case without openings ends a second early",
            "assert block.timestamp > s.deadline + WINDOW",
            "assert block.timestamp >= s.deadline + WINDOW",
        ),
        Change(
            "a round is given up a second early",
            "assert block.timestamp > staticcall Beacon(BEACON).time_of(s.round) + BEACON_MISSING",
            "assert block.timestamp >= staticcall Beacon(BEACON).time_of(s.round) + BEACON_MISSING",
        ),
    ),
    *of(
        "docket",
        Change("of equal groups only the last is paid", "if size > best:", "if size >= best:"),
        Change(
            "a juror is paid for what it did not execute",
            "if answer != 0 and answer != VOID_ANSWER:",
            "if answer != 0:",
        ),
    ),
    *of(
        "Cases",
        Change(
            "one client's two executions make a case",
            "assert count > 2 or executions[0].job.order.client",
            "assert count > 1 or executions[0].job.order.client",
        ),
        Change(
            "an allocation is a second too young",
            "since + ALLOCATION_AGE <= acceptBy",
            "since + ALLOCATION_AGE < acceptBy",
        ),
    ),
)
