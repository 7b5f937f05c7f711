# pragma version 0.4.3
"""
@title Faults
@notice Takes stake and bond for two signatures that contradict each other (PROTOCOL §5): two Commits for one Assignment, two Acks for one
        job. The first time may be an accident, as after a restored backup, and costs little; what follows within 90 days costs ten times as
        much.
@dev No owner and no upgrade: every address is fixed at deployment. It holds no money. The sender gets its gas out of what is taken, never more
     than half, and the rest is burned; so nobody gains by a fault.
"""

import evidence
import orders
import signatures

interface Stakes:
    def key_valid(account: address, key: address, at: uint256) -> bool: view
    def bonded_at(coordinator: address, at: uint256) -> bool: view
    def burn(account: address, isBond: bool, amount: uint256, reward: uint256, receiver: address) -> uint256: nonpayable

struct Ack:
    jobId: bytes32
    pool: bytes32
    ackTime: uint64
    slotBlock: uint64
    eligibleRoot: bytes32
    stateRoot: bytes32
    logRoot: bytes32
    logLength: uint64
    secretHash: bytes32
    rule: uint8
    feeBps: uint16
    escrowed: bool  # the order has an escrow of its own

event FaultProven:
    liable: indexed(address)
    subject: bytes32  # Assignment or job
    at: uint256  # acceptBy, or the time of the later Ack
    taken: uint256

ACK_TYPE: constant(bytes32) = keccak256("Ack(bytes32 jobId,bytes32 pool,uint64 ackTime,uint64 slotBlock,bytes32 eligibleRoot,bytes32 stateRoot,bytes32 logRoot,uint64 logLength,bytes32 secretHash,uint8 rule,uint16 feeBps,bool escrowed)")
FIRST_FAULT_FOR: constant(uint256) = 90 * 86400  # so long after a fault, the next one is a first one again
FIRST_PART: constant(uint256) = 10  # a first fault costs this part of a slot's stake

STAKES: public(immutable(address))
SLOT_STAKE: public(immutable(uint256))
GAS_FEE: public(immutable(uint256))
EVIDENCE_AGE: public(immutable(uint256))

# When an account's last fault was, by its own signatures. Faults that lie within EVIDENCE_AGE of it are the same accident. Older evidence
# does not count, so this alone makes each Assignment and each job count once
last_fault: public(HashMap[address, HashMap[bool, uint256]])  # account -> whether the bond answers -> seconds


@deploy
def __init__(stakes: address, slotStake: uint256, gasFee: uint256, evidenceAge: uint256):
    """Times in seconds, amounts in token units."""
    STAKES = stakes
    SLOT_STAKE = slotStake
    GAS_FEE = gasFee
    EVIDENCE_AGE = evidenceAge


@external
@nonreentrant
def equivocation(assignment: orders.Assignment, assignmentSig: signatures.Sig, one: orders.Commit, oneSig: signatures.Sig,
                 other: orders.Commit, otherSig: signatures.Sig):
    """
    @notice The provider signed two Commits for one Assignment of a bonded coordinator. The first time costs it the job's most pay and a
            tenth of a slot's stake.
    """
    at: uint256 = convert(assignment.acceptBy, uint256)
    self._check_age(at)
    domain: bytes32 = signatures._domain(STAKES)
    place: bytes32 = orders._assignment_digest(domain, assignment)
    key: address = signatures._signer(place, assignmentSig)
    assert staticcall Stakes(STAKES).key_valid(assignment.coordinator, key, at), "assignment"
    assert staticcall Stakes(STAKES).bonded_at(assignment.coordinator, at), "bond"
    assert one.assignmentHash == place and other.assignmentHash == place, "commit"
    first: bytes32 = self._check(domain, assignment.provider, orders._commit_digest(domain, one), oneSig, at)
    assert first != self._check(domain, assignment.provider, orders._commit_digest(domain, other), otherSig, at), "same"
    self._punish(assignment.provider, False, place, at, max(GAS_FEE, evidence._most_pay(assignment.maxDuration, assignment.pricePerHour)))


@external
@nonreentrant
def two_acks(coordinator: address, one: Ack, oneSig: signatures.Sig, other: Ack, otherSig: signatures.Sig):
    """The coordinator signed two Acks for one job, so it could choose between two draws."""
    assert one.jobId == other.jobId, "job"
    domain: bytes32 = signatures._domain(STAKES)
    first: bytes32 = self._check_ack(domain, coordinator, one, oneSig)
    assert first != self._check_ack(domain, coordinator, other, otherSig), "same"
    self._punish(coordinator, True, one.jobId, convert(max(one.ackTime, other.ackTime), uint256), 0)


@internal
@view
def _check_age(at: uint256):
    """Evidence of the future or of a long time ago does not count: an old key may have been stolen."""
    assert at <= block.timestamp, "early"
    assert block.timestamp <= at + EVIDENCE_AGE, "late"


@internal
@view
def _check(domain: bytes32, account: address, digest: bytes32, sig: signatures.Sig, at: uint256) -> bytes32:
    assert staticcall Stakes(STAKES).key_valid(account, signatures._signer(digest, sig), at), "key"
    return digest


@internal
@view
def _check_ack(domain: bytes32, coordinator: address, ack: Ack, sig: signatures.Sig) -> bytes32:
    at: uint256 = convert(ack.ackTime, uint256)
    self._check_age(at)
    return self._check(domain, coordinator, signatures._digest(domain, keccak256(abi_encode(ACK_TYPE, ack))), sig, at)


@internal
def _punish(account: address, isBond: bool, subject: bytes32, at: uint256, pay: uint256):
    """The first fault costs `pay` and a tenth of a slot's stake; another accident within 90 days a whole one."""
    last: uint256 = self.last_fault[account][isBond]
    amount: uint256 = pay + SLOT_STAKE // FIRST_PART
    if last != 0:
        assert at > last + EVIDENCE_AGE, "proven"
        if at < last + FIRST_FAULT_FOR:
            amount = SLOT_STAKE
    self.last_fault[account][isBond] = at
    taken: uint256 = extcall Stakes(STAKES).burn(account, isBond, amount, GAS_FEE, msg.sender)
    log FaultProven(liable=account, subject=subject, at=at, taken=taken)
