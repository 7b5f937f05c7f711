"""Connects to a container engine."""

import socket

import docker
from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool
from docker.utils import kwargs_from_env
from requests.adapters import BaseAdapter

CALL_SECONDS = 60


def connect(
    engine_url: str | None = None, timeout: int = CALL_SECONDS, version: str | None = None
) -> docker.APIClient:
    """The environment names an engine by DOCKER_HOST and the like. `timeout` in seconds."""
    options = kwargs_from_env()
    if engine_url:
        options = {"base_url": engine_url}
    return _Client(timeout=timeout, version=version, **options)


class _Client(docker.APIClient):
    """The SDK's client, with connections that close their sockets.

    The SDK calls the engine in its constructor, so this class replaces its adapter before that.
    """

    def mount(self, prefix: str | bytes, adapter: BaseAdapter) -> None:
        if isinstance(adapter, UnixHTTPAdapter):
            self._custom_adapter = adapter = _Adapter(
                adapter.socket_path, adapter.timeout, max_pool_size=adapter.max_pool_size
            )
        super().mount(prefix, adapter)


class _Adapter(UnixHTTPAdapter):
    def get_connection(self, url: bytes | str, proxies: object = None) -> UnixHTTPConnectionPool:
        with self.pools.lock:
            if url not in self.pools:
                self.pools[url] = _Pool(
                    str(url), self.socket_path, self.timeout, maxsize=self.max_pool_size
                )
            pool: UnixHTTPConnectionPool = self.pools[url]
            return pool


class _Pool(UnixHTTPConnectionPool):
    # the SDK's own code, which its types do not describe
    def _new_conn(self) -> UnixHTTPConnection:  # type: ignore[override]
        # an int, although the types say otherwise
        return _Connection(self.base_url, self.socket_path, self.timeout)  # type: ignore[arg-type]


class _Connection(UnixHTTPConnection):
    """Closes its socket when the engine does not answer; the SDK's class leaves it open.

    The garbage collector would warn of it later, in any code that runs then.
    """

    def connect(self) -> None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(self.timeout)
            link.connect(self.unix_socket)
        except BaseException:
            link.close()
            raise
        self.sock = link
