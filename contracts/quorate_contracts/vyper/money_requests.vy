# pragma version 0.4.3
"""
@title money_requests
@notice What an account may sign for a relayer to send to Escrow (PROTOCOL §2). Field order is signed order.
"""

import requests
import signatures

LOCK_TYPE: constant(bytes32) = keccak256("LockRequest(address account,address payee,uint128 amount,uint256 nonce,uint64 deadline,uint128 maxFee)")
CLOSE_TYPE: constant(bytes32) = keccak256("CloseTabRequest(address account,address payee,uint256 nonce,uint64 deadline,uint128 maxFee)")
WITHDRAW_TYPE: constant(bytes32) = keccak256("WithdrawRequest(address account,uint128 amount,uint256 nonce,uint64 deadline,uint128 maxFee)")


@internal
@pure
def _lock(account: address, payee: address, amount: uint256, terms: requests.Terms) -> bytes32:
    return keccak256(abi_encode(LOCK_TYPE, account, payee, amount, terms))


@internal
@pure
def _close(account: address, payee: address, terms: requests.Terms) -> bytes32:
    return keccak256(abi_encode(CLOSE_TYPE, account, payee, terms))


@internal
@pure
def _withdraw(account: address, amount: uint256, terms: requests.Terms) -> bytes32:
    return keccak256(abi_encode(WITHDRAW_TYPE, account, amount, terms))


@internal
@view
def _check(domain: bytes32, account: address, structHash: bytes32, terms: requests.Terms, fee: uint256, nonce: uint256, sig: signatures.Sig):
    """That the account signed this request, for now, for this nonce, and for no lower fee."""
    assert block.timestamp <= convert(terms.deadline, uint256), "expired"
    assert terms.nonce == nonce, "nonce"
    assert fee <= convert(terms.maxFee, uint256), "fee"
    assert signatures._signer(signatures._digest(domain, structHash), sig) == account, "signature"
