"""Mutants of the contracts that settle single jobs and prove faults."""

from contracts.mutation.mutant import Change, of

SETTLEMENT = (
    *of(
        "Settlement",
        Change(
            "anybody settles one job at once",
            "assert staticcall Stakes(STAKES).posting_key(job.order.coordinator) == msg.sender",
            "assert msg.sender == msg.sender",
        ),
    ),
    *of(
        "Faults",
        Change("evidence of the future counts", 'assert at <= block.timestamp, "early"', "pass"),
    ),
    *of(
        "fault_evidence",
        Change(
            "a CommitSet has a Commit of the same assignment only",
            "if entry.assignmentHash == assignment and entry.commitHash == commit:",
            "if entry.assignmentHash == assignment:",
        ),
    ),
    *of(
        "credit_logs",
        Change(
            "an entry stands in the first tree of a log",
            "if shown.index >= first and shown.index < first + (1 << bit):",
            "if shown.index >= first:",
        ),
    ),
)
