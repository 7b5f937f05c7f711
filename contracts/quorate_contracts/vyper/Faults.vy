# pragma version 0.4.3
"""
@title Faults
@notice Takes stake and bonds for faults that signatures prove without a jury (PROTOCOL §5, §6): two Commits for one assignment, a result
        that is not opened, two Acks for one job, two Statements of one number, an Ack after retirement, a secret that is not opened.
@dev No owner and no upgrade: every address is fixed at deployment. The sender gets its gas out of what is taken, and the rest is burned, so
     nobody gains by a fault. Money here = bonds of open demands + credits + `burned`, which nothing can move.
"""

from ethereum.ercs import IERC20

import evidence
import fault_evidence
import signatures

interface Stakes:
    def key_valid(account: address, key: address, at: uint256) -> bool: view
    def key_range(account: address, key: address) -> (uint256, uint256): view
    def bonded_at(coordinator: address, at: uint256) -> bool: view
    def retired_at(coordinator: address) -> uint256: view
    def payout_of(account: address) -> address: view
    def freeze(account: address): nonpayable
    def unfreeze(account: address): nonpayable
    def slash(account: address, amount: uint256) -> uint256: nonpayable
    def fine(account: address, amount: uint256) -> uint256: nonpayable

struct Demand:
    demander: address
    liable: address
    answerBy: uint256
    wanted: bytes32  # what the answer must open: a commitment, or the hash of a secret
    cost: uint256  # pay for the whole maxDuration; 0 for a secret

event FaultProven:
    liable: indexed(address)
    kind: uint256
    subject: bytes32  # assignment, job, or the hash of the message's number
    slashed: uint256
    burned: uint256

event DemandOpened:
    subject: indexed(bytes32)
    liable: indexed(address)
    kind: uint256
    answerBy: uint256

event RevealAnswered:
    subject: indexed(bytes32)
    provider: indexed(address)
    exitStatus: uint256
    outputDigest: bytes32
    salt: bytes32

event SecretAnswered:
    subject: indexed(bytes32)
    coordinator: indexed(address)
    secret: bytes32

EQUIVOCATION: constant(uint256) = 1
UNREVEALED: constant(uint256) = 2
TWO_ACKS: constant(uint256) = 3
TWO_STATEMENTS: constant(uint256) = 4
LATE_ACK: constant(uint256) = 5
UNOPENED_SECRET: constant(uint256) = 6
SLASH_MULTIPLE: constant(uint256) = 8
FIRST_FAULT_FOR: constant(uint256) = 90 * 86400  # so long after a fault, the next one is a first one again

TOKEN: public(immutable(address))
STAKES: public(immutable(address))
GAS_FEE: public(immutable(uint256))
COORDINATOR_PENALTY: public(immutable(uint256))
REVEAL_DEMAND: public(immutable(uint256))
EVIDENCE_AGE: public(immutable(uint256))
SECRET_AFTER: public(immutable(uint256))
RETIRE_GRACE: public(immutable(uint256))

burned: public(uint256)
credit_of: public(HashMap[address, uint256])
demands: public(HashMap[bytes32, Demand])  # by assignment or job; `demander` is empty once it is closed
is_proven: public(HashMap[bytes32, bool])  # H(kind, account, subject)
last_fault: HashMap[address, HashMap[uint256, uint256]]  # provider -> kind -> time


@deploy
def __init__(token: address, stakes: address, gasFee: uint256, coordinatorPenalty: uint256, revealDemand: uint256, evidenceAge: uint256,
             secretAfter: uint256, retireGrace: uint256):
    """Addresses of the deployment; times in seconds, amounts in token units."""
    TOKEN = token
    STAKES = stakes
    GAS_FEE = gasFee
    COORDINATOR_PENALTY = coordinatorPenalty
    REVEAL_DEMAND = revealDemand
    EVIDENCE_AGE = evidenceAge
    SECRET_AFTER = secretAfter
    RETIRE_GRACE = retireGrace


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
    self._punish_provider(EQUIVOCATION, assignment.provider, place, self._cost(assignment), msg.sender)


@external
@nonreentrant
def demand_reveal(closed: fault_evidence.CommitSet, closedSig: signatures.Sig, assignment: evidence.Assignment, commit: evidence.Commit,
                  commitSig: signatures.Sig):
    """
    @notice Asks a provider to open its commitment on chain. The CommitSet shows that all results of the batch are committed, so the answer
            helps nobody to copy. The sender's bond pays the provider's gas if it answers.
    """
    at: uint256 = convert(closed.closedAt, uint256)
    self._check_age(at)
    place: bytes32 = fault_evidence._assignment(STAKES, assignment)
    key: address = signatures._signer(fault_evidence._commit_set(STAKES, closed), closedSig)
    assert staticcall Stakes(STAKES).key_valid(assignment.coordinator, key, at), "set"
    assert staticcall Stakes(STAKES).bonded_at(assignment.coordinator, at), "bond"
    digest: bytes32 = self._check_commit(assignment.provider, commit, commitSig, convert(assignment.acceptBy, uint256))
    assert commit.assignmentHash == place and fault_evidence._has(closed, place, digest), "commit"
    self._demand(UNREVEALED, place, assignment.provider, commit.commitment, self._cost(assignment))


