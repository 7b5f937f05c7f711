"""The SSH files of a profile: its key pair, the pinned host keys, and the configuration for `ssh`.

They lie in the folder `ssh` of the profile. The private key has no passphrase: it opens this
profile's rentals and nothing else.
"""

import os
import shlex
import subprocess
from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from quorate.base.errors import UsageError
from quorate_protocol.units import Hash32
from quorate_runtime.files import private_folder, write_atomic

KEY_TYPE = "ssh-ed25519"
USER = "root"
ALIVE_SECONDS, ALIVE_TRIES = 15, 4
TOOL_SECONDS = 30.0
NO_SSH = "{} is not installed; install OpenSSH's client, such as `apt-get install openssh-client`"


@dataclass(frozen=True, slots=True)
class Host:
    """A rental as `ssh` knows it."""

    name: str
    job_id: Hash32

    @property
    def alias(self) -> str:
        return f"quorate-{self.name}"


@dataclass(frozen=True, slots=True)
class SshFiles:
    """Of the profile in `home`."""

    home: Path

    @property
    def folder(self) -> Path:
        return self.home.absolute() / "ssh"

    @property
    def key(self) -> Path:
        return self.folder / "id_ed25519"

    @property
    def config(self) -> Path:
        return self.folder / "config"

    def known_hosts(self, job_id: Hash32) -> Path:
        return self.folder / "hosts" / job_id.hex()

    def unpacked(self, job_id: Hash32) -> Path:
        """Exists once the home of a rental was unpacked in it."""
        return self.folder / "hosts" / f"{job_id.hex()}.unpacked"

    def public_key(self) -> str:
        """Returns the line of the key pair, which it makes first if there is none."""
        public = self.key.with_suffix(".pub")
        if not public.exists():
            self._make_key(public)
        return " ".join(public.read_text().split()[:2])

    def _make_key(self, public: Path) -> None:
        """Of two programs at once one makes it."""
        private_folder(self.home)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with TemporaryDirectory(dir=self.folder, prefix="new-") as drafts:
            draft = str(Path(drafts) / "key")
            run_tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "quorate", "-f", draft)
            with suppress(FileExistsError):
                os.link(draft, self.key)
        write_atomic(public, run_tool("ssh-keygen", "-y", "-f", str(self.key)), 0o644)

    def pin(self, host: Host, peer_key: bytes) -> None:
        path = self.known_hosts(host.job_id)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        blob = _string(KEY_TYPE.encode()) + _string(peer_key)
        line = f"{_pinned_name(host)} {KEY_TYPE} {b64encode(blob).decode()}\n"
        write_atomic(path, line.encode(), 0o600)

    def is_pinned(self, job_id: Hash32) -> bool:
        return self.known_hosts(job_id).exists()

    def write_config(self, hosts: Iterable[Host], program: Sequence[str]) -> None:
        """`program` are the words of `quorate stream`, before the job id."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        blocks = [self._block(host, program) for host in hosts]
        write_atomic(self.config, "\n".join(blocks).encode(), 0o600)

    def _block(self, host: Host, program: Sequence[str]) -> str:
        words = shlex.join([*program, f"0x{host.job_id.hex()}"])
        lines = {
            "HostName": host.alias,
            "User": USER,
            "HostKeyAlias": _pinned_name(host),
            "HostKeyAlgorithms": KEY_TYPE,
            "UserKnownHostsFile": _quoted(self.known_hosts(host.job_id)),
            "GlobalKnownHostsFile": "none",
            "StrictHostKeyChecking": "yes",
            "UpdateHostKeys": "no",
            "IdentityFile": _quoted(self.key),
            "IdentitiesOnly": "yes",
            "PreferredAuthentications": "publickey",
            "ServerAliveInterval": str(ALIVE_SECONDS),
            "ServerAliveCountMax": str(ALIVE_TRIES),
            "ProxyCommand": _percent(words),
        }
        shown = "".join(f"    {name} {value}\n" for name, value in lines.items())
        return f"Host {host.alias}\n{shown}"

    def include_in(self, user_config: Path) -> bool:
        """Lets plain `ssh` read the configuration. Returns False if it does already."""
        line = f"Include {_quoted(self.config)}\n"
        known = user_config.read_text() if user_config.exists() else ""
        if line in known:
            return False
        user_config.parent.mkdir(mode=0o700, exist_ok=True)
        # An Include counts for all hosts only before the first Host.
        mode = user_config.stat().st_mode & 0o777 if known else 0o600
        write_atomic(user_config, (line + "\n" + known if known else line).encode(), mode)
        return True


def _pinned_name(host: Host) -> str:
    return f"0x{host.job_id.hex()}"


def _percent(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(path: Path) -> str:
    return f'"{_percent(str(path))}"'


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def run_tool(*words: str) -> bytes:
    """Runs a program of OpenSSH. Raises UsageError if it is not installed, or fails."""
    try:
        done = subprocess.run(words, capture_output=True, check=False, timeout=TOOL_SECONDS)
    except FileNotFoundError as error:
        raise UsageError(NO_SSH.format(words[0])) from error
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip()[-200:]
        raise UsageError(f"{words[0]} failed: {told or f'status {done.returncode}'}")
    return done.stdout
