"""Fixed keys and constants of every simulated market.

Keys are cached, because making one costs more than a step.
"""

from functools import cache

from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Address, Round, Small
from quorate_runtime.keys.bls import keygen, public_key, sign_round
from quorate_runtime.keys.crypto import KeySigner

DOMAIN = Domain(31337, Address(b"\x11" * 20))
FOREIGN = Domain(1, Address(b"\x11" * 20))
GPU_POOL = Pool("L40S", "", Small(2))
"""The pool of run slots in a world with GPUs. A slot has two of them."""
WIDE_POOL = Pool("L40S", "", Small(3))
"""Every third owner's in some worlds with GPUs: their jobs fit it too."""
GENESIS = 1_000
START = 2_000
BEACON_SECRET = keygen(b"simulator-beacon-seed-of-32-bytes")
BEACON = BeaconInfo(public_key(BEACON_SECRET), DEVNET.beacon_period, GENESIS)


@cache
def key(role: str, number: int = 0) -> KeySigner:
    """The key of a role: coordinator, statement, owner, operator, client, session, ..."""
    roles = ("coordinator", "statement", "owner", "operator", "client", "session", "stranger")
    roles += ("posting",)
    return KeySigner(bytes([roles.index(role) + 1, number + 1]) * 16)


@cache
def beacon_signature(number: Round) -> bytes:
    """The signature of a round.

    It is the same in every seed, because the job data that is mixed with it never is.
    """
    return sign_round(BEACON_SECRET, number)


def is_beacon_signature(public: bytes, number: int, signature: bytes) -> bool:
    """`receipt_draws.VerifyRound` without a pairing: BLS signatures are unique."""
    return public == BEACON.public_key and signature == beacon_signature(Round(number))
