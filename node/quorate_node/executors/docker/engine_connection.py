"""The one way to connect to a container engine."""

import socket

import docker
from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool
from docker.utils import kwargs_from_env
from requests.adapters import BaseAdapter

CALL_SECONDS = 60


def connect(
    engine_url: str | None = None, timeout: int = CALL_SECONDS, version: str | None = None
) -> docker.APIClient:
    """A client of the named engine, or of the one that the environment names (DOCKER_HOST and
    its like), or of the usual socket.
    """
    options = kwargs_from_env()
    if engine_url:
        options = {"base_url": engine_url}
    return _Client(timeout=timeout, version=version, **options)


class _Client(docker.APIClient):
    """The SDK's, over connections that leave no socket behind. It calls the engine while it is
    made: later they could not be exchanged.
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
    # as the SDK's own, which the types do not know
    def _new_conn(self) -> UnixHTTPConnection:  # type: ignore[override]
        # an int, whatever the types say
        return _Connection(self.base_url, self.socket_path, self.timeout)  # type: ignore[arg-type]


class _Connection(UnixHTTPConnection):
    """The SDK's drops its socket, open, where nobody answers: the collector then warns of it in
    whatever runs at that time.
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
