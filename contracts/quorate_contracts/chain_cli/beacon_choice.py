"""The beacon of a new deployment: drand's quicknet, or one that serves rounds in drand's format.

The contracts keep its key, start and period for ever. They prove signatures of the scheme
`bls-unchained-g1-rfc9380` only, so drand's older chains cannot be used.
"""

from dataclasses import dataclass

from aiohttp import ClientSession

from quorate_protocol.limits import Limits
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Seconds
from quorate_runtime.beacon.beacon_client import fetch_info
from quorate_runtime.beacon.bls import PUBLIC_KEY_BYTES
from quorate_runtime.http.urls import web_url

QUICKNET = "quicknet"
QUICKNET_URL = (
    "https://api.drand.sh/52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971"
)
# The last part of the URL is the hash of these values and of the group, as drand defines it.
QUICKNET_INFO = BeaconInfo(
    bytes.fromhex(
        "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c"
        "8c4b450b6a0a6c3ac6a5776a2d1064510d1fec758c921cc22b0e17e63aaf4bcb"
        "5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
    ),
    Seconds(3),
    1_692_803_367,
)


@dataclass(frozen=True, slots=True)
class BeaconChoice:
    """A beacon, and where the coordinator reads its rounds."""

    url: str
    info: BeaconInfo
    is_own_word: bool  # the key came from the beacon itself, and nothing confirms it


async def choose_beacon(
    text: str, key: str, limits: Limits, session: ClientSession
) -> BeaconChoice:
    """Returns the beacon that `--beacon` (quicknet or a URL) and `--beacon-key` name.

    Raises Refused for another key or another period than the limits have, Unavailable if the
    beacon does not answer.
    """
    wanted = _key(key)
    if text == QUICKNET:
        found = BeaconChoice(QUICKNET_URL, QUICKNET_INFO, is_own_word=False)
    else:
        url = web_url("--beacon", text, "http://127.0.0.1:8546, or it is `quicknet`")
        found = BeaconChoice(url, await fetch_info(url, session), is_own_word=not wanted)
    if wanted and wanted != found.info.public_key:
        said = found.info.public_key.hex()
        raise Refused(Code.MALFORMED, f"--beacon-key: the beacon {text} has another key, {said}")
    if found.info.period != limits.beacon_period:
        raise Refused(
            Code.MALFORMED,
            f"--beacon {text} has a round every {found.info.period} s, and --limits {limits.name} "
            f"needs one every {limits.beacon_period} s: choose other limits or another beacon",
        )
    return found


def _key(text: str) -> bytes:
    if not text:
        return b""
    try:
        key = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        key = b"?"  # not re-raised: its length is refused below
    if len(key) != PUBLIC_KEY_BYTES:
        raise Refused(Code.MALFORMED, f"--beacon-key: a key has {2 * PUBLIC_KEY_BYTES} hex digits")
    return key
