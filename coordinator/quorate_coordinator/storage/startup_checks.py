"""Checks that a coordinator's files fit together and are not older than what others have seen. They
run before the coordinator signs anything.

A missing file is not made again without the operator's word, because the coordinator has
acknowledged its content. With an old journal, such as a restored backup, the coordinator would sign
messages that contradict its earlier ones. So it does not start then.
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
from quorate_runtime.chain.send_records import ensure, has_signed
from quorate_runtime.journal.journal_port import JournalError
from quorate_runtime.sqlite.durable import FileDamaged

log = logging.getLogger(__name__)
RUNS_COMPARED = 100
# Every block is an event. If the newest event is older, the journal may be an old backup.
AWAY_SECONDS = 60
# Heartbeat intervals, in which every provider connects and shows its newest statement.
HEARTBEATS_AWAITED = 2


class JournalOlder(JournalError):
    """This coordinator has signed something that its journal does not have. The message says what,
    and how to go on.
    """


@dataclass(frozen=True, slots=True)
class JournalAtStart:
    """What the journal says at the start, to be compared with what others know.

    The last start may have ended because others showed newer statements. Then this start compares
    with the same epoch again, and waits for the providers' statements again.
    """

    epochs: int = 0  # number of the newest epoch that it has
    may_be_older: bool = False  # wait for the providers' statements, too

    @classmethod
    def of(cls, own: OwnRecord, newest_at: int, now: float) -> "JournalAtStart":
        """Returns what the journal says. `newest_at` is the second of its newest event; 0 before
        the first.
        """
        is_again = own.epoch_at_start is not None
        return cls(
            own.epoch if own.epoch_at_start is None else own.epoch_at_start,
            is_again or 0 < newest_at < now - AWAY_SECONDS,
        )


def missing_file_remedy(name: str, has_worked: bool, begin_anew: Collection[str]) -> str:
    """Returns what the operator can do about this missing file; "" when the start may make it."""
    if not has_worked or name in begin_anew:
        return ""
    return (
        f"Restore it from a backup. Without one: quorate coordinator up --begin-anew {name}, "
        f"and what it held is lost"
    )


def may_start_empty(path: Path, state: State, begin_anew: Collection[str]) -> bool:
    """Whether the file of sent transactions is missing and the operator allows an empty one."""
    return path.name in begin_anew and not path.exists() and bool(_newest_sent(state))


def check_sends(path: Path, state: State, begin_anew: Collection[str]) -> None:
    """Raises `FileDamaged` if the file of sent transactions is missing, because a transaction could
    then be sent twice.
    """
    sent = _newest_sent(state)
    if sent and not path.exists() and path.name not in begin_anew:
        remedy = missing_file_remedy(path.name, True, begin_anew)
        raise FileDamaged(
            f"{path}: it is gone, and the journal knows that {sent} was sent from it. {remedy}"
        )
    ensure(path)


def _newest_sent(state: State) -> str:
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
    """Checks that no transaction of the key waits in the chain, before the file of sent
    transactions begins empty. Raises Refused if one waits, Unavailable if the chain does not
    answer.
    """
    mined, known = await client.nonce(account), await client.nonce(account, "pending")
    if known > mined:
        detail = (
            f"--begin-anew {path.name}: {known - mined} transactions of 0x{account.hex()} "
            f"wait to be mined; try again when they are"
        )
        raise Refused(Code.BUSY, detail)


def check_archive(state: State, archive: RunArchive) -> None:
    """Raises `JournalOlder` if the archive is newer than the journal. It has a run's end or a line
    of the public log that the journal does not know.
    """
    try:
        newer, lines = archive.since(int(state.event_seq), RUNS_COMPARED), archive.line_count()
    except Unavailable as error:
        log.error(
            "the archive is not compared with the journal: %s", error
        )  # not re-raised: `health` shows it, and jobs go on
        return
    if lines > state.own.log.count:
        raise journal_older(
            f"the public log has {lines} lines, and the journal knows {state.own.log.count}"
        )
    for _, row in newer:
        job = state.jobs.get(Hash32(bytes.fromhex(str(row["job_id"]))))
        if job is None or not isinstance(job.phase, Decided | Ended):
            raise journal_older(
                f"run 0x{row['job_id']} is over in the archive, and not in the journal"
            )


def check_chain(newest: int, known: int, path: Path, posting: Address) -> None:
    """Raises `JournalOlder` if the chain has a newer epoch of this coordinator than the journal.

    The chain may have one epoch more than the journal. That epoch was given up or removed by a
    reorganisation, and mined later. Then `path`, the file of sent transactions, has it.
    """
    if newest <= known or (newest == known + 1 and has_signed(path, posting, f"epoch-{newest}-")):
        return
    lost = f"epoch {newest}" if newest == known + 1 else f"epochs {known + 1} to {newest}"
    raise journal_older(
        f"the chain has epoch {newest} of this coordinator, and the journal knows {known or 'none'}"
        f": without a newer one {lost} and its orders are lost"
    )


def journal_older(what: str) -> JournalOlder:
    """Returns the error; `what` is the evidence."""
    return JournalOlder(
        f"the journal is older than what was signed after it: {what}; put back the newest "
        "journal's folder (docs/operate/backup.md, Restore), or say --journal-is-newest"
    )
