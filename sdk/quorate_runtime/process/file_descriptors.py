"""How many files and connections this process may have open: as many as it may be given, and
never all of them for connections.

A shell gives 1,024 unless it is asked for more, and strangers may open 8,192 connections: then
no file could be opened any more, no chain node asked, and nobody else let in.
"""

import logging
import resource

log = logging.getLogger(__name__)
WANTED = 16_384
KEPT = 1_024  # for files, uploads, chain and beacon


def connections_max(wanted: int) -> int:
    """How many connections there may be, at most `wanted`; half of what there is where that is
    little.
    """
    most = _raised()
    fitting = min(wanted, max(most - KEPT, most // 2))
    if fitting < wanted:
        log.warning(
            (
                "%d files may be open, so %d connections and not %d: raise it by ulimit -n or "
                "LimitNOFILE"
            ),
            most,
            fitting,
            wanted,
        )
    return fitting


def _raised() -> int:
    """The soft limit, once it is as high as is wanted and the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    most = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        log.warning(
            "the limit of open files stays at %d: %s", soft, error
        )  # not re-raised: fewer connections fit then
        return soft
    return most
