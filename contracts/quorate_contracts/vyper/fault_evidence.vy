# pragma version 0.4.3
"""
@title fault_evidence
@notice Signed messages that prove a fault by themselves, and their digests (PROTOCOL §5, §6). Field order is signed order.
"""

import evidence
import signatures

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

ACK_TYPE: constant(bytes32) = keccak256("Ack(bytes32 jobId,bytes32 hostClass,uint64 ackTime,uint64 slotBlock,bytes32 eligibleRoot,bytes32 stateRoot,bytes32 logRoot,uint64 logLength,bytes32 secretHash,uint8 rule,uint16 feeBps,uint64 epoch)")

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
