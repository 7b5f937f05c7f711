# pragma version 0.4.3
"""
@title evidence
@notice What an accuser must show of an execution and of its contradiction, and the check of it (PROTOCOL §5). Field order is signed order.
"""

import orders
import signatures

interface Registry:
    def key_valid(account: address, key: address, at: uint256) -> bool: view
    def bonded_at(coordinator: address, at: uint256) -> bool: view

struct Session:
    client: address
    sessionKey: address
    coordinator: address
    upTo: uint128
    expires: uint64

struct Run:
    index: uint256  # of the Assignment within its job
    blind: bytes32
    assignment: orders.Assignment
    assignmentSig: signatures.Sig
    commit: orders.Commit
    commitSig: signatures.Sig

struct Execution:
    session: Session
    sessionSig: signatures.Sig
    order: orders.Order
    orderSig: signatures.Sig
    run: Run  # the accused's
    contradiction: Run  # another owner's, of the same job

EXACT: constant(uint8) = 1
SESSION_TYPE: constant(bytes32) = keccak256("Session(address client,address sessionKey,address coordinator,uint128 upTo,uint64 expires)")


@internal
@view
def _job(domain: bytes32, e: Execution) -> bytes32:
    """jobId of an order that a jury can judge, with the client's signatures."""
    assert e.order.comparator == EXACT and e.order.caseable, "caseable"
    assert e.order.client == e.session.client and e.order.coordinator == e.session.coordinator, "session"
    assert e.run.assignment.acceptBy <= e.session.expires, "expired"
    signed: bytes32 = signatures._digest(domain, keccak256(abi_encode(SESSION_TYPE, e.session)))
    assert signatures._signer(signed, e.sessionSig) == e.session.client, "session"
    jobId: bytes32 = orders._order_digest(domain, e.order)
    assert signatures._signer(jobId, e.orderSig) == e.session.sessionKey, "order"
    return jobId


@internal
@view
def _run(registry: address, domain: bytes32, jobId: bytes32, order: orders.Order, run: Run) -> bytes32:
    """
    @notice The digest of an Assignment that a bonded coordinator signed for this job, and its provider's Commit. A key counts if it was
            valid at acceptBy, inclusive; that moment lies in the past, so that nobody chooses it.
    """
    assigned: orders.Assignment = run.assignment
    acceptBy: uint256 = convert(assigned.acceptBy, uint256)
    assert acceptBy < block.timestamp, "early"
    assert assigned.assignmentId == orders._assignment_id(jobId, run.index, run.blind), "blind"
    assert assigned.coordinator == order.coordinator, "assignment"
    assert assigned.specHash == order.specHash, "spec"
    assert order.hostClass == empty(bytes32) or order.hostClass == assigned.hostClass, "class"
    assert assigned.priceTier == order.priceTier and assigned.pricePerHour <= order.maxPricePerHour, "price"
    assert assigned.maxDuration <= order.maxDuration, "duration"
    digest: bytes32 = orders._assignment_digest(domain, assigned)
    key: address = signatures._signer(digest, run.assignmentSig)
    assert staticcall Registry(registry).key_valid(order.coordinator, key, acceptBy), "assignment"
    assert staticcall Registry(registry).bonded_at(order.coordinator, acceptBy), "bond"
    assert run.commit.assignmentHash == digest, "commit"
    key = signatures._signer(orders._commit_digest(domain, run.commit), run.commitSig)
    assert staticcall Registry(registry).key_valid(assigned.provider, key, acceptBy), "commit"
    return digest


@internal
@pure
def _most_pay(assigned: orders.Assignment) -> uint256:
    """
    @notice maxDuration × price: the most that the Assignment can pay. What the provider signed as its usage counts for nothing, because it
            alone chose it.
    """
    return convert(assigned.maxDuration, uint256) * convert(assigned.pricePerHour, uint256) // 3600
