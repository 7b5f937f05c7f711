"""drand's quicknet scheme `bls-unchained-g1-rfc9380`: short BLS12-381 signatures over round
numbers.

Signature in G1 (48 bytes compressed), public key in G2 (96 bytes compressed), message
sha256(round as 8 bytes big-endian), hashed to the curve by RFC 9380 with the tag below;
randomness is sha256 of the compressed signature. Sources: drand's specification, RFC 9380,
EIP-2537 for the uncompressed forms that the Beacon contract takes.
"""

from hashlib import sha256

from py_arkworks_bls12381 import GT, G1Point, G2Point, Scalar

from quorate_protocol.ports import BeaconRound
from quorate_protocol.units import Round

DOMAIN = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
SIGNATURE_BYTES = 48
PUBLIC_KEY_BYTES = 96
_FIELD_BYTES = 48
_GENERATOR = G2Point()


def keygen(seed: bytes) -> int:
    """A secret scalar from at least 16 bytes of seed, never 0. It is not EIP-2333; it only has to
    be the same each time.
    """
    assert len(seed) >= 16, "a beacon seed has at least 16 bytes"
    wide = sha256(b"quorate beacon 0" + seed).digest() + sha256(b"quorate beacon 1" + seed).digest()
    return int(Scalar.from_be_bytes_mod_order(wide)) or 1


def public_key(secret: int) -> bytes:
    """96-byte compressed G2 point of a secret scalar."""
    return (_GENERATOR * Scalar(secret)).to_compressed_bytes()


def sign_round(secret: int, number: Round) -> bytes:
    """48-byte compressed signature of one round (0.2 ms)."""
    return (_message_point(number) * Scalar(secret)).to_compressed_bytes()


def verify_round(key: bytes, number: Round, signature: bytes) -> bool:
    """Whether a compressed signature is that of the round under a compressed key (1.4 ms). False
    for anything malformed.
    """
    if len(key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        # from_compressed_bytes checks curve and subgroup.
        point, key_point = (
            G1Point.from_compressed_bytes(signature),
            G2Point.from_compressed_bytes(key),
        )
    except ValueError:
        # Not re-raised: bytes that encode no point are a wrong signature.
        return False
    if point == G1Point.identity() or key_point == G2Point.identity():
        return False
    return GT.pairing_check([point, -_message_point(number)], [_GENERATOR, key_point])


def randomness(signature: bytes) -> bytes:
    """The 32 random bytes of a round: sha256 of its compressed signature."""
    return sha256(signature).digest()


def beacon_round(secret: int, number: Round) -> BeaconRound:
    """A signed round with its randomness."""
    signature = sign_round(secret, number)
    return BeaconRound(number, signature, randomness(signature))


def signature_words(signature: bytes) -> tuple[int, int, int, int]:
    """A compressed signature as the four words (x high, x low, y high, y low) of EIP-2537, which
    `Beacon.submit` takes. ValueError when the bytes are no point of the group.
    """
    a, b, c, d = _words(G1Point.from_compressed_bytes(signature).to_xy_bytes_be())
    return a, b, c, d


def public_key_words(key: bytes) -> tuple[int, ...]:
    """A compressed public key as the eight words (x0, x1, y0, y1; each high, low) of EIP-2537.
    ValueError when the bytes are no point of the group.
    """
    return _words(G2Point.from_compressed_bytes(key).to_xy_bytes_be())


def pairing_probes() -> tuple[bytes, bytes]:
    """Two inputs of EIP-2537's pairing check, each of two pairs of points. The answer to the first
    is one, to the second zero.
    """
    one, other = (
        words_bytes(_words(G1Point().to_xy_bytes_be())),
        words_bytes(_words((-G1Point()).to_xy_bytes_be())),
    )
    two = words_bytes(_words(_GENERATOR.to_xy_bytes_be()))
    return one + two + other + two, one + two + one + two


def map_probe() -> tuple[bytes, bytes]:
    """A field element as EIP-2537's map to G1 takes it, and the point that the map gives."""
    element = (7).to_bytes(_FIELD_BYTES, "big")
    return element.rjust(64, b"\0"), words_bytes(
        _words(G1Point.map_from_fp_be(element).to_xy_bytes_be())
    )


def words_bytes(words: tuple[int, ...]) -> bytes:
    """Words joined: the 128 (signature) or 256 (key) bytes that a precompile takes."""
    return b"".join(word.to_bytes(32, "big") for word in words)


def _message_point(number: Round) -> G1Point:
    return G1Point.hash_to_curve(sha256(number.to_bytes(8, "big")).digest(), DOMAIN)


def _words(coordinates: bytes) -> tuple[int, ...]:
    # Each 48-byte field element becomes 64 bytes: 16 zero bytes in front, split into two words.
    padded = b"".join(
        bytes(16) + coordinates[i : i + _FIELD_BYTES]
        for i in range(0, len(coordinates), _FIELD_BYTES)
    )
    return tuple(int.from_bytes(padded[i : i + 32], "big") for i in range(0, len(padded), 32))