@external
@nonreentrant
def answer_reveal(assignmentHash: bytes32, exitStatus: uint16, outputDigest: bytes32, salt: bytes32):
    """Opens a demanded commitment. Anyone may send it; the bond goes to the provider."""
    demand: Demand = self._open_demand(assignmentHash)
    assert demand.cost != 0 and block.timestamp <= demand.answerBy, "phase"
    digest: bytes32 = keccak256(abi_encode(exitStatus, outputDigest))
    assert keccak256(abi_encode(assignmentHash, demand.liable, salt, digest)) == demand.wanted, "reveal"
    self._close(assignmentHash, demand, demand.liable)
    log RevealAnswered(subject=assignmentHash, provider=demand.liable, exitStatus=convert(exitStatus, uint256), outputDigest=outputDigest, salt=salt)


# --------------------------------------------------------------------------------------------------------- coordinators


@external
@nonreentrant
def two_acks(coordinator: address, one: fault_evidence.Ack, oneSig: signatures.Sig, other: fault_evidence.Ack, otherSig: signatures.Sig):
    """The coordinator signed two Acks for one job, so it could choose between two draws."""
    assert one.jobId == other.jobId, "job"
    first: bytes32 = self._check_ack(coordinator, one, oneSig)
    assert first != self._check_ack(coordinator, other, otherSig), "same"
    self._prove(TWO_ACKS, coordinator, one.jobId)
    self._punish_coordinator(TWO_ACKS, coordinator, one.jobId, msg.sender)


@external
@nonreentrant
def late_ack(coordinator: address, ack: fault_evidence.Ack, sig: signatures.Sig):
    """The coordinator took an order after it had retired."""
    retired: uint256 = staticcall Stakes(STAKES).retired_at(coordinator)
    assert retired != 0 and convert(ack.ackTime, uint256) > retired + RETIRE_GRACE, "time"
    self._check_ack(coordinator, ack, sig)
    self._prove(LATE_ACK, coordinator, ack.jobId)
    self._punish_coordinator(LATE_ACK, coordinator, ack.jobId, msg.sender)


@external
@nonreentrant
def two_statements(coordinator: address, one: fault_evidence.Statement, oneSig: signatures.Sig, other: fault_evidence.Statement,
                   otherSig: signatures.Sig):
    """
    @notice The coordinator signed two Statements of one number for one provider, with other sums or other receipts.
    @dev A Statement has no time, so a key counts until EVIDENCE_AGE after its end: a thief of an old key cannot use it for ever.
    """
    assert one.provider == other.provider and one.seq == other.seq, "statement"
    first: bytes32 = self._check_statement(coordinator, one, oneSig)
    assert first != self._check_statement(coordinator, other, otherSig), "same"
    subject: bytes32 = keccak256(abi_encode(one.provider, one.seq))
    self._prove(TWO_STATEMENTS, coordinator, subject)
    self._punish_coordinator(TWO_STATEMENTS, coordinator, subject, msg.sender)


@external
@nonreentrant
def demand_secret(order: evidence.Order, ack: fault_evidence.Ack, ackSig: signatures.Sig):
    """
    @notice Asks a coordinator to open the secret of a job on chain. It must wait until no draw of the job can be open, because the secret
            tells who audits. The sender's bond pays the coordinator's gas if it answers.
    """
    acked: uint256 = convert(ack.ackTime, uint256)
    start: uint256 = max(acked, convert(order.expiry, uint256)) + SECRET_AFTER
    assert block.timestamp >= start, "early"
    assert block.timestamp <= start + EVIDENCE_AGE, "late"
    jobId: bytes32 = fault_evidence._order(STAKES, order)
    assert ack.jobId == jobId, "order"
    key: address = signatures._signer(fault_evidence._ack(STAKES, ack), ackSig)
    assert staticcall Stakes(STAKES).key_valid(order.coordinator, key, acked), "ack"
    self._demand(UNOPENED_SECRET, jobId, order.coordinator, ack.secretHash, 0)


