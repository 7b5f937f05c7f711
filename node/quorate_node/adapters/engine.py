"""The one way to connect to a container engine."""

import docker
from docker.utils import kwargs_from_env

CALL_SECONDS = 60


def connect(engine_url: str | None = None, timeout: int = CALL_SECONDS, version: str | None = None) -> docker.APIClient:
    """A client of the named engine, or of the one that the environment names (DOCKER_HOST and its like), or of the usual socket."""
    options = kwargs_from_env()
    if engine_url:
        options = {"base_url": engine_url}
    return docker.APIClient(timeout=timeout, version=version, **options)
