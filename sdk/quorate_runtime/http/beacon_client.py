"""Reads a beacon in drand's format over HTTP, and verifies every round that it returns.

The same adapter works with drand's own HTTP API (quicknet) and with the devnet's local beacon. It
raises `Unavailable` if a relay (a server that passes rounds on) does not answer or lies. It returns
None only for a round that has not appeared yet.
"""

from collections import OrderedDict

import aiohttp

from quorate_protocol.codec.canonical import loads
from quorate_protocol.messages.beacon_rounds import round_time
from quorate_protocol.messages.ports import BeaconInfo, BeaconRound, Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Round, Seconds
from quorate_runtime.keys import bls

ROUNDS_KEPT = 256
ANSWER_BYTES_MAX = 16 << 10
TRIES = 3
RETRY_SECONDS = 0.2
TIMEOUT_SECONDS = 5.0
SCHEME = "bls-unchained-g1-rfc9380"

_NOT_YET = frozenset({404, 425})


class HttpBeacon:
    """`quorate_protocol.messages.ports.Beacon` over HTTP. The caller owns the session. `info` comes
    from the deployment, never from a relay.
    """

    def __init__(
        self, url: str, info: BeaconInfo, session: aiohttp.ClientSession, clock: Clock
    ) -> None:
        self.info = info
        self._url = url.rstrip("/")
        self._session = session
        self._clock = clock
        self._rounds: OrderedDict[Round, BeaconRound] = OrderedDict()

    async def round(self, number: Round) -> BeaconRound | None:
        """Raises `Unavailable` if the relay does not answer or sends a false round."""
        if number < 1:
            return None
        kept = self._rounds.get(number)
        if kept is not None:
            self._rounds.move_to_end(number)
            return kept
        if round_time(self.info, number) > self._clock.now() + self.info.period:
            return None  # too far ahead for any relay, even if the clock is wrong by one period
        found = await self._fetch(number)
        if found is not None:
            self._rounds[number] = found
            while len(self._rounds) > ROUNDS_KEPT:
                self._rounds.popitem(last=False)
        return found

    async def _fetch(self, number: Round) -> BeaconRound | None:
        for attempt in range(TRIES - 1):
            try:
                return await self._try(number)
            except Unavailable:
                await self._clock.sleep(RETRY_SECONDS * 2**attempt)
        return await self._try(number)

    async def _try(self, number: Round) -> BeaconRound | None:
        status, tree = await get_json(self._session, f"{self._url}/public/{number}")
        if status in _NOT_YET:
            return None
        if status != 200 or tree.get("round") != number:
            raise Unavailable(f"beacon {self._url}: HTTP {status} for round {number}")
        signature = _unhex(tree.get("signature"))
        if not bls.verify_round(self.info.public_key, number, signature):
            raise Unavailable(
                f"beacon {self._url}: round {number} does not verify under the agreed key"
            )
        # The relay's own "randomness" is not read: it follows from the signature.
        return BeaconRound(number, signature, bls.randomness(signature))


async def fetch_info(url: str, session: aiohttp.ClientSession) -> BeaconInfo:
    """Fetches what a beacon says about itself (/info).

    Raises Unavailable if there is no usable answer. Use it only for a devnet or a first look. If
    money depends on the key, the key must come from a trusted source.
    """
    status, tree = await get_json(session, f"{url.rstrip('/')}/info")
    period, genesis, key = (
        tree.get("period"),
        tree.get("genesis_time"),
        _unhex(tree.get("public_key")),
    )
    if (
        status != 200
        or type(period) is not int
        or type(genesis) is not int
        or len(key) != bls.PUBLIC_KEY_BYTES
    ):
        raise Unavailable(f"beacon {url}: HTTP {status} without usable /info")
    if not (0 < period < 2**31 and 0 <= genesis < 2**63):
        raise Unavailable(f"beacon {url}: its /info has times that no clock can have")
    if tree.get("schemeID") != SCHEME:
        raise Unavailable(
            f"beacon {url} uses the scheme {str(tree.get('schemeID'))[:40]}, not {SCHEME}"
        )
    return BeaconInfo(key, Seconds(period), genesis)


async def get_json(session: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, object]]:
    """Fetches the status and the JSON object; {} for a status other than 200. Raises Unavailable if
    the server does not answer, sends too many bytes, or sends no JSON object.
    """
    try:
        async with session.get(
            url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS), allow_redirects=False
        ) as response:
            raw = bytearray()
            async for chunk in response.content.iter_chunked(4096):
                raw += chunk
                if len(raw) > ANSWER_BYTES_MAX:
                    raise Unavailable(f"{url}: more than {ANSWER_BYTES_MAX} bytes")
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unavailable(f"{url}: {str(error) or type(error).__name__}") from error
    if status != 200:
        return status, {}
    try:
        tree = loads(bytes(raw))
    except ValueError as error:
        raise Unavailable(f"{url}: not JSON") from error
    if not isinstance(tree, dict):
        raise Unavailable(f"{url}: not a JSON object")
    return status, tree


def _unhex(value: object) -> bytes:
    try:
        return bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        # Text that is not hex fails the verification like any other wrong bytes.
        return b""
