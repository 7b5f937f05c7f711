"""Checks, before anything is signed, that a coordinator's files fit together and fit what others
have seen.

A missing file is not made again silently, because its content was acknowledged. And with a journal
from a backup, older than what was signed later, this coordinator would contradict itself with its
own keys; it does not start.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from quorate_coordinator.core.entities import Decided, Ended, OwnRecord
from quorate_coordinator.core.state import State
from quorate_coordinator.storage.archive import RunArchive
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_runtime.chain import ChainClient
from quorate_runtime.chain.outbox import ensure, has_signed
from quorate_runtime.journal.journal_port import JournalError
from quorate_runtime.sqlite.durable import FileDamaged

log = logging.getLogger(__name__)
LOOKED_AT = 100
# Every block is an event. After so long without one the journal may be an old backup.
AWAY_SECONDS = 60
PAUSES_HEARD = (
    2  # heartbeat intervals, in which every provider connects and shows its newest statement
)


class JournalOlder(JournalError):
    """This coordinator has signed what the journal does not know. The message says what, and how to
    go on.
    """


@dataclass(frozen=True, slots=True)
class Found:
    """A journal as it was found at the start. If the last start ended because others showed newer
    statements, the next start trusts the journal as little as before.
    """

    epochs: int = 0
    may_be_older: bool = False  # wait for the providers' statements, too

    @classmethod
    def of(cls, own: OwnRecord, newest_at: int, now: float) -> "Found":
        """`newest_at` is when the journal took its newest event; 0 before the first."""
        is_again = own.epoch_at_start is not None
        return cls(
            own.epoch if own.epoch_at_start is None else own.epoch_at_start,
            is_again or 0 < newest_at < now - AWAY_SECONDS,
        )


def gone(name: str, has_worked: bool, begin_anew: Collection[str]) -> str:
    """Returns what helps when this file is missing; "" when it may be made."""
    if not has_worked or name in begin_anew:
        return ""
    return (
        f"Restore it from a backup. Without one: quorate coordinator up --begin-anew {name}, "
        f"and what it held is lost"
    )


def may_start_empty(path: Path, state: State, begin_anew: Collection[str]) -> bool:
    """Whether the record of sent transactions is missing and the operator allows an empty one."""
    return path.name in begin_anew and not path.exists() and bool(_sent(state))


def check_sends(path: Path, state: State, begin_anew: Collection[str]) -> None:
    """Raises `FileDamaged` when the posting key's sent transactions cannot be known, because one
    could be sent twice.
    """
    sent = _sent(state)
    if sent and not path.exists() and path.name not in begin_anew:
        remedy = gone(path.name, True, begin_anew)
        raise FileDamaged(
            f"{path}: it is gone, and the journal knows that {sent} went out from there. {remedy}"
        )
    ensure(path)


def _sent(state: State) -> str:
    posted = [record.number for record in state.epochs.values() if record.is_posted]
    if posted:
        return f"epoch {max(posted)}"
    cases = [
        case.case_id
        for case in state.cases.values()
        if case.case_id is not None and case.executions
    ]
    return f"case {cases[-1]}" if cases else ""


async def check_nothing_is_under_way(client: ChainClient, account: Address, path: Path) -> None:
    """Checks that no transaction of the key waits in the chain, before its record begins empty.
    Refused while one does, Unavailable while the chain does not answer.
    """
    mined, known = await client.nonce(account), await client.nonce(account, "pending")
    if known > mined:
        detail = (
            f"--begin-anew {path.name}: {known - mined} transactions of 0x{account.hex()} "
            f"wait to be mined; try again when they are"
        )
        raise Refused(Code.BUSY, detail)


def check_archive(state: State, archive: RunArchive) -> None:
    """Raises `JournalOlder` when the archive has a finished run that the journal does not know, or
    knows as under way.
    """
    try:
        newer = archive.since(int(state.event_seq), LOOKED_AT)
    except Unavailable as error:
        log.error(
            "the archive is not compared with the journal: %s", error
        )  # not re-raised: `health` shows it, and jobs go on
        return
    for _, row in newer:
        job = state.jobs.get(Hash32(bytes.fromhex(str(row["job_id"]))))
        if job is None or not isinstance(job.phase, Decided | Ended):
            raise older(f"run 0x{row['job_id']} is over in the archive, and not in the journal")


def check_chain(newest: int, known: int, path: Path, posting: Address) -> None:
    """Raises `JournalOlder` when the chain's newest epoch of this coordinator is one that the
    journal does not know.

    The chain may have one epoch more than the journal, when it was given up or removed by a
    reorganisation and mined later. Then this coordinator signed it, and `path` has it.
    """
    if newest <= known or (newest == known + 1 and has_signed(path, posting, f"epoch-{newest}-")):
        return
    raise older(
        f"the chain has epoch {newest} of this coordinator, and the journal knows {known or 'none'}"
    )


def older(what: str) -> JournalOlder:
    """Makes the error; `what` is the evidence."""
    return JournalOlder(
        f"the journal is older than what was signed after it: {what}. No sum was signed now. Put "
        f"back the newest journal there is, with the"
        " other files of its folder. Without one do not start this coordinator again: its newest "
        "epoch stays on the chain to claim against,"
        " and docs/howto/operator.md, Backups, says the rest. If the keys are used elsewhere too, "
        "and this journal is the newest:"
        " quorate coordinator up --journal-is-newest"
    )
