# pragma version 0.4.3
"""
@title orders
@notice An order and what is signed about one execution of it (PROTOCOL §3). Field order is signed order.
"""

import signatures

struct Order:
    client: address
    coordinator: address
    specHash: bytes32
    inputRoot: bytes32
    termsHash: bytes32
    priceTier: uint8
    maxPricePerHour: uint128
    budget: uint128
    maxDuration: uint64  # seconds of one execution
    maxExecutions: uint8
    auditPremiumBps: uint16
    maxFeeBps: uint16
    verifyTier: uint8
    comparator: uint8
    caseable: bool
    pool: bytes32
    witness: address
    acceptUnwitnessed: bool
    acceptUnverified: bool
    sealedKeyHash: bytes32
    maxRecipients: uint8
    expiry: uint64
    nonce: uint256

struct Assignment:
    assignmentId: bytes32
    coordinator: address
    provider: address
    specHash: bytes32
    pool: bytes32
    priceTier: uint8
    pricePerHour: uint128
    maxDuration: uint64
    acceptBy: uint64

struct Commit:
    assignmentHash: bytes32
    classId: bytes32
    commitment: bytes32
    encryptedOutput: bytes32
    usageMs: uint64
    beaconRound: uint64

ORDER_TYPE: constant(bytes32) = keccak256("Order(address client,address coordinator,bytes32 specHash,bytes32 inputRoot,bytes32 termsHash,uint8 priceTier,uint128 maxPricePerHour,uint128 budget,uint64 maxDuration,uint8 maxExecutions,uint16 auditPremiumBps,uint16 maxFeeBps,uint8 verifyTier,uint8 comparator,bool caseable,bytes32 pool,address witness,bool acceptUnwitnessed,bool acceptUnverified,bytes32 sealedKeyHash,uint8 maxRecipients,uint64 expiry,uint256 nonce)")
ASSIGNMENT_TYPE: constant(bytes32) = keccak256("Assignment(bytes32 assignmentId,address coordinator,address provider,bytes32 specHash,bytes32 pool,uint8 priceTier,uint128 pricePerHour,uint64 maxDuration,uint64 acceptBy)")
COMMIT_TYPE: constant(bytes32) = keccak256("Commit(bytes32 assignmentHash,bytes32 classId,bytes32 commitment,bytes32 encryptedOutput,uint64 usageMs,uint64 beaconRound)")
RECEIPT_TYPE: constant(bytes32) = keccak256("CommitReceipt(bytes32 commitHash,uint64 time)")


@internal
@view
def _order_digest(domain: bytes32, order: Order) -> bytes32:
    """The jobId."""
    return signatures._digest(domain, keccak256(abi_encode(ORDER_TYPE, order)))


@internal
@view
def _assignment_digest(domain: bytes32, assignment: Assignment) -> bytes32:
    return signatures._digest(domain, keccak256(abi_encode(ASSIGNMENT_TYPE, assignment)))


@internal
@view
def _commit_digest(domain: bytes32, commit: Commit) -> bytes32:
    return signatures._digest(domain, keccak256(abi_encode(COMMIT_TYPE, commit)))


@internal
@view
def _receipt_digest(domain: bytes32, commitHash: bytes32, time: uint64) -> bytes32:
    """Of the coordinator's CommitReceipt."""
    return signatures._digest(domain, keccak256(abi_encode(RECEIPT_TYPE, commitHash, time)))


@internal
@pure
def _result_digest(exitStatus: uint16, outputDigest: bytes32) -> bytes32:
    """Two results agree if it is equal."""
    return keccak256(abi_encode(exitStatus, outputDigest))


@internal
@pure
def _commitment(assignmentHash: bytes32, provider: address, salt: bytes32, result: bytes32) -> bytes32:
    """What a Commit holds: the result stays hidden until its salt is shown."""
    return keccak256(abi_encode(assignmentHash, provider, salt, result))


@internal
@pure
def _assignment_id(jobId: bytes32, index: uint256, blind: bytes32) -> bytes32:
    """The blind hides from an auditor which job an Assignment belongs to."""
    return keccak256(abi_encode(jobId, index, blind))
