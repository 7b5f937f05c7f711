"""Captures the output of containers in files.

The executor asks the engine to keep no logs: the engine would use CPU time of the host that no
limit of the job covers. One thread per container reads the engine's attach stream into a file up to
a cap, and then closes the stream. The engine drops the rest. Output is lost that a container writes
while no daemon is attached, between a crash and the restart. Logs are never part of a result.
"""

import socket
import threading
from pathlib import Path

import docker
import docker.errors
import requests
from docker.utils.socket import frames_iter

LOG_BYTES_MAX = 1 << 20
_CUT = b"\n[log cut at 1 MiB]\n"


class LogReaders:
    """The threads that read the output of running containers, one each."""

    def __init__(self, api: docker.APIClient) -> None:
        self._api = api
        self._readers: dict[str, threading.Thread] = {}

    def attach(self, container: str, path: Path) -> None:
        """Starts reading, unless a thread reads already or the file is full.

        Returns once the engine has accepted: later output is not lost.
        """
        if self.is_reading(container) or _size(path) > LOG_BYTES_MAX:
            return
        stream = self._api.attach_socket(container, {"stdout": 1, "stderr": 1, "stream": 1})
        reader = threading.Thread(
            target=_copy, args=(stream, path), name=f"log-{container}", daemon=True
        )
        self._readers[container] = reader
        reader.start()

    def is_reading(self, container: str) -> bool:
        """Returns False once the container has ended and everything is in the file."""
        reader = self._readers.get(container)
        return reader is not None and reader.is_alive()

    def forget(self, container: str) -> None:
        """Drops the record of a removed container."""
        self._readers.pop(container, None)


def _copy(stream: socket.SocketIO, path: Path) -> None:
    written = _size(path)
    try:
        with path.open("ab", buffering=0) as file:
            for _, chunk in frames_iter(stream, tty=False):  # type: ignore[no-untyped-call]
                file.write(chunk[: LOG_BYTES_MAX - written])
                written += len(chunk)
                if written > LOG_BYTES_MAX:
                    file.write(_CUT)
                    break
    except (OSError, requests.exceptions.RequestException, docker.errors.DockerException):
        return  # The engine or the lease's folder is gone. Logs may be lost.
    finally:
        # The response owns the connection. The SDK keeps two handles on the stream, so closing that
        # first would leave the socket open.
        stream._response.close()  # type: ignore[attr-defined]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
