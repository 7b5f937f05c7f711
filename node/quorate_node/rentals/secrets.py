"""The secrets of this provider's rentals: in memory only, and readable by their job alone.

Each lease has a memory file system below `folder`. It outlives the daemon, so a rental that runs
keeps its secrets over a restart, and nothing of them is ever on disk. Files of `open` go into the
container; the document itself does not. Blocking calls are short.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError

from quorate_node.core.phases import PREPARING, Execution, Live
from quorate_node.executors.base import mounts
from quorate_protocol.messages import rental_secrets
from quorate_protocol.messages.frames import SecretsSent
from quorate_protocol.messages.rental_secrets import BOX_BYTES_MAX, ENV_FILE, RentalSecrets
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_runtime.keys.crypto import BoxKey

WAIT_SECONDS, RETRY_SECONDS = 0.5, 5.0
_DOCUMENT, _FILES = "document", "open"


@dataclass(frozen=True, slots=True)
class SecretStore:
    """Needs root. Every call may be repeated."""

    folder: Path
    key: BoxKey

    def put(self, lease_id: str, seal_key: Hash32, box: bytes) -> None:
        """Opens a box of the rental's client. The first one counts: only its client can have made
        it. Raises Refused for any other.
        """
        if len(box) > BOX_BYTES_MAX:
            raise Refused(Code.OVERSIZE, f"secrets: at most {BOX_BYTES_MAX} bytes")
        found = rental_secrets.decode(self.key.open(seal_key, box))
        place = self._place(lease_id)
        if self.has(lease_id):
            return
        mounts.mount_unswapped(place)
        (place / _FILES).mkdir(mode=0o500, exist_ok=True)
        for name, content in _contents(found).items():
            _write(place / _FILES / name, content)
        _write(place / "part", found.encode())
        os.replace(place / "part", place / _DOCUMENT)

    def has(self, lease_id: str) -> bool:
        return (self._place(lease_id) / _DOCUMENT).exists()

    def get(self, lease_id: str) -> RentalSecrets:
        """Raises Unavailable while none have come."""
        try:
            return rental_secrets.decode((self._place(lease_id) / _DOCUMENT).read_bytes())
        except FileNotFoundError:
            raise Unavailable("its client has sent no secrets yet", WAIT_SECONDS) from None

    def env_of(self, lease_id: str) -> dict[str, str]:
        """Variables for what the client starts over its streams; none for a rental without."""
        return self.get(lease_id).environment() if self.has(lease_id) else {}

    def files(self, lease_id: str) -> Path:
        return self._place(lease_id) / _FILES

    def remove(self, lease_id: str) -> None:
        mounts.remove_unswapped(self._place(lease_id))

    def leases(self) -> tuple[str, ...]:
        return tuple(sorted(os.listdir(self.folder))) if self.folder.is_dir() else ()

    def _place(self, lease_id: str) -> Path:
        return self.folder / lease_id


def take(
    store: SecretStore,
    executions: Mapping[Hash32, Execution],
    coordinator: Address,
    sent: SecretsSent,
) -> None:
    """Raises Refused unless a rental of this coordinator waits for them, or has them."""
    found = executions.get(sent.assignment_hash)
    if found is None or found.coordinator != coordinator or not found.spec.is_sealed:
        raise Refused(Code.UNKNOWN, "secrets: no rental here waits for them")
    if not isinstance(found.phase, (*PREPARING, Live)):
        raise Refused(Code.TOO_LATE, "secrets: the rental is over")
    try:
        store.put(found.lease_id, found.spec.seal_key, sent.box)
    except (OSError, SubprocessError) as error:
        raise Unavailable("this machine cannot keep secrets now", RETRY_SECONDS) from error


def _contents(secrets: RentalSecrets) -> dict[str, bytes]:
    """A shell reads the variables with `. /run/secrets/env`."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in secrets.environment().items()]
    env = {ENV_FILE: ("\n".join(lines) + "\n").encode()} if lines else {}
    return {**env, **{item.name: item.content for item in secrets.files}}


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as file:
        file.write(content)
