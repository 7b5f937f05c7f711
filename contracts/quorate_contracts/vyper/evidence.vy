# pragma version 0.4.3
"""
@title evidence
@notice What a case must show for each execution, and its check (PROTOCOL §5). Field order is signed order.
"""

import signatures

interface Registry:
    def key_valid(account: address, key: address, at: uint256) -> bool: view

struct Session:
    client: address
    sessionKey: address
    coordinator: address
    upTo: uint128
    expires: uint64

struct Order:
    client: address
    coordinator: address
    specHash: bytes32
    inputRoot: bytes32
    maxPricePerHour: uint128
    budget: uint128
    maxExecutions: uint8
    auditPremiumBps: uint16
    maxFeeBps: uint16
    verifyTier: uint8
    comparator: uint8
    caseable: bool
    hostClass: bytes32
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
    hostClass: bytes32
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

struct Execution:
    session: Session
    sessionSig: signatures.Sig
    order: Order
    orderSig: signatures.Sig
    index: uint256  # of the Assignment within its job
    blind: bytes32
    assignment: Assignment
    assignmentSig: signatures.Sig
    commit: Commit
    commitSig: signatures.Sig

EXACT: constant(uint8) = 1
MASK80: constant(uint256) = 2**80 - 1
SESSION_TYPE: constant(bytes32) = keccak256("Session(address client,address sessionKey,address coordinator,uint128 upTo,uint64 expires)")
ORDER_TYPE: constant(bytes32) = keccak256("Order(address client,address coordinator,bytes32 specHash,bytes32 inputRoot,uint128 maxPricePerHour,uint128 budget,uint8 maxExecutions,uint16 auditPremiumBps,uint16 maxFeeBps,uint8 verifyTier,uint8 comparator,bool caseable,bytes32 hostClass,address witness,bool acceptUnwitnessed,bool acceptUnverified,bytes32 sealedKeyHash,uint8 maxRecipients,uint64 expiry,uint256 nonce)")
ASSIGNMENT_TYPE: constant(bytes32) = keccak256("Assignment(bytes32 assignmentId,address coordinator,address provider,bytes32 specHash,bytes32 hostClass,uint128 pricePerHour,uint64 maxDuration,uint64 acceptBy)")
COMMIT_TYPE: constant(bytes32) = keccak256("Commit(bytes32 assignmentHash,bytes32 classId,bytes32 commitment,bytes32 encryptedOutput,uint64 usageMs,uint64 beaconRound)")


@internal
@view
def _check(registry: address, domain: bytes32, e: Execution, age: uint256) -> bytes32:
    """All that one execution must show; returns the Assignment's digest. A key counts if it was valid at acceptBy, inclusive."""
    acceptBy: uint256 = convert(e.assignment.acceptBy, uint256)
    assert block.timestamp <= acceptBy + convert(e.assignment.maxDuration, uint256) + age, "late"
    assert e.order.comparator == EXACT and e.order.caseable, "caseable"
    assert e.order.client == e.session.client and e.order.coordinator == e.session.coordinator, "session"
    assert acceptBy <= convert(e.session.expires, uint256), "expired"
    assert signatures._signer(signatures._digest(domain, keccak256(abi_encode(SESSION_TYPE, e.session))), e.sessionSig) == e.session.client, "session"
    jobId: bytes32 = signatures._digest(domain, keccak256(abi_encode(ORDER_TYPE, e.order)))
    assert signatures._signer(jobId, e.orderSig) == e.session.sessionKey, "order"
    assert e.assignment.assignmentId == keccak256(abi_encode(jobId, e.index, e.blind)), "blind"
    assert e.assignment.coordinator == e.order.coordinator and e.assignment.specHash == e.order.specHash, "assignment"
    assert e.order.hostClass == empty(bytes32) or e.order.hostClass == e.assignment.hostClass, "class"
    assert e.assignment.pricePerHour <= e.order.maxPricePerHour, "price"
    assignment: bytes32 = signatures._digest(domain, keccak256(abi_encode(ASSIGNMENT_TYPE, e.assignment)))
    key: address = signatures._signer(assignment, e.assignmentSig)
    assert staticcall Registry(registry).key_valid(e.order.coordinator, key, acceptBy), "assignment"
    assert e.commit.assignmentHash == assignment, "commit"
    key = signatures._signer(signatures._digest(domain, keccak256(abi_encode(COMMIT_TYPE, e.commit))), e.commitSig)
    assert staticcall Registry(registry).key_valid(e.assignment.provider, key, acceptBy), "commit"
    return assignment


@internal
@pure
def _pay_named(e: Execution) -> uint256:
    """min(budget, usage × rate). Usage counts up to maxDuration, so that the bond covers every juror."""
    usage: uint256 = min(convert(e.commit.usageMs, uint256), convert(e.assignment.maxDuration, uint256) * 1000)
    pay: uint256 = min(usage * convert(e.assignment.pricePerHour, uint256) // 3600000, convert(e.order.budget, uint256))
    assert pay <= MASK80, "amount"
    return pay
