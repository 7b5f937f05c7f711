"""Sends this program's status to systemd (Type=notify), one datagram each.

It does nothing if $NOTIFY_SOCKET is unset. The protocol is a line of text, so libsystemd is not
needed: https://www.freedesktop.org/software/systemd/man/sd_notify.html.
"""

import os
import socket
from collections.abc import Mapping

from quorate_protocol.messages.ports import Clock

TEXT_CHARS_MAX = 500


class Notifier:
    """Sends status lines to the service manager. A manager that does not listen is no error."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, as the manager sets them."""
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        is_ours = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self._watchdog_seconds = (
            _microseconds(environment.get("WATCHDOG_USEC", "")) / 2 if is_ours else 0.0
        )

    def ready(self, text: str = "") -> None:
        """Reports that the program serves, so that units that wait for it may start."""
        self._send("READY=1", text)

    def stopping(self, text: str = "") -> None:
        self._send("STOPPING=1", text)

    def status(self, text: str) -> None:
        self._send("", text)

    async def watch(self, clock: Clock) -> None:
        """Reports twice per watchdog interval that the event loop runs. Returns at once if there is
        no watchdog.
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
            pass  # The manager is gone or its queue is full. Its watchdog will notice.


def _address(text: str) -> str:
    """Returns the address of a socket path, or of @name in the abstract namespace. It returns ""
    for anything else.
    """
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else ""


def _microseconds(text: str) -> float:
    return int(text) / 1_000_000 if text.isascii() and text.isdecimal() and len(text) <= 18 else 0.0


NO_NOTIFIER = Notifier({})
"""For programs that no service manager watches."""
