# pragma version 0.4.3
"""
@title Faults
@notice Takes stake and bonds for faults that signatures prove without a jury (PROTOCOL §5, §6): two Commits for one assignment, and two
        Acks for one job.
@dev No owner and no upgrade: every address is fixed at deployment. The sender gets its gas out of what is taken, and the rest is burned, so
     nobody gains by a fault. Money here = credits + `burned`, which nothing can move.
"""

from ethereum.ercs import IERC20

import evidence
import fault_evidence
import signatures

interface Stakes:
    def key_valid(account: address, key: address, at: uint256) -> bool: view
    def bonded_at(coordinator: address, at: uint256) -> bool: view
    def payout_of(account: address) -> address: view
    def slash(account: address, amount: uint256) -> uint256: nonpayable
    def fine(account: address, amount: uint256) -> uint256: nonpayable

event FaultProven:
    liable: indexed(address)
    kind: uint256
    subject: bytes32  # assignment or job
    slashed: uint256
    burned: uint256

EQUIVOCATION: constant(uint256) = 1
TWO_ACKS: constant(uint256) = 2
SLASH_MULTIPLE: constant(uint256) = 8
FIRST_FAULT_FOR: constant(uint256) = 90 * 86400  # so long after a fault, the next one is a first one again

TOKEN: public(immutable(address))
STAKES: public(immutable(address))
GAS_FEE: public(immutable(uint256))
COORDINATOR_PENALTY: public(immutable(uint256))
EVIDENCE_AGE: public(immutable(uint256))

burned: public(uint256)
credit_of: public(HashMap[address, uint256])
is_proven: public(HashMap[bytes32, bool])  # H(kind, account, subject)
last_fault: HashMap[address, uint256]  # provider -> time


@deploy
def __init__(token: address, stakes: address, gasFee: uint256, coordinatorPenalty: uint256, evidenceAge: uint256):
    """Addresses of the deployment; times in seconds, amounts in token units."""
    TOKEN = token
    STAKES = stakes
    GAS_FEE = gasFee
    COORDINATOR_PENALTY = coordinatorPenalty
    EVIDENCE_AGE = evidenceAge


# ------------------------------------------------------------------------------------------------------------ providers


@external
@nonreentrant
def equivocation(assignment: evidence.Assignment, assignmentSig: signatures.Sig, one: evidence.Commit, oneSig: signatures.Sig,
                 other: evidence.Commit, otherSig: signatures.Sig):
    """The provider signed two Commits for one assignment of a bonded coordinator."""
    at: uint256 = convert(assignment.acceptBy, uint256)
    self._check_age(at)
    place: bytes32 = fault_evidence._assignment(STAKES, assignment)
    key: address = signatures._signer(place, assignmentSig)
    assert staticcall Stakes(STAKES).key_valid(assignment.coordinator, key, at), "assignment"
    assert staticcall Stakes(STAKES).bonded_at(assignment.coordinator, at), "bond"
    assert one.assignmentHash == place and other.assignmentHash == place, "commit"
    first: bytes32 = self._check_commit(assignment.provider, one, oneSig, at)
    assert first != self._check_commit(assignment.provider, other, otherSig, at), "same"
    self._prove(EQUIVOCATION, assignment.provider, place)
    self._punish_provider(assignment.provider, place, self._cost(assignment))


# --------------------------------------------------------------------------------------------------------- coordinators


@external
@nonreentrant
def two_acks(coordinator: address, one: fault_evidence.Ack, oneSig: signatures.Sig, other: fault_evidence.Ack, otherSig: signatures.Sig):
    """The coordinator signed two Acks for one job, so it could choose between two draws."""
    assert one.jobId == other.jobId, "job"
    first: bytes32 = self._check_ack(coordinator, one, oneSig)
    assert first != self._check_ack(coordinator, other, otherSig), "same"
    self._prove(TWO_ACKS, coordinator, one.jobId)
    self._share(TWO_ACKS, coordinator, one.jobId, extcall Stakes(STAKES).slash(coordinator, COORDINATOR_PENALTY))


@external
@nonreentrant
def withdraw(account: address):
    """Pays an account's credit, to its payout address where it is a provider. Anyone may send it."""
    amount: uint256 = self.credit_of[account]
    assert amount > 0, "amount"
    self.credit_of[account] = 0
    receiver: address = staticcall Stakes(STAKES).payout_of(account)
    if receiver == empty(address):
        receiver = account
    assert extcall IERC20(TOKEN).transfer(receiver, amount, default_return_value=True), "token"


# ------------------------------------------------------------------------------------------------------------- internal


@internal
@view
def _check_age(at: uint256):
    """Evidence of the future or of a long time ago does not count: an old key may have been stolen."""
    assert at <= block.timestamp, "early"
    assert block.timestamp <= at + EVIDENCE_AGE, "late"


@internal
@view
def _check_commit(provider: address, commit: evidence.Commit, sig: signatures.Sig, at: uint256) -> bytes32:
    digest: bytes32 = fault_evidence._commit(STAKES, commit)
    assert staticcall Stakes(STAKES).key_valid(provider, signatures._signer(digest, sig), at), "commit"
    return digest


@internal
@view
def _check_ack(coordinator: address, ack: fault_evidence.Ack, sig: signatures.Sig) -> bytes32:
    at: uint256 = convert(ack.ackTime, uint256)
    self._check_age(at)
    digest: bytes32 = fault_evidence._ack(STAKES, ack)
    assert staticcall Stakes(STAKES).key_valid(coordinator, signatures._signer(digest, sig), at), "ack"
    return digest


@internal
@view
def _cost(assignment: evidence.Assignment) -> uint256:
    """The pay for the whole maxDuration, and at least what the prover's gas costs."""
    return max(GAS_FEE, convert(assignment.pricePerHour, uint256) * convert(assignment.maxDuration, uint256) // 3600)


@internal
def _prove(kind: uint256, account: address, subject: bytes32):
    """A fault counts once."""
    fault: bytes32 = keccak256(abi_encode(kind, account, subject))
    assert not self.is_proven[fault], "proven"
    self.is_proven[fault] = True


@internal
def _punish_provider(provider: address, subject: bytes32, cost: uint256):
    """The first fault in 90 days costs the job's pay, as after a restored backup; a later one is a slash."""
    last: uint256 = self.last_fault[provider]
    self.last_fault[provider] = block.timestamp
    taken: uint256 = 0
    if last == 0 or block.timestamp >= last + FIRST_FAULT_FOR:
        taken = extcall Stakes(STAKES).fine(provider, cost)
    else:
        taken = extcall Stakes(STAKES).slash(provider, SLASH_MULTIPLE * cost)
    self._share(EQUIVOCATION, provider, subject, taken)


@internal
def _share(kind: uint256, liable: address, subject: bytes32, taken: uint256):
    """The sender gets its gas, and nobody gets the rest."""
    fee: uint256 = min(GAS_FEE, taken)
    self.credit_of[msg.sender] += fee
    self.burned += taken - fee
    log FaultProven(liable=liable, kind=kind, subject=subject, slashed=taken, burned=taken - fee)
