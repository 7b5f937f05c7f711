# pragma version 0.4.3
"""
@title evidence
@notice What an accuser shows of an execution and of its contradiction, and the check of it (PROTOCOL §5). It shows only what does not follow
        from the rest: what the signed messages repeat, they are given here, so that a signature over anything else does not fit.
"""

import orders
import signatures

interface Registry:
    def key_valid(account: address, key: address, at: uint256) -> bool: view

struct Run:
    index: uint256  # of the Assignment within its job
    blind: bytes32
    provider: address
    pricePerHour: uint128
    maxDuration: uint64
    acceptBy: uint64
    assignmentSig: signatures.Sig
    commitment: bytes32
    encryptedOutput: bytes32
    usageMs: uint64
    beaconRound: uint64
    commitSig: signatures.Sig

struct Execution:
    sessionKey: address
    upTo: uint128
    expires: uint64
    sessionSig: signatures.Sig
    order: orders.Order
    orderSig: signatures.Sig
    pool: bytes32  # of both runs
    classId: bytes32  # determinism class of both runs
    run: Run  # the accused's
    contradiction: Run  # another owner's, of the same job

EXACT: constant(uint8) = 1
SESSION_TYPE: constant(bytes32) = keccak256("Session(address client,address sessionKey,address coordinator,uint128 upTo,uint64 expires)")


@internal
@view
def _job(domain: bytes32, e: Execution) -> bytes32:
    """jobId of an order that a jury can judge, with the client's signatures."""
    assert e.order.comparator == EXACT and e.order.caseable, "caseable"
    assert e.order.pool == empty(bytes32) or e.order.pool == e.pool, "class"
    assert e.run.acceptBy <= e.expires, "expired"
    session: bytes32 = keccak256(abi_encode(SESSION_TYPE, e.order.client, e.sessionKey, e.order.coordinator, e.upTo, e.expires))
    assert signatures._signer(signatures._digest(domain, session), e.sessionSig) == e.order.client, "session"
    jobId: bytes32 = orders._order_digest(domain, e.order)
    assert signatures._signer(jobId, e.orderSig) == e.sessionKey, "order"
    return jobId


@internal
@view
def _run(registry: address, domain: bytes32, jobId: bytes32, order: orders.Order, pool: bytes32, classId: bytes32, run: Run) -> bytes32:
    """
    @notice The digest of an Assignment that the coordinator signed for this job, and its provider's Commit. A key counts if it was valid
            at acceptBy, inclusive; that moment lies in the past, so that nobody chooses it.
    """
    acceptBy: uint256 = convert(run.acceptBy, uint256)
    assert acceptBy < block.timestamp, "early"
    assert run.pricePerHour <= order.maxPricePerHour, "price"
    assert run.maxDuration <= order.maxDuration, "duration"
    digest: bytes32 = orders._assignment_digest(domain, orders.Assignment(
        assignmentId=orders._assignment_id(jobId, run.index, run.blind), coordinator=order.coordinator, provider=run.provider,
        specHash=order.specHash, pool=pool, priceTier=order.priceTier, pricePerHour=run.pricePerHour,
        maxDuration=run.maxDuration, acceptBy=run.acceptBy))
    key: address = signatures._signer(digest, run.assignmentSig)
    assert staticcall Registry(registry).key_valid(order.coordinator, key, acceptBy), "assignment"
    key = signatures._signer(orders._commit_digest(domain, orders.Commit(
        assignmentHash=digest, classId=classId, commitment=run.commitment, encryptedOutput=run.encryptedOutput, usageMs=run.usageMs,
        beaconRound=run.beaconRound)), run.commitSig)
    assert staticcall Registry(registry).key_valid(run.provider, key, acceptBy), "commit"
    return digest


@internal
@pure
def _most_pay(duration: uint64, pricePerHour: uint128) -> uint256:
    """
    @notice maxDuration × price: the most that an Assignment can pay. What the provider signed as its usage counts for nothing, because it
            alone chose it.
    """
    return convert(duration, uint256) * convert(pricePerHour, uint256) // 3600
