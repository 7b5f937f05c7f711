"""The agent: a process that holds a home's opened keys for some hours and signs for its user.

It listens on a Unix socket in the folder of the keys, which only the user can enter, and answers
only processes of that user. A question and its answer are one JSON line each. The passphrase
reaches it through a pipe, never through arguments or the environment.
"""

import contextlib
import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate_protocol.units import Address, Signature
from quorate_runtime.keys.key_errors import KeystoreError

SOCKET = "agent.sock"
LINE_BYTES_MAX = 1024
ANSWER_SECONDS = 5.0
START_SECONDS = 60.0
SECONDS_MAX = 7 * 86_400
UNTIL = "until"
PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True)
class Agent:
    """What a running agent says of itself: addresses of its keys, and when it ends."""

    addresses: dict[str, Address]
    until: float  # Unix seconds


@dataclass(slots=True)
class AgentSigner:
    """A signer (`ports.Signer`) whose key is in the agent."""

    keys: Path
    name: str
    address: Address

    def sign(self, digest: bytes) -> Signature:
        """KeystoreError if the agent has ended."""
        found = _ask(self.keys, {"do": "sign", "key": self.name, "digest": digest.hex()})
        if found is None or "signature" not in found:
            raise KeystoreError("the agent has ended; run the command again")
        return Signature(bytes.fromhex(found["signature"]))


def agent_of(keys: Path) -> Agent | None:
    found = _ask(keys, {"do": "about"})
    if found is None or UNTIL not in found:
        return None
    until = float(found.pop(UNTIL))
    return Agent({name: Address(bytes.fromhex(text)) for name, text in found.items()}, until)


def lock(keys: Path) -> bool:
    """Ends the agent of a folder of keys. Returns whether one ran."""
    return _ask(keys, {"do": "lock"}) is not None


def start(keys: Path, names: Sequence[str], passphrase: str, seconds: int) -> Agent:
    """Starts an agent that holds the named account keys of a folder, in place of one that runs.
    Raises KeystoreError with the reason if it cannot open the keys.
    """
    lock(keys)
    words = [
        sys.executable,
        "-m",
        "quorate_runtime.keys.key_agent",
        str(keys),
        str(seconds),
        *names,
    ]
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        process.stdin.write(passphrase + "\n")
        process.stdin.close()
        said = process.stdout.readline().strip()  # it says this once, then closes its output
        if said == "ready":
            # The agent goes on. Leaving the block must not wait for it.
            process.returncode = 0
    found = agent_of(keys)
    if said != "ready" or found is None:
        raise KeystoreError(said or "the agent did not start; give the passphrase to each command")
    return found


@contextmanager
def _address(keys: Path) -> Iterator[str]:
    """Yields a short path of the socket, because the system allows 107 bytes."""
    folder = os.open(keys, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def _ask(keys: Path, question: dict[str, str]) -> dict[str, Any] | None:
    try:
        with (
            _address(keys) as path,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(path)
            if _uid_of(connection) != os.getuid():
                return None
            connection.sendall(json.dumps(question).encode() + b"\n")
            found: Any = json.loads(_line(connection))
    except (OSError, ValueError):  # without an agent the passphrase is asked for
        return None
    return found if isinstance(found, dict) else None


def _line(connection: socket.socket) -> bytes:
    raw = b""
    while b"\n" not in raw and len(raw) <= LINE_BYTES_MAX:
        piece = connection.recv(LINE_BYTES_MAX)
        if not piece:
            break
        raw += piece
    return raw[:LINE_BYTES_MAX]


def _uid_of(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


def _serve(keys: Path, signers: dict[str, Any], until: float) -> None:
    """Answers until the time is over or a client locks. Nothing is written to a disk."""
    with _address(keys) as path, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        before = os.umask(0o177)
        listener.bind(path)
        os.umask(before)
        listener.listen(8)
        _say("ready")
        try:
            while time.time() < until:
                listener.settimeout(min(60.0, max(0.1, until - time.time())))
                try:
                    connection, _ = listener.accept()
                except TimeoutError:  # the end is checked again
                    continue
                with connection:
                    if not _answer(connection, signers, until):
                        return
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _answer(connection: socket.socket, signers: dict[str, Any], until: float) -> bool:
    """Answers one question. Returns False if it asks the agent to end."""
    connection.settimeout(ANSWER_SECONDS)
    goes_on = True
    try:
        if _uid_of(connection) != os.getuid():
            return True
        question = json.loads(_line(connection))
        answer: dict[str, Any] = {}
        match question["do"]:
            case "about":
                answer = {name: key.address.hex() for name, key in signers.items()}
                answer[UNTIL] = until
            case "sign":
                digest = bytes.fromhex(question["digest"])
                if len(digest) == 32 and question["key"] in signers:
                    answer = {"signature": signers[question["key"]].sign(digest).hex()}
            case "lock":
                goes_on = False
            case _:
                pass  # an empty answer
        connection.sendall(json.dumps(answer).encode() + b"\n")
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a broken question gets no answer, and the next one counts
    return goes_on


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)


def main(words: list[str]) -> int:
    """Runs the agent: KEYS SECONDS NAME..., with the passphrase on standard input."""
    # Imported here: the keystore loads ciphers, which the programs that only ask do not need.
    from quorate_protocol.limits import MAINNET
    from quorate_runtime.keys.keystore import Keystore

    folder, seconds, names = Path(words[0]), min(int(words[1]), SECONDS_MAX), words[2:]
    # No other process of this user may read the keys from its memory, and no core dump has them.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    passphrase = sys.stdin.readline().rstrip("\n")
    try:
        keys = Keystore.at(folder, passphrase, MAINNET)  # the files say how they were encrypted
        signers = {name: keys.account(name) for name in names}
        _serve(folder, signers, time.time() + seconds)
    except (KeystoreError, OSError) as error:
        _say(" ".join(str(error).split()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
