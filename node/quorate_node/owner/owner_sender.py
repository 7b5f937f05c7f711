"""Sends the owner's transactions. The daemon and the commands take turns.

A `Sender` may not share its key with another one, so each holds a lock in the provider's home. What
one has signed and not finished, the next one finishes.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quorate_contracts.deploy import Deployment
from quorate_protocol.messages.ports import Clock, Signer
from quorate_runtime.chain import ChainClient, Sender
from quorate_runtime.files import file_lock

LOCK_FILE = "owner.lock"
SENDS_FILE = "owner.sqlite"
LOCKED_SECONDS = 2.0


@contextmanager
def owner_sender(
    home: Path, client: ChainClient, owner: Signer, clock: Clock, deployment: Deployment
) -> Iterator[Sender]:
    """The owner's key sends once at a time: raises Unavailable while another program does."""
    with owner_lock(home):
        sender = Sender(client, owner, home / SENDS_FILE, clock, **deployment.trusted())
        try:
            yield sender
        finally:
            sender.close()


@contextmanager
def owner_lock(home: Path) -> Iterator[None]:
    """Holds the lock of the owner's key. Raises Unavailable while another program has it."""
    place = shlex.quote(str(home))
    busy = (
        f"another command or the daemon sends transactions of {place} now: type this again in a "
        "minute"
    )
    with file_lock(home / LOCK_FILE, busy, LOCKED_SECONDS):
        yield
