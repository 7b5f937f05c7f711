# pragma version 0.4.3
"""
@title signatures
@notice EIP-712 digests and who signed them (PROTOCOL §3). Written for this project: the known module for it is AGPL.
"""

struct Sig:
    r: uint256
    s: uint256
    v: uint256

HALF_ORDER: constant(uint256) = 57896044618658097711785492504343953926418782139537452191302581570759080747168
DOMAIN_TYPE: constant(bytes32) = keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")


@internal
@view
def _domain(registry: address) -> bytes32:
    """The registry's EIP-712 domain, recomputed so that a forked chain gets its own."""
    return keccak256(abi_encode(DOMAIN_TYPE, keccak256("Quorate"), keccak256("1"), chain.id, registry))


@internal
@pure
def _digest(domain: bytes32, structHash: bytes32) -> bytes32:
    return keccak256(concat(x"1901", domain, structHash))


@internal
@view
def _signer(digest: bytes32, sig: Sig) -> address:
    """Who signed; a high s or nobody is refused."""
    assert sig.s <= HALF_ORDER, "signature"
    key: address = ecrecover(digest, sig.v, sig.r, sig.s)
    assert key != empty(address), "signature"
    return key
