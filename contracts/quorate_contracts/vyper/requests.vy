# pragma version 0.4.3
"""
@title requests
@notice What an owner may sign for a relayer to send (PROTOCOL §2). Field order is signed order.
"""

import signatures

struct Terms:
    nonce: uint256  # each account's requests count from 0
    deadline: uint64
    maxFee: uint128  # the most that the relayer gets, in token units

struct Registration:
    account: address
    operatorKey: address
    payout: address
    peerKey: bytes32
    boxKey: bytes32
    network: bytes32

REGISTER_TYPE: constant(bytes32) = keccak256("RegisterRequest(address account,address operatorKey,address payout,bytes32 peerKey,bytes32 boxKey,bytes32 network,uint256 nonce,uint64 deadline,uint128 maxFee)")
OPEN_TYPE: constant(bytes32) = keccak256("OpenSlotsRequest(address account,bytes32 pool,uint8 count,uint256 nonce,uint64 deadline,uint128 maxFee)")
CLOSE_TYPE: constant(bytes32) = keccak256("CloseSlotRequest(address account,bytes32 pool,uint64 place,uint256 nonce,uint64 deadline,uint128 maxFee)")
UNBOND_TYPE: constant(bytes32) = keccak256("UnbondSlotRequest(address account,bytes32 pool,uint64 place,uint256 nonce,uint64 deadline,uint128 maxFee)")
PAYOUT_TYPE: constant(bytes32) = keccak256("ChangePayoutRequest(address account,address payout,uint256 nonce,uint64 deadline,uint128 maxFee)")
EXIT_TYPE: constant(bytes32) = keccak256("ExitRequest(address account,uint256 nonce,uint64 deadline,uint128 maxFee)")


@internal
@pure
def _register(r: Registration, terms: Terms) -> bytes32:
    return keccak256(abi_encode(REGISTER_TYPE, r, terms))


@internal
@pure
def _slots(kind: bytes32, account: address, pool: bytes32, number: uint256, terms: Terms) -> bytes32:
    """`kind`: opening (number = count), closing or unbonding (number = place)."""
    return keccak256(abi_encode(kind, account, pool, number, terms))


@internal
@pure
def _payout(account: address, payout: address, terms: Terms) -> bytes32:
    return keccak256(abi_encode(PAYOUT_TYPE, account, payout, terms))


@internal
@pure
def _exit(account: address, terms: Terms) -> bytes32:
    return keccak256(abi_encode(EXIT_TYPE, account, terms))


@internal
@view
def _check(account: address, structHash: bytes32, terms: Terms, fee: uint256, nonce: uint256, sig: signatures.Sig):
    """That the account signed this request, for now, for this nonce, and for no lower fee."""
    assert block.timestamp <= convert(terms.deadline, uint256), "expired"
    assert terms.nonce == nonce, "nonce"
    assert fee <= convert(terms.maxFee, uint256), "fee"
    assert signatures._signer(signatures._digest(signatures._domain(self), structHash), sig) == account, "signature"
