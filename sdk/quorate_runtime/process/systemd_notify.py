"""Words to systemd (Type=notify): one datagram each to the socket that $NOTIFY_SOCKET names;
nothing where there is none.

https://www.freedesktop.org/software/systemd/man/sd_notify.html. Without libsystemd: the protocol
is a line of text.
"""

import os
import socket
from collections.abc import Mapping

from quorate_protocol.ports import Clock

TEXT_CHARS_MAX = 500


class Notifier:
    """Tells the service manager how this program stands. A manager that does not listen is no
    failure of ours.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, as the manager sets them."""
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        is_ours = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self._watchdog_seconds = (
            _microseconds(environment.get("WATCHDOG_USEC", "")) / 2 if is_ours else 0.0
        )

    def ready(self, text: str = "") -> None:
        """It serves: what waits for this unit may start."""
        self._send("READY=1", text)

    def stopping(self, text: str = "") -> None:
        """It is on its way out."""
        self._send("STOPPING=1", text)

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send("", text)

    async def watch(self, clock: Clock) -> None:
        """Shows at half the watchdog's time that the event loop turns; returns at once where
        nobody watches.
        """
        while self._address and self._watchdog_seconds:
            self._send("WATCHDOG=1")
            await clock.sleep(self._watchdog_seconds)

    def _send(self, word: str, text: str = "") -> None:
        if not self._address:
            return
        lines = [word] if word else []
        if text:
            lines.append("STATUS=" + " ".join(text.split())[:TEXT_CHARS_MAX])
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)
                channel.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            pass  # the manager is gone or its queue is full: it will notice by itself


def _address(text: str) -> str:
    """A path, or @name for the abstract name space; anything else is not a socket of systemd's."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else ""


def _microseconds(text: str) -> float:
    return int(text) / 1_000_000 if text.isascii() and text.isdecimal() and len(text) <= 18 else 0.0


NOBODY = Notifier({})
"""For programs that no manager watches."""
