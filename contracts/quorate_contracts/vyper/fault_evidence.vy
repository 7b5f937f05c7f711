# pragma version 0.4.3
"""
@title fault_evidence
@notice Signed messages that prove a fault by themselves, and their digests (PROTOCOL §5, §6). Field order is signed order.
"""

import evidence
import signatures

SET_MAX: constant(uint256) = 7

struct Ack:
    jobId: bytes32
    hostClass: bytes32
    ackTime: uint64
    slotBlock: uint64
    eligibleRoot: bytes32
    stateRoot: bytes32
    logRoot: bytes32
    logLength: uint64
    secretHash: bytes32
    rule: uint8
    feeBps: uint16
    epoch: uint64

struct Statement:
    provider: address
    final: uint128
    held: uint128
    epoch: uint64
    seq: uint64
    receiptsRoot: bytes32

struct Entry:
    assignmentHash: bytes32
    provider: address
    commitHash: bytes32

struct CommitSet:
    jobId: bytes32
    batch: uint8
    ordered: DynArray[Entry, SET_MAX]
    blindsHash: bytes32  # keccak256 of the blinds, as EIP-712 hashes an array
    beaconRound: uint64
    secret: bytes32
    auditPpm: uint32
    slotsHash: bytes32  # of the slots, likewise
    skipsHash: bytes32
    witnessHash: bytes32
    closedAt: uint64

ACK_TYPE: constant(bytes32) = keccak256("Ack(bytes32 jobId,bytes32 hostClass,uint64 ackTime,uint64 slotBlock,bytes32 eligibleRoot,bytes32 stateRoot,bytes32 logRoot,uint64 logLength,bytes32 secretHash,uint8 rule,uint16 feeBps,uint64 epoch)")
STATEMENT_TYPE: constant(bytes32) = keccak256("Statement(address provider,uint128 final,uint128 held,uint64 epoch,uint64 seq,bytes32 receiptsRoot)")
ENTRY_TYPE: constant(bytes32) = keccak256("CommitEntry(bytes32 assignmentHash,address provider,bytes32 commitHash)")
SET_TYPE: constant(bytes32) = keccak256("CommitSet(bytes32 jobId,uint8 batch,CommitEntry[] ordered,bytes32[] blinds,uint64 beaconRound,bytes32 secret,uint32 auditPpm,uint8[] slots,bytes32 skipsHash,bytes32 witnessHash,uint64 closedAt)CommitEntry(bytes32 assignmentHash,address provider,bytes32 commitHash)")


@internal
@view
def _order(registry: address, order: evidence.Order) -> bytes32:
    return signatures._digest(signatures._domain(registry), keccak256(abi_encode(evidence.ORDER_TYPE, order)))


@internal
@view
def _assignment(registry: address, assignment: evidence.Assignment) -> bytes32:
    return signatures._digest(signatures._domain(registry), keccak256(abi_encode(evidence.ASSIGNMENT_TYPE, assignment)))


@internal
@view
def _commit(registry: address, commit: evidence.Commit) -> bytes32:
    return signatures._digest(signatures._domain(registry), keccak256(abi_encode(evidence.COMMIT_TYPE, commit)))


@internal
@view
def _ack(registry: address, ack: Ack) -> bytes32:
    return signatures._digest(signatures._domain(registry), keccak256(abi_encode(ACK_TYPE, ack)))


@internal
@view
def _statement(registry: address, statement: Statement) -> bytes32:
    return signatures._digest(signatures._domain(registry), keccak256(abi_encode(STATEMENT_TYPE, statement)))


@internal
@view
def _commit_set(registry: address, closed: CommitSet) -> bytes32:
    hashes: DynArray[bytes32, SET_MAX] = []
    for entry: Entry in closed.ordered:
        hashes.append(keccak256(abi_encode(ENTRY_TYPE, entry)))
    # An ABI-encoded list begins with its offset and length, and EIP-712 hashes what follows
    ordered: bytes32 = keccak256(slice(abi_encode(hashes), 64, 32 * len(hashes)))
    body: bytes32 = keccak256(abi_encode(
        SET_TYPE, closed.jobId, closed.batch, ordered, closed.blindsHash, closed.beaconRound, closed.secret, closed.auditPpm, closed.slotsHash,
        closed.skipsHash, closed.witnessHash, closed.closedAt))
    return signatures._digest(signatures._domain(registry), body)


@internal
@pure
def _has(closed: CommitSet, assignment: bytes32, commit: bytes32) -> bool:
    """Whether the set holds this commit."""
    for entry: Entry in closed.ordered:
        if entry.assignmentHash == assignment and entry.commitHash == commit:
            return True
    return False
