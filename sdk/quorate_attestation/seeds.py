"""The seeds of a challenge, and the tiles and chains that a sample draws.

All are SHA-256 of a tag and of what was known at that time. So a seed of a stage is unknown until
every verifier has sent its nonce for that stage.
"""

from quorate_attestation.parameters import Parameters
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.units import Address, Hash32, Round

TAG = b"gpu-chal/1"
MASK = (1 << 64) - 1

Tile = tuple[int, int, int]
"""Round, row and block of an opened tile."""

Chain = tuple[int, int]
"""Batch and number of an opened chain."""


def gpu_hash(uuid: str) -> Hash32:
    """SHA-256 of a tag and the UUID."""
    return sha256(TAG + b"/uuid" + uuid.encode())


def base_seed(
    domain: Domain,
    beacon_round: Round,
    randomness: bytes,
    provider: Address,
    peer_key: Hash32,
    index: int,
    uuid: str,
) -> Hash32:
    """Binds deployment, round, provider, peer key, place and UUID: a proof for one of them is
    worthless for another.
    """
    return sha256(
        TAG
        + domain.separator()
        + beacon_round.to_bytes(8, "big")
        + sha256(randomness)
        + provider
        + peer_key
        + index.to_bytes(2, "big")
        + gpu_hash(uuid)
    )


def stage_seed(
    base: Hash32, stage: int, nonces: tuple[Hash32, ...], earlier: tuple[Hash32, ...]
) -> Hash32:
    """Of base, the verifiers' nonces, and all roots committed before."""
    head = TAG + b"/stage" + base + stage.to_bytes(1, "big") + len(nonces).to_bytes(1, "big")
    return sha256(head + b"".join(nonces) + b"".join(earlier))


def stream_seed(seed: Hash32, label: bytes, number: int = 0, root: bytes = b"") -> int:
    """The 64-bit seed of one stream of words (`arithmetic.word_stream`)."""
    data = TAG + b"/stream" + seed + label + number.to_bytes(4, "big") + root
    return int.from_bytes(sha256(data)[:8], "little")


def right_seed(beacon_round: Round, randomness: bytes) -> int:
    """All challenges of one beacon round share the right matrix."""
    data = TAG + b"/right" + beacon_round.to_bytes(8, "big") + sha256(randomness)
    return int.from_bytes(sha256(data)[:8], "little")


def round_seeds(seed: Hash32, number: int, earlier_root: bytes) -> tuple[int, int]:
    """Of its left matrix, and of its fingerprints' salt."""
    return (
        stream_seed(seed, b"left", number, earlier_root),
        stream_seed(seed, b"salt", number, earlier_root),
    )


def batch_seed(seed: Hash32, number: int, earlier_root: bytes) -> int:
    """Of the states in which its chains start."""
    return stream_seed(seed, b"chain", number, earlier_root)


def drawn_tiles(seed: Hash32, parameters: Parameters) -> tuple[Tile, ...]:
    """A tile can be drawn twice."""
    return tuple(
        (
            _below(word, 0, parameters.rounds),
            _below(word, 8, parameters.order),
            _below(word, 16, parameters.blocks),
        )
        for word in (_word(seed, b"tile", number) for number in range(parameters.tiles))
    )


def drawn_chains(seed: Hash32, parameters: Parameters, number: int) -> tuple[Chain, ...]:
    """`number` is the pass, 0 or 1."""
    label = b"chain%d" % number
    words = (_word(seed, label, index) for index in range(parameters.chains_opened))
    return tuple(
        (_below(word, 0, parameters.batches), _below(word, 8, parameters.chains)) for word in words
    )


def _word(seed: Hash32, label: bytes, number: int) -> bytes:
    return sha256(TAG + b"/draw" + seed + label + number.to_bytes(4, "big"))


def _below(word: bytes, at: int, count: int) -> int:
    return int.from_bytes(word[at : at + 8], "big") % count
