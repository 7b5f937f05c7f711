"""Checks that a coordinator's files fit together and are not older than what others have seen,
before it signs anything.

A missing file is not made again without the operator's word, because the coordinator has
acknowledged its content. With an old journal it would sign messages that contradict its earlier
ones.
"""

import logging
from collections.abc import Collection
from pathlib import Path

from quorate_coordinator.core.model.entities import Decided, Ended, OwnRecord
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.money import payees
from quorate_coordinator.core.money.transactions import LOCKS, PAYROLL, REDEEM
from quorate_coordinator.storage.archive import FileArchive
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, usd
from quorate_runtime.actor.journal_port import JournalError
from quorate_runtime.chain import ChainClient
from quorate_runtime.chain.send_records import ensure
from quorate_runtime.durable import FileDamaged

log = logging.getLogger(__name__)
RUNS_COMPARED = 100
# Every block is an event. If the newest event is older, the journal may be an old backup.
AWAY_SECONDS = 60
# Heartbeat intervals, in which every provider connects and shows its newest voucher.
HEARTBEATS_AWAITED = 2


class JournalOlder(JournalError):
    """This coordinator has signed something that its journal does not have."""


def may_be_older(own: OwnRecord, newest_at: int, now: float) -> bool:
    """Whether providers get time to show newer vouchers before this coordinator signs any.
    `newest_at` is the second of the journal's newest event; 0 before the first.

    The last start may have ended because others showed some. Then this one waits again.
    """
    is_again = own.restarted_at > 0 and not own.is_compared
    return is_again or 0 < newest_at < now - AWAY_SECONDS


def missing_file_remedy(name: str, has_worked: bool, begin_anew: Collection[str]) -> str:
    """ "" when the start may make the file."""
    if not has_worked or name in begin_anew:
        return ""
    return (
        f"Restore it from a backup. Without one: quorate coordinator up --begin-anew {name}, "
        f"and what it held is lost"
    )


def may_start_empty(path: Path, state: State, begin_anew: Collection[str]) -> bool:
    return path.name in begin_anew and not path.exists() and bool(_newest_sent(state))


def check_sends(path: Path, state: State, begin_anew: Collection[str]) -> None:
    """Raises `FileDamaged` if the file is missing: a transaction could then be sent twice."""
    sent = _newest_sent(state)
    if sent and not path.exists() and path.name not in begin_anew:
        remedy = missing_file_remedy(path.name, True, begin_anew)
        raise FileDamaged(
            f"{path}: it is gone, and the journal knows that {sent} was sent from it. {remedy}"
        )
    ensure(path)


def _newest_sent(state: State) -> str:
    for kind in (PAYROLL, REDEEM, LOCKS):
        count = state.counters.get(kind)
        if count:
            return f"{kind} {count}"
    own = [case.key for case in state.cases.values() if case.key and case.case_id is not None]
    return own[-1] if own else ""


async def check_nothing_is_under_way(client: ChainClient, account: Address, path: Path) -> None:
    """Before the file of sends begins empty. Raises Refused if one waits, or Unavailable."""
    mined, known = await client.nonce(account), await client.nonce(account, "pending")
    if known > mined:
        detail = (
            f"--begin-anew {path.name}: {known - mined} transactions of 0x{account.hex()} "
            f"wait to be mined; try again when they are"
        )
        raise Refused(Code.BUSY, detail)


def check_archive(state: State, archive: FileArchive) -> None:
    """Raises `JournalOlder` if the archive has what the journal does not know."""
    try:
        newer, lines = archive.since(int(state.event_seq), RUNS_COMPARED), archive.line_count()
    except Unavailable as error:
        # not re-raised: `health` shows it, and jobs go on
        log.error("the archive is not compared with the journal: %s", error)
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


def check_paid(state: State) -> None:
    """Raises `JournalOlder` if the chain paid more than the journal knows to be signed."""
    beyond = payees.paid_beyond(state)
    if beyond:
        payee = payees.of(state, beyond[0])
        raise journal_older(
            f"the chain paid 0x{payee.account.hex()} {usd(payee.tab.paid)} USD, and the journal "
            f"knows {usd(payee.vouched)} ({len(beyond)} such accounts)"
        )


def journal_older(what: str) -> JournalOlder:
    return JournalOlder(
        f"the journal is older than what was signed after it: {what}; put back the newest "
        "journal's folder (docs/operate/backup.md, Restore), or say --journal-is-newest"
    )
