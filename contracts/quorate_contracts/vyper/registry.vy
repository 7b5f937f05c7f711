# pragma version 0.4.3
"""
@title registry
@notice What Stakes logs and returns.
"""

ADDRESSES_MAX: constant(uint256) = 512  # bytes of all addresses of an announcement

struct Slot:
    owner: address
    operatorKey: address
    payout: address
    network: bytes32
    fromBlock: uint256  # first block in which it can be drawn
    untilBlock: uint256  # first block in which it no longer can; 2**32 - 1 while open

struct Lot:
    pool: bytes32
    length: uint256  # of the slot list when the case was opened
    seed: bytes32
    atBlock: uint256  # slots were active in this block, and are now
    openedBy: uint256  # slots were opened by this second
    profilesAt: uint256  # networks are those of this second

event Registered:
    account: indexed(address)
    operatorKey: address
    payout: address
    peerKey: bytes32
    boxKey: bytes32
    network: bytes32

event CoordinatorRegistered:
    account: indexed(address)
    statementKey: address
    postingKey: address

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
    pool: indexed(bytes32)
    account: indexed(address)
    place: uint256
    fromBlock: uint256

event SlotClosed:
    pool: indexed(bytes32)
    account: indexed(address)
    place: uint256
    untilBlock: uint256

event Unbonded:
    account: indexed(address)
    amount: uint256

event Burned:
    account: indexed(address)
    amount: uint256  # taken of the stake or bond
    reward: uint256  # the part of it that the sender of a proof got
    outBlock: uint256  # from this block on all slots are closed; 0 = they stay open

event ToppedUp:
    account: indexed(address)
    amount: uint256

event Exited:
    account: indexed(address)

event Announced:
    coordinator: indexed(address)
    peerKey: bytes32
    addresses: Bytes[ADDRESSES_MAX]
