"""A beacon in drand's format over HTTP. Every round is verified before it is returned.

The same adapter speaks to drand's own HTTP API (quicknet) and to the devnet's local beacon. A relay
that is away or lies is `Unavailable`. Only a round that has not appeared yet is None.
"""

from collections import OrderedDict

import aiohttp

from quorate_protocol.codec.canonical import loads
from quorate_protocol.ports import BeaconInfo, BeaconRound, Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.rules.beacon_rounds import round_time
from quorate_protocol.units import Round, Seconds
from quorate_runtime.beacon import bls

ROUNDS_KEPT = 256
ANSWER_BYTES_MAX = 16 << 10
TRIES = 3
RETRY_SECONDS = 0.2
TIMEOUT_SECONDS = 5.0
SCHEME = "bls-unchained-g1-rfc9380"

_NOT_YET = frozenset({404, 425})


class HttpBeacon:
    """`quorate_protocol.ports.Beacon` over HTTP. The session is the caller's. `info` comes from the
    deployment, never from a relay.
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
        """A verified round, or None while it has not appeared. Unavailable when the relay is away
        or sends a false round.
        """
        if number < 1:
            return None
        kept = self._rounds.get(number)
        if kept is not None:
            self._rounds.move_to_end(number)
            return kept
        if round_time(self.info, number) > self._clock.now() + self.info.period:
            return None  # far ahead: no relay has it (one period of clock error is allowed)
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
                # Not re-raised: the last try, below, raises what it meets.
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
    """What a beacon says about itself (/info). Use it for a devnet or a first look only: if money
    depends on the key, it must come from a trusted source.
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
        raise Unavailable(f"beacon {url}: its /info says times that no clock tells")
    if tree.get("schemeID") != SCHEME:
        raise Unavailable(
            f"beacon {url} uses the scheme {str(tree.get('schemeID'))[:40]}, not {SCHEME}"
        )
    return BeaconInfo(key, Seconds(period), genesis)


async def get_json(session: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, object]]:
    """Status and JSON object of a bounded answer ({} for a status other than 200)."""
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
