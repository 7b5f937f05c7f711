"""One HTTP request to a server that a stranger named, and where its redirects lead.

The address is checked before the connection, at each redirect again, and each receive has a
deadline. No request carries cookies or a login. Calls block.
"""

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from quorate_content.store.deadline_socket import DeadlineSocket
from quorate_content.store.threads import StopSignal
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.http.client_networks import address_of, is_public

REDIRECTS_MAX = 5
REDIRECTS = (301, 302, 303, 307, 308)
ADDRESSES_MAX = 8
_URL_MAX = 8192
_Address = tuple[str, int] | tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class CheckedHttp:
    """Requests for one purpose. `what` names the server in messages, and `remedy` says what to do
    about a private address.
    """

    what: str
    remedy: str
    may_be_private: bool
    stop: StopSignal
    silence_seconds: float

    @contextmanager
    def request(
        self, url: str, headers: Mapping[str, str], method: str = "GET"
    ) -> Iterator[http.client.HTTPResponse]:
        """Yields the response with its body unread. Redirects are not followed."""
        place = urlsplit(url)
        target = (place.path or "/") + (f"?{place.query}" if place.query else "")
        connection = http.client.HTTPConnection(
            place.hostname or "", place.port
        )  # It only writes and reads; the socket is ours.
        connection.sock = guarded = DeadlineSocket(
            self._connected(place), self.stop, self.silence_seconds, may_drip=False
        )
        sent = {"User-Agent": "quorate", **headers, "Host": place.netloc}
        try:
            connection.request(method, target, headers=sent)
            with connection.getresponse() as response:
                guarded.is_head = False
                yield response
        finally:
            connection.close()

    def _connected(self, place: SplitResult) -> socket.socket:
        """Connects to an address that was checked. It does not look up the name again, because that
        might give another address.
        """
        host, last = place.hostname or "", None
        for family, address in self._addresses(
            host, place.port or (443 if place.scheme == "https" else 80)
        ):
            self.stop.check()
            link = socket.socket(family, socket.SOCK_STREAM)
            try:
                link.settimeout(min(self.silence_seconds, max(0.1, self.stop.left_seconds())))
                link.connect(address)
                if place.scheme == "https":
                    link = ssl.create_default_context().wrap_socket(link, server_hostname=host)
                self.stop.attach(link)
                return link
            except OSError as error:
                # A name may have other addresses. The last error is raised below.
                link.close()
                last = error
        raise last or OSError(f"{host} has no address")

    def _addresses(self, host: str, port: int) -> list[tuple[int, _Address]]:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[:ADDRESSES_MAX]
        except UnicodeError as error:  # a part of the name is empty or too long
            raise Refused(
                Code.MALFORMED,
                f"{self.what} leads to {host[:200]!r}, which is not a valid host name",
            ) from error
        found: list[tuple[int, _Address]] = [
            (family, address)  # type: ignore[misc]  # one of three shapes of tuples
            for family, _, _, _, address in answers
        ]
        if self.may_be_private:
            return found
        public = [
            item
            for item in found
            if (address := address_of(str(item[1][0]))) is not None and is_public(address)
        ]
        if found and not public:
            raise Refused(
                Code.UNSUPPORTED,
                f"{self.what} leads to {host}, in the owner's own network; {self.remedy}",
            )
        return public


def redirect_target(url: str, location: str, what: str = "the registry") -> str:
    """Returns the URL of a redirect. Raises Unavailable if it is invalid or leaves HTTPS."""
    nowhere = Unavailable(f"{what} redirects to an invalid address", 60.0)
    if (
        not location
        or len(location) > _URL_MAX
        or not location.isascii()
        or not location.isprintable()
        or " " in location
    ):
        raise nowhere
    try:
        target = urljoin(url, location)
        place = urlsplit(target)
        is_place = place.hostname and place.username is None and place.port != 0
    except ValueError as error:
        raise nowhere from error
    is_worse = place.scheme != "https" and place.scheme != urlsplit(url).scheme
    if not is_place or is_worse or place.scheme not in ("http", "https"):
        raise nowhere
    return target