@external
@nonreentrant
def answer_secret(jobId: bytes32, secret: bytes32):
    """Opens a demanded secret. Anyone may send it; the bond goes to the coordinator."""
    demand: Demand = self._open_demand(jobId)
    assert demand.cost == 0 and block.timestamp <= demand.answerBy, "phase"
    assert keccak256(secret) == demand.wanted, "secret"
    self._close(jobId, demand, demand.liable)
    log SecretAnswered(subject=jobId, coordinator=demand.liable, secret=secret)


@external
@nonreentrant
def punish_unanswered(subject: bytes32):
    """Takes what an unanswered demand costs. The demander gets its bond back, and the gas fee."""
    demand: Demand = self._open_demand(subject)
    assert block.timestamp > demand.answerBy, "early"
    self._close(subject, demand, demand.demander)
    if demand.cost == 0:
        self._punish_coordinator(UNOPENED_SECRET, demand.liable, subject, demand.demander)
    else:
        self._punish_provider(UNREVEALED, demand.liable, subject, demand.cost, demand.demander)


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
def _check_statement(coordinator: address, statement: fault_evidence.Statement, sig: signatures.Sig) -> bytes32:
    digest: bytes32 = fault_evidence._statement(STAKES, statement)
    since: uint256 = 0
    until: uint256 = 0
    since, until = staticcall Stakes(STAKES).key_range(coordinator, signatures._signer(digest, sig))
    assert until != 0, "statement"
    assert block.timestamp <= until + EVIDENCE_AGE, "late"
    return digest


@internal
@view
def _cost(assignment: evidence.Assignment) -> uint256:
    """The pay for the whole maxDuration, and at least what the prover's gas costs. So it is never zero as for a secret."""
    return max(GAS_FEE, convert(assignment.pricePerHour, uint256) * convert(assignment.maxDuration, uint256) // 3600)


@internal
def _prove(kind: uint256, account: address, subject: bytes32):
    """A fault counts once."""
    fault: bytes32 = keccak256(abi_encode(kind, account, subject))
    assert not self.is_proven[fault], "proven"
    self.is_proven[fault] = True


@internal
def _demand(kind: uint256, subject: bytes32, liable: address, wanted: bytes32, cost: uint256):
    """A demand is made once. The account unbonds nothing before it ends."""
    assert self.demands[subject].answerBy == 0, "demanded"
    answerBy: uint256 = block.timestamp + REVEAL_DEMAND
    self.demands[subject] = Demand(demander=msg.sender, liable=liable, answerBy=answerBy, wanted=wanted, cost=cost)
    extcall Stakes(STAKES).freeze(liable)
    before: uint256 = staticcall IERC20(TOKEN).balanceOf(self)
    assert extcall IERC20(TOKEN).transferFrom(msg.sender, self, GAS_FEE, default_return_value=True), "token"
    assert staticcall IERC20(TOKEN).balanceOf(self) == before + GAS_FEE, "amount"
    log DemandOpened(subject=subject, liable=liable, kind=kind, answerBy=answerBy)


@internal
@view
def _open_demand(subject: bytes32) -> Demand:
    demand: Demand = self.demands[subject]
    assert demand.demander != empty(address), "phase"
    return demand


@internal
def _close(subject: bytes32, demand: Demand, receiver: address):
    """Ends a demand; its bond goes to `receiver`."""
    self.demands[subject].demander = empty(address)
    self.credit_of[receiver] += GAS_FEE
    extcall Stakes(STAKES).unfreeze(demand.liable)


@internal
def _punish_provider(kind: uint256, provider: address, subject: bytes32, cost: uint256, prover: address):
    """The first fault in 90 days costs the job's pay, as after a restored backup; a later one is a slash."""
    last: uint256 = self.last_fault[provider][kind]
    self.last_fault[provider][kind] = block.timestamp
    taken: uint256 = 0
    if last == 0 or block.timestamp >= last + FIRST_FAULT_FOR:
        taken = extcall Stakes(STAKES).fine(provider, cost)
    else:
        taken = extcall Stakes(STAKES).slash(provider, SLASH_MULTIPLE * cost)
    self._share(kind, provider, subject, taken, prover)


@internal
def _punish_coordinator(kind: uint256, coordinator: address, subject: bytes32, prover: address):
    self._share(kind, coordinator, subject, extcall Stakes(STAKES).slash(coordinator, COORDINATOR_PENALTY), prover)


@internal
def _share(kind: uint256, liable: address, subject: bytes32, taken: uint256, prover: address):
    """The prover gets its gas, and nobody gets the rest."""
    fee: uint256 = min(GAS_FEE, taken)
    self.credit_of[prover] += fee
    self.burned += taken - fee
    log FaultProven(liable=liable, kind=kind, subject=subject, slashed=taken, burned=taken - fee)
