# pragma version 0.4.3
"""
@title Beacon
@notice drand rounds (scheme bls-unchained-g1-rfc9380: signature in G1, key in G2), proven by pairing and kept as
        randomness = sha256(compressed signature). Only the court needs them on chain. Refuses a chain without EIP-2537.
@dev Hash to curve: RFC 9380, BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_. Points are EIP-2537's: coordinates of 64 bytes.
"""

event RoundProven:
    round: indexed(uint256)
    randomness: bytes32

MODEXP: constant(address) = 0x0000000000000000000000000000000000000005
G1_ADD: constant(address) = 0x000000000000000000000000000000000000000b
PAIRING: constant(address) = 0x000000000000000000000000000000000000000F
MAP_TO_G1: constant(address) = 0x0000000000000000000000000000000000000010

FIELD: constant(Bytes[48]) = x"1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab"
# (p - 1) / 2, the upper 128 and the lower 256 bits: a larger y sets the sign bit of the compressed point
HALF_HIGH: constant(uint256) = 17282741772707453034394598013407712875
HALF_LOW: constant(uint256) = 80617075055843030690312053732876818007934237714091801549733396136033114903893
DST_PRIME: constant(Bytes[44]) = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_+"  # ends with its own length, 43
MINUS_G2: constant(Bytes[256]) = x"00000000000000000000000000000000024aa2b2f08f0a91260805272dc51051c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb80000000000000000000000000000000013e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049334cf11213945d57e5ac7d055d042b7e000000000000000000000000000000000d1b3cc2c7027888be51d9ef691d77bcb679afda66c73f17f9ee3837a55024f78c71363275a75d75d86bab79f74782aa0000000000000000000000000000000013fa4d4a0ad8b1ce186ed5061789213d993923066dddaf1040bc3ff59f825c78df74f2d75467e25e0f55f8a00fa030ed"

PUBLIC_KEY: immutable(Bytes[256])
GENESIS: public(immutable(uint256))
PERIOD: public(immutable(uint256))

randomness: public(HashMap[uint256, bytes32])  # round -> randomness, zero while nobody proved it


@deploy
def __init__(publicKey: Bytes[256], genesis: uint256, period: uint256):
    """Round r appears at genesis + (r - 1) * period."""
    assert len(publicKey) == 256 and period > 0, "beacon"
    PUBLIC_KEY = publicKey
    GENESIS = genesis
    PERIOD = period
    infinity: Bytes[256] = concat(empty(bytes32), empty(bytes32), empty(bytes32), empty(bytes32), empty(bytes32), empty(bytes32), empty(bytes32), empty(bytes32))
    # A call to an address without code succeeds and returns nothing
    assert len(raw_call(G1_ADD, infinity, max_outsize=128, is_static_call=True)) == 128, "EIP-2537"


@external
def submit(round: uint256, signature: Bytes[128]):
    """Proves one round. A round that is known already is left as it is, so two senders do no harm to each other."""
    if self.randomness[round] != empty(bytes32):
        return
    assert len(signature) == 128 and round > 0, "point"
    message: bytes32 = sha256(slice(convert(convert(round, uint64), bytes32), 24, 8))
    pairs: Bytes[768] = concat(signature, MINUS_G2, self._hash_to_g1(message), PUBLIC_KEY)
    ok: Bytes[32] = raw_call(PAIRING, pairs, max_outsize=32, is_static_call=True)
    assert convert(ok, uint256) == 1, "signature"
    value: bytes32 = sha256(self._compressed(signature))
    self.randomness[round] = value
    log RoundProven(round=round, randomness=value)


@external
@view
def round_at(timestamp: uint256) -> uint256:
    """The newest round that has appeared at a moment; 0 before the first."""
    if timestamp < GENESIS:
        return 0
    return (timestamp - GENESIS) // PERIOD + 1


@external
@view
def first_round_from(timestamp: uint256) -> uint256:
    """The first round that appears at or after a moment."""
    if timestamp <= GENESIS:
        return 1
    return (timestamp - GENESIS - 1) // PERIOD + 2


@external
@view
def time_of(round: uint256) -> uint256:
    """When a round appears."""
    return GENESIS + (round - 1) * PERIOD


@internal
@view
def _hash_to_g1(message: bytes32) -> Bytes[128]:
    """RFC 9380 hash_to_curve; the additions' cofactor is cleared by MAP_TO_G1 itself (EIP-2537)."""
    b0: bytes32 = sha256(concat(empty(bytes32), empty(bytes32), message, x"0080", x"00", DST_PRIME))
    b1: bytes32 = sha256(concat(b0, x"01", DST_PRIME))
    b2: bytes32 = sha256(concat(self._xor(b0, b1), x"02", DST_PRIME))
    b3: bytes32 = sha256(concat(self._xor(b0, b2), x"03", DST_PRIME))
    b4: bytes32 = sha256(concat(self._xor(b0, b3), x"04", DST_PRIME))
    u0: Bytes[64] = self._modulo_field(concat(b1, b2))
    u1: Bytes[64] = self._modulo_field(concat(b3, b4))
    q0: Bytes[128] = raw_call(MAP_TO_G1, u0, max_outsize=128, is_static_call=True)
    q1: Bytes[128] = raw_call(MAP_TO_G1, u1, max_outsize=128, is_static_call=True)
    return raw_call(G1_ADD, concat(q0, q1), max_outsize=128, is_static_call=True)


@internal
@pure
def _xor(a: bytes32, b: bytes32) -> bytes32:
    return convert(convert(a, uint256) ^ convert(b, uint256), bytes32)


@internal
@view
def _modulo_field(number: Bytes[64]) -> Bytes[64]:
    """number ** 1 mod p, as a 64-byte field element."""
    input: Bytes[209] = concat(convert(64, bytes32), convert(1, bytes32), convert(48, bytes32), number, x"01", FIELD)
    rest: Bytes[48] = raw_call(MODEXP, input, max_outsize=48, is_static_call=True)
    return concat(empty(bytes16), rest)


@internal
@pure
def _compressed(point: Bytes[128]) -> Bytes[48]:
    """48-byte form: x, the compression bit, and the sign bit when y is the larger root."""
    high: uint256 = convert(slice(point, 64, 32), uint256)
    low: uint256 = convert(slice(point, 96, 32), uint256)
    flags: uint256 = 1 << 127
    if high > HALF_HIGH or (high == HALF_HIGH and low > HALF_LOW):
        flags |= 1 << 125
    head: uint256 = convert(slice(point, 0, 32), uint256) | flags
    return concat(convert(convert(head, uint128), bytes16), slice(point, 32, 32))
