"""Checks whether a container engine answers on this machine."""

import os
import re
from pathlib import Path

PROBE_SECONDS = 5


def engine_answers() -> str:
    """ "" when an engine answers, else why not. Blocking."""
    try:
        import docker.errors

        from quorate_node.executors.docker.engine_connection import connect
    except ImportError as error:
        return f"the Docker SDK is not installed: {error}"
    try:
        api = connect(timeout=PROBE_SECONDS)
        try:
            api.ping()
        finally:
            api.close()
    except docker.errors.DockerException as error:
        return _cause(error)
    return ""


def _cause(error: Exception) -> str:
    """Returns the operating system's error inside the engine client's; never ""."""
    found = re.search(
        (
            r"(FileNotFoundError|PermissionError|ConnectionRefusedError|ConnectionError)\(\d+, "
            r"'([^']+)'"
        ),
        str(error),
    )
    at = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    return f"{at}: {found.group(2)}" if found else f"{at}: {str(error).splitlines()[0][:160]}"


def load_image(archive: Path) -> None:
    """Loads an image into the engine once, so that five daemons do not load it at the same moment.
    Blocking.
    """
    from quorate_node.executors.docker.engine_connection import connect
    from quorate_node.executors.docker.image_loader import ImageLoader

    api = connect()
    try:
        ImageLoader(api).ensure(archive, ("python3",))
    finally:
        api.close()
