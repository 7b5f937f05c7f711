# pragma version 0.4.3
"""
@title evidence
@notice What a case must show for each execution, and its check (PROTOCOL §5). Field order is signed order.
"""

import signatures

interface Registry:
    def key_valid(account: address, key: address, at: uint256) -> bool: view
    def bonded_at(coordinator: address, at: uint256) -> bool: view

PATH_MAX: constant(uint256) = 20

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

struct Run:
    index: uint256  # of the Assignment within its job
    blind: bytes32
    assignment: Assignment
    assignmentSig: signatures.Sig
    commit: Commit
    commitSig: signatures.Sig

struct Job:
    session: Session
    sessionSig: signatures.Sig
    order: Order
    orderSig: signatures.Sig

struct Execution:
    job: Job
    run: Run  # the accused's
    contradiction: Run  # another owner's, of the same job
    path: DynArray[bytes32, PATH_MAX]  # from assignment.specHash up to order.specHash; empty if they are equal

EXACT: constant(uint8) = 1
SESSION_TYPE: constant(bytes32) = keccak256("Session(address client,address sessionKey,address coordinator,uint128 upTo,uint64 expires)")
ORDER_TYPE: constant(bytes32) = keccak256("Order(address client,address coordinator,bytes32 specHash,bytes32 inputRoot,bytes32 termsHash,uint8 priceTier,uint128 maxPricePerHour,uint128 budget,uint64 maxDuration,uint8 maxExecutions,uint16 auditPremiumBps,uint16 maxFeeBps,uint8 verifyTier,uint8 comparator,bool caseable,bytes32 hostClass,address witness,bool acceptUnwitnessed,bool acceptUnverified,bytes32 sealedKeyHash,uint8 maxRecipients,uint64 expiry,uint256 nonce)")
ASSIGNMENT_TYPE: constant(bytes32) = keccak256("Assignment(bytes32 assignmentId,address coordinator,address provider,bytes32 specHash,bytes32 hostClass,uint8 priceTier,uint128 pricePerHour,uint64 maxDuration,uint64 acceptBy)")
COMMIT_TYPE: constant(bytes32) = keccak256("Commit(bytes32 assignmentHash,bytes32 classId,bytes32 commitment,bytes32 encryptedOutput,uint64 usageMs,uint64 beaconRound)")


@internal
@view
def _job(domain: bytes32, job: Job, acceptBy: uint256) -> bytes32:
    """jobId of an order that a jury can judge, with the client's signatures."""
    assert job.order.comparator == EXACT and job.order.caseable, "caseable"
    assert job.order.client == job.session.client and job.order.coordinator == job.session.coordinator, "session"
    assert acceptBy <= convert(job.session.expires, uint256), "expired"
    assert signatures._signer(signatures._digest(domain, keccak256(abi_encode(SESSION_TYPE, job.session))), job.sessionSig) == job.session.client, "session"
    jobId: bytes32 = signatures._digest(domain, keccak256(abi_encode(ORDER_TYPE, job.order)))
    assert signatures._signer(jobId, job.orderSig) == job.session.sessionKey, "order"
    return jobId


@internal
@view
def _run(registry: address, domain: bytes32, jobId: bytes32, order: Order, run: Run, path: DynArray[bytes32, PATH_MAX]) -> bytes32:
    """
    @notice The digest of an Assignment that a bonded coordinator signed for this job, and its provider's Commit. A key counts if it was
            valid at acceptBy, inclusive; that moment lies in the past, so that nobody chooses it.
    """
    acceptBy: uint256 = convert(run.assignment.acceptBy, uint256)
    assert acceptBy < block.timestamp, "early"
    assert staticcall Registry(registry).bonded_at(order.coordinator, acceptBy), "bond"
    assert run.assignment.assignmentId == keccak256(abi_encode(jobId, run.index, run.blind)), "blind"
    assert run.assignment.coordinator == order.coordinator, "assignment"
    assert self._root(run.assignment.specHash, path) == order.specHash, "spec"
    assert order.hostClass == empty(bytes32) or order.hostClass == run.assignment.hostClass, "class"
    assert run.assignment.priceTier == order.priceTier and run.assignment.pricePerHour <= order.maxPricePerHour, "price"
    assignment: bytes32 = signatures._digest(domain, keccak256(abi_encode(ASSIGNMENT_TYPE, run.assignment)))
    key: address = signatures._signer(assignment, run.assignmentSig)
    assert staticcall Registry(registry).key_valid(order.coordinator, key, acceptBy), "assignment"
    assert run.commit.assignmentHash == assignment, "commit"
    key = signatures._signer(signatures._digest(domain, keccak256(abi_encode(COMMIT_TYPE, run.commit))), run.commitSig)
    assert staticcall Registry(registry).key_valid(run.assignment.provider, key, acceptBy), "commit"
    return assignment


@internal
@pure
def _root(leaf: bytes32, path: DynArray[bytes32, PATH_MAX]) -> bytes32:
    """The root of a Merkle path. Each node is the hash of its two children, the smaller one first."""
    node: bytes32 = leaf
    for sibling: bytes32 in path:
        if convert(node, uint256) < convert(sibling, uint256):
            node = keccak256(concat(node, sibling))
        else:
            node = keccak256(concat(sibling, node))
    return node


@internal
@pure
def _claim(assignment: bytes32, run: Run) -> bytes32:
    """What an opening at the decision must fit."""
    return keccak256(abi_encode(assignment, run.assignment.provider, run.commit.commitment))


@internal
@pure
def _pay_at_most(order: Order, run: Run, spent: uint256) -> uint256:
    """
    @notice min(rest of the Order's budget, maxDuration × price): what client and coordinator agreed to. The provider alone signs its
            usage, so that counts for nothing here.
    """
    pay: uint256 = convert(run.assignment.maxDuration, uint256) * convert(run.assignment.pricePerHour, uint256) // 3600
    budget: uint256 = convert(order.budget, uint256)
    return min(pay, budget - min(budget, spent))
