# pragma version 0.4.3
"""
@title StakesProofs
@notice Properties of the requests that Stakes' deployed code takes from relayers; see EscrowProofs.
@dev halmos takes ecrecover for any function of its arguments.
"""

interface Vm:
    def getCode(path: String[64]) -> Bytes[24576]: view
    def etch(target: address, code: Bytes[24576]): nonpayable
    def setArbitraryStorage(target: address): nonpayable
    def warp(timestamp: uint256): nonpayable

interface Stakes:
    def change_payout_for(account: address, payout: address, terms: Terms, fee: uint256, sig: Sig): nonpayable

struct Terms:
    nonce: uint256
    deadline: uint64
    maxFee: uint128

struct Sig:
    r: uint256
    s: uint256
    v: uint256

VM: constant(address) = 0x7109709ECfa91a80626fF3989D68f67F5b1DD12D
PLACE: constant(address) = 0x00000000000000000000000000000000E5C20300
HALF_ORDER: constant(uint256) = 57896044618658097711785492504343953926418782139537452191302581570759080747168
MASK40: constant(uint256) = 2**40 - 1


@external
def setUp():
    extcall Vm(VM).etch(PLACE, staticcall Vm(VM).getCode("Stakes.sol:Stakes"))
    extcall Vm(VM).setArbitraryStorage(PLACE)


@external
def transferFrom(owner: address, receiver: address, amount: uint256) -> bool:
    return True


@internal
@pure
def _must(holds: bool):
    if not holds:
        raw_revert(concat(0x4e487b71, convert(1, bytes32)))


@internal
def _is_taken(account: address, payout: address, nonce: uint256, fee: uint256, sig: Sig) -> bool:
    terms: Terms = Terms(nonce=nonce, deadline=max_value(uint64), maxFee=max_value(uint128))
    selector: bytes4 = method_id("change_payout_for(address,address,(uint256,uint64,uint128),uint256,(uint256,uint256,uint256))", output_type=bytes4)
    data: Bytes[324] = concat(selector, abi_encode(account, payout, terms, fee, sig))
    return raw_call(PLACE, data, revert_on_failure=False)


@external
def check_a_request_with_a_malleable_signature_is_refused(account: address, payout: address, nonce: uint256, fee: uint256, r: uint256, s: uint256, v: uint256, now: uint256):
    assert now <= MASK40
    extcall Vm(VM).warp(now)
    self._must(not self._is_taken(account, payout, nonce, fee, Sig(r=r, s=s, v=v)) or s <= HALF_ORDER)


@external
def check_a_request_is_taken_once(account: address, payout: address, nonce: uint256, fee: uint256, r: uint256, s: uint256, v: uint256, now: uint256):
    assert now <= MASK40
    extcall Vm(VM).warp(now)
    if self._is_taken(account, payout, nonce, fee, Sig(r=r, s=s, v=v)):
        self._must(not self._is_taken(account, payout, nonce, fee, Sig(r=r, s=s, v=v)))
