"""Signs and verifies rounds by drand's quicknet scheme `bls-unchained-g1-rfc9380` (BLS12-381).

A signature is a point of G1 (48 bytes compressed), a public key one of G2 (96 bytes compressed).
The message is sha256 of the round as 8 bytes big-endian. RFC 9380 hashes it to the curve with the
tag below. The randomness is sha256 of the compressed signature.

Sources: drand's specification, RFC 9380, and EIP-2537 for the uncompressed points that the Beacon
contract takes.
"""

from hashlib import sha256

from py_arkworks_bls12381 import GT, G1Point, G2Point, Scalar

from quorate_protocol.messages.ports import BeaconRound
from quorate_protocol.units import Round

DOMAIN = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
SIGNATURE_BYTES = 48
PUBLIC_KEY_BYTES = 96
_FIELD_BYTES = 48
_GENERATOR = G2Point()


def keygen(seed: bytes) -> int:
    """Derives a secret scalar, never 0, from at least 16 bytes of seed. The same seed always gives
    the same scalar. It does not follow EIP-2333.
    """
    assert len(seed) >= 16, "a beacon seed has at least 16 bytes"
    wide = sha256(b"quorate beacon 0" + seed).digest() + sha256(b"quorate beacon 1" + seed).digest()
    return int(Scalar.from_be_bytes_mod_order(wide)) or 1


def public_key(secret: int) -> bytes:
    """Returns the public key of a secret scalar: a compressed point of G2, 96 bytes."""
    return (_GENERATOR * Scalar(secret)).to_compressed_bytes()


def sign_round(secret: int, number: Round) -> bytes:
    """Signs one round: a compressed point of G1, 48 bytes. Takes 0.2 ms."""
    return (_message_point(number) * Scalar(secret)).to_compressed_bytes()


def verify_round(key: bytes, number: Round, signature: bytes) -> bool:
    """Returns whether a compressed signature signs the round under a compressed key. Takes 1.4 ms.
    False for malformed bytes.
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
        return False
    if point == G1Point.identity() or key_point == G2Point.identity():
        return False
    return GT.pairing_check([point, -_message_point(number)], [_GENERATOR, key_point])


def randomness(signature: bytes) -> bytes:
    """Returns the 32 random bytes of a round: sha256 of its compressed signature."""
    return sha256(signature).digest()


def beacon_round(secret: int, number: Round) -> BeaconRound:
    signature = sign_round(secret, number)
    return BeaconRound(number, signature, randomness(signature))


def signature_words(signature: bytes) -> tuple[int, int, int, int]:
    """Turns a compressed signature into four words of EIP-2537 (x high, x low, y high, y low). The
    contract's `Beacon.submit` takes them. Raises ValueError if the bytes are no point of the group.
    """
    a, b, c, d = _words(G1Point.from_compressed_bytes(signature).to_xy_bytes_be())
    return a, b, c, d


def public_key_words(key: bytes) -> tuple[int, ...]:
    """Turns a compressed public key into eight words of EIP-2537 (x0, x1, y0, y1; each high, low).
    Raises ValueError if the bytes are no point of the group.
    """
    return _words(G2Point.from_compressed_bytes(key).to_xy_bytes_be())


def pairing_probes() -> tuple[bytes, bytes]:
    """Returns two inputs for EIP-2537's pairing check, to test whether a chain has it. Each has two
    pairs of points. The check answers one for the first input, zero for the second.
    """
    one, other = (
        words_bytes(_words(G1Point().to_xy_bytes_be())),
        words_bytes(_words((-G1Point()).to_xy_bytes_be())),
    )
    two = words_bytes(_words(_GENERATOR.to_xy_bytes_be()))
    return one + two + other + two, one + two + one + two


def map_probe() -> tuple[bytes, bytes]:
    """Returns an input for EIP-2537's map from a field element to G1, and the point that it must
    give.
    """
    element = (7).to_bytes(_FIELD_BYTES, "big")
    return element.rjust(64, b"\0"), words_bytes(
        _words(G1Point.map_from_fp_be(element).to_xy_bytes_be())
    )


def words_bytes(words: tuple[int, ...]) -> bytes:
    """Joins words to bytes: 128 for a signature, 256 for a key, as a precompile takes them."""
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
