"""Whether a container engine answers here."""

PROBE_SECONDS = 5


def engine_answers() -> str:
    """"" when one does, else why not. Blocking."""
    try:
        import docker
        import docker.errors
    except ImportError as error:
        return f"the Docker SDK is not installed: {error}"
    try:
        api = docker.APIClient(timeout=PROBE_SECONDS)
        try:
            api.ping()  # type: ignore[no-untyped-call]
        finally:
            api.close()
    except docker.errors.DockerException as error:
        return str(error).splitlines()[0][:160]
    return ""
