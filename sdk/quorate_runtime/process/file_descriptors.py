"""Raises the limit of open files and keeps a part of it free from connections.

A shell gives 1,024 by default, and strangers may open 8,192 connections. Without a reserve the
process could not open files, ask the chain node, or accept other connections.
"""

import logging
import resource

log = logging.getLogger(__name__)
WANTED = 16_384
KEPT = 1_024  # for files, uploads, chain and beacon


def connections_max(wanted: int) -> int:
    """Returns how many connections there may be.

    That is `wanted`, or half the limit of open files if that is less.
    """
    most = _raised()
    fitting = min(wanted, max(most - KEPT, most // 2))
    if fitting < wanted:
        log.warning(
            "%d files may be open, so %d connections and not %d: raise it by ulimit -n or "
            "LimitNOFILE",
            most,
            fitting,
            wanted,
        )
    return fitting


def _raised() -> int:
    """Raises the soft limit as far as wanted and allowed; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    most = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        log.warning(
            "the limit of open files stays at %d: %s", soft, error
        )  # Not re-raised: then fewer connections are allowed.
        return soft
    return most
