"""Sends requests to a container registry that may be hostile.

The engine does not pull images, because nobody could limit it from outside. It would send the
owner's logins, follow a registry into the owner's own network, unpack what comes, and wait as long
as a slow registry sends. `CheckedHttp` checks each address before the connection, again at every
redirect, and gives each receive a deadline. Uses the registry's HTTP API,
version 2 (https://distribution.github.io/distribution/spec/api/), with the anonymous token of
public registries (https://distribution.github.io/distribution/spec/auth/token/).
"""

import http.client
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from quorate_content.dag.content_limits import TruncatedSource
from quorate_content.images.image_names import scheme_of
from quorate_content.store.checked_http import (
    REDIRECTS,
    REDIRECTS_MAX,
    CheckedHttp,
    redirect_target,
)
from quorate_content.store.threads import StopSignal
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Code, Refused, Unavailable

TOKEN_BYTES_MAX = 64 << 10
CHUNK_BYTES = 64 << 10
_CHALLENGE = re.compile(r'(realm|service|scope)="([^"]{0,1000})"')


@dataclass(frozen=True, slots=True)
class TransferRate:
    """How fast a registry must send. The least rate is an average over a whole image, after a grace
    time. `silence_seconds` is the longest time without a byte.
    """

    bytes_per_second_min: int = 128 << 10
    grace_seconds: float = 30.0
    silence_seconds: float = 30.0


class RegistryHttp:
    """Requests to one repository of one registry, for one fetch. Blocking. `may_be_private`: the
    registry's address may be private, because the owner named this image or it is a devnet.
    `basic`: the login of the image's client, as an Authorization header; "" for none. It goes to
    the registry, and to the HTTPS server of its tokens.
    """

    def __init__(
        self,
        host: str,
        path: str,
        may_be_private: bool,
        stop: StopSignal,
        rate: TransferRate,
        basic: str = "",
    ) -> None:
        self._host, self._path = host, path
        self._stop, self._rate = stop, rate
        self._http = CheckedHttp(
            f"image: the registry {host}",
            "only an image named with --image may come from there",
            may_be_private,
            stop,
            rate.silence_seconds,
        )
        self._token, self._basic, self._sends_basic = "", basic, False
        self._begun, self._received = time.monotonic(), 0

    def head(self, what: str, accept: str) -> None:
        with self._ask("HEAD", what, accept):
            pass

    @contextmanager
    def get(self, what: str, accept: str = "*/*") -> Iterator[http.client.HTTPResponse]:
        """Yields the response to `/v2/<path>/<what>`, with its body unread. Raises Refused(UNKNOWN)
        if the registry demands a login for it, Unavailable if the registry fails.
        """
        with self._ask("GET", what, accept) as response:
            yield response

    @contextmanager
    def _ask(self, method: str, what: str, accept: str) -> Iterator[http.client.HTTPResponse]:
        url = f"{scheme_of(self._host)}://{self._host}/v2/{self._path}/{what}"
        try:
            with self._follow_redirects(method, url, accept) as response:
                yield response
        except (OSError, http.client.HTTPException, TruncatedSource) as error:
            self._stop.check()
            raise Unavailable(
                f"the registry {self._host} cannot be reached or closed the connection ({error})",
                10.0,
            ) from error

    def chunks(self, response: http.client.HTTPResponse, bytes_max: int) -> Iterator[bytes]:
        """Yields the body in chunks. Raises Refused(MALFORMED) if it is longer than `bytes_max`,
        Unavailable if it is too slow.
        """
        total = 0
        while chunk := response.read1(CHUNK_BYTES):
            total += len(chunk)
            if total > bytes_max:
                raise Refused(
                    Code.MALFORMED,
                    (f"image: the registry {self._host} sends more than {bytes_max} bytes"),
                )
            self._check_rate(len(chunk))
            yield chunk
        self._stop.check()  # a connection that `stop` closed looks like one that ended

    def _check_rate(self, count: int) -> None:
        self._stop.check()
        self._received += count
        lasted = time.monotonic() - self._begun - self._rate.grace_seconds
        if self._received < lasted * self._rate.bytes_per_second_min:
            raise Unavailable(
                f"the registry {self._host} sends less than {self._rate.bytes_per_second_min} "
                "bytes a second",
                10.0,
            )

    @contextmanager
    def _follow_redirects(
        self, method: str, url: str, accept: str
    ) -> Iterator[http.client.HTTPResponse]:
        home, is_renewed = (
            urlsplit(url).netloc,
            False,
        )  # A token may expire in the middle of a large image.
        for _ in range(REDIRECTS_MAX + 1):
            is_home = urlsplit(url).netloc == home
            with self._request(url, accept, is_home, method) as response:
                if response.status == 401 and not is_renewed:
                    self._token, is_renewed = "", True
                    challenge = response.headers.get("WWW-Authenticate", "")
                    self._sends_basic = bool(self._basic) and challenge.startswith("Basic ")
                    if not self._sends_basic:
                        self._token = self._fetched_token(challenge)
                elif response.status in REDIRECTS:
                    url = redirect_target(url, response.headers.get("Location", ""))
                else:
                    self._check_status(response.status)
                    yield response
                    return
        raise Unavailable(f"the registry {self._host} redirects too often", 60.0)

    def _check_status(self, status: int) -> None:
        if status in (401, 403, 404):
            raise Refused(
                Code.UNKNOWN,
                f"image: the registry {self._host} has nothing at {self._path} that is "
                f"readable {'with this' if self._basic else 'without a'} login ({status})",
            )
        if status != 200:
            raise Unavailable(f"the registry {self._host} answers {status}", 10.0)

    def _fetched_token(self, challenge: str) -> str:
        realm, parts = challenge_of(challenge)
        if not realm:
            raise Refused(
                Code.UNKNOWN,
                f"image: the registry {self._host} wants a login; rentals have --registry-login",
            )
        url = redirect_target(f"{scheme_of(self._host)}://{self._host}/", realm)
        is_safe = url.startswith("https://") or urlsplit(url).netloc == self._host
        url = f"{url}{'&' if '?' in url else '?'}{urlencode(parts)}"
        basic = self._basic if is_safe else ""
        with self._request(url, "*/*", is_home=False, authorization=basic) as response:
            self._check_status(response.status)
            body = b"".join(self.chunks(response, TOKEN_BYTES_MAX))
        try:
            token = token_in(body)
        except ValueError as error:
            raise Unavailable(f"the registry {self._host} sent no token: {error}", 60.0) from error
        if not token:
            raise Unavailable(f"the registry {self._host} sent no token", 60.0)
        return token

    @contextmanager
    def _request(
        self, url: str, accept: str, is_home: bool, method: str = "GET", authorization: str = ""
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Accept": accept}
        if is_home and (self._token or self._sends_basic):
            authorization = f"Bearer {self._token}" if self._token else self._basic
        if authorization:
            headers["Authorization"] = authorization
        with self._http.request(url, headers, method) as response:
            yield response


def challenge_of(header: str) -> tuple[str, dict[str, str]]:
    """Returns the realm of a WWW-Authenticate header ("" if it has none) and what to ask it."""
    parts = dict(_CHALLENGE.findall(header))
    realm = parts.pop("realm", "")
    return (realm if header.startswith("Bearer ") else ""), parts


def token_in(body: bytes) -> str:
    """Returns the token that a registry sent, or "". Raises ValueError if it is not JSON."""
    tree = canonical.loads(body)
    token = (tree.get("token") or tree.get("access_token")) if isinstance(tree, dict) else None
    is_token = isinstance(token, str) and token.isascii() and token.isprintable()
    return str(token) if is_token else ""
