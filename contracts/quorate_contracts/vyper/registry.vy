# pragma version 0.4.3
"""
@title registry
@notice What Stakes logs and returns.
"""

struct Slot:
    owner: address
    operatorKey: address
    payout: address
    network: bytes32
    fromBlock: uint256  # first block in which it can be drawn
    untilBlock: uint256  # first block in which it no longer can; 2**32 - 1 while open

event Registered:
    account: indexed(address)
    index: uint256
    operatorKey: address
    payout: address
    peerKey: bytes32
    boxKey: bytes32
    network: bytes32

event CoordinatorRegistered:
    account: indexed(address)
    index: uint256
    statementKey: address
    postingKey: address

event ClientEnrolled:
    account: indexed(address)
    index: uint256

event KeyRotated:
    account: indexed(address)
    key: address

event PayoutChanged:
    account: indexed(address)
    payout: address

event NetworkChanged:
    account: indexed(address)
    network: bytes32

event PostingKeyChanged:
    account: indexed(address)
    key: address

event SlotOpened:
    hostClass: indexed(bytes32)
    account: indexed(address)
    place: uint256
    fromBlock: uint256

event SlotClosed:
    hostClass: indexed(bytes32)
    account: indexed(address)
    place: uint256
    untilBlock: uint256

event Unbonded:
    account: indexed(address)
    amount: uint256

event Frozen:
    account: indexed(address)
    cases: uint256

event Slashed:
    account: indexed(address)
    amount: uint256
    outBlock: uint256

event Fined:
    account: indexed(address)
    amount: uint256
    outBlock: uint256

event ToppedUp:
    account: indexed(address)
    amount: uint256

event Exited:
    account: indexed(address)
