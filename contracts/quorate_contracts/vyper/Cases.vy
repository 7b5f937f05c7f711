# pragma version 0.4.3
"""
@title Cases
@notice What a case must show, and its opening at Court (PROTOCOL §5): an accusation of one provider over two or three executions that
        other owners' results of the same jobs contradict.
@dev No owner and no upgrade: every address is fixed at deployment. It holds no money; Court pulls the bond from the sender.
"""

import docket
import evidence
import signatures

interface Stakes:
    def stake_of(account: address) -> uint256: view
    def owner_count(hostClass: bytes32) -> uint256: view
    def open_slots_of(account: address, hostClass: bytes32) -> uint256: view

interface Escrow:
    def allocated_since(client: address, coordinator: address) -> uint256: view

interface Court:
    def open(filing: docket.Filing) -> uint256: nonpayable
    def case_count() -> uint256: view
    def ending(caseId: uint256) -> (uint256, uint256, uint256, uint256): view

EXECUTIONS_MAX: constant(uint256) = 3
FAILED_MAX: constant(uint256) = 2  # cases over one execution that may fail
MASK48: constant(uint256) = 2**48 - 1
MASK80: constant(uint256) = 2**80 - 1

STAKES: public(immutable(address))
ESCROW: public(immutable(address))
COURT: public(immutable(address))
OWNERS_MIN: public(immutable(uint256))
EVIDENCE_AGE: public(immutable(uint256))
ALLOCATION_AGE: public(immutable(uint256))
DURATION_MAX: public(immutable(uint256))
JURY_PAY_MIN: public(immutable(uint256))

named: HashMap[bytes32, uint256]  # assignment -> case << 64 | seconds in court << 16 | failed << 8 | position


@deploy
def __init__(stakes: address, escrow: address, court: address, ownersMin: uint256, evidenceAge: uint256, allocationAge: uint256,
             durationMax: uint256, juryPayMin: uint256):
    """Addresses of the deployment; times in seconds, amounts in token units."""
    STAKES = stakes
    ESCROW = escrow
    COURT = court
    OWNERS_MIN = ownersMin
    EVIDENCE_AGE = evidenceAge
    ALLOCATION_AGE = allocationAge
    DURATION_MAX = durationMax
    JURY_PAY_MIN = juryPayMin


@external
def open_case(executions: DynArray[evidence.Execution, EXECUTIONS_MAX]) -> uint256:
    """
    @notice Accuses one provider with two executions for different clients, or three for any, of one coordinator. Each shows the Commit of
            another owner to the same job. Court pulls the bond for a whole jury from the sender; the accused's stake cannot unbond until
            the case ends.
    """
    count: uint256 = len(executions)
    assert count >= 2, "count"
    f: docket.Filing = empty(docket.Filing)
    f.accuser = msg.sender
    f.liable = executions[0].run.assignment.provider
    f.hostClass = executions[0].run.assignment.hostClass
    f.count = count
    f.since = MASK48
    assert msg.sender != f.liable, "accuser"
    assert staticcall Stakes(STAKES).stake_of(f.liable) > 0, "stake"
    self._check_owners(f.hostClass, f.liable, msg.sender)
    assert count > 2 or executions[0].job.order.client != executions[1].job.order.client, "clients"
    domain: bytes32 = signatures._domain(STAKES)
    caseId: uint256 = staticcall Court(COURT).case_count() + 1
    coordinator: address = executions[0].job.order.coordinator
    duration: uint256 = 0
    jobs: bytes32[EXECUTIONS_MAX] = empty(bytes32[EXECUTIONS_MAX])
    for i: uint256 in range(count, bound=EXECUTIONS_MAX):
        e: evidence.Execution = executions[i]
        acceptBy: uint256 = convert(e.run.assignment.acceptBy, uint256)
        assert e.run.assignment.provider == f.liable, "provider"
        assert e.run.assignment.hostClass == f.hostClass and e.contradiction.assignment.hostClass == f.hostClass, "class"
        # Executions of a coordinator that works for the accused would hide those of an honest one behind them
        assert e.job.order.coordinator == coordinator, "coordinator"
        assert e.contradiction.assignment.provider != f.liable, "contradiction"
        jobId: bytes32 = evidence._job(domain, e.job, acceptBy)
        assignment: bytes32 = evidence._run(STAKES, domain, jobId, e.job.order, e.run, e.path)
        other: bytes32 = evidence._run(STAKES, domain, jobId, e.job.order, e.contradiction, e.path)
        assert e.contradiction.assignment.specHash == e.run.assignment.specHash, "spec"
        if count == 2:
            since: uint256 = staticcall Escrow(ESCROW).allocated_since(e.job.order.client, coordinator)
            assert since != 0 and since + ALLOCATION_AGE <= acceptBy, "allocation"
        self._name(assignment, caseId, i, acceptBy + convert(e.run.assignment.maxDuration, uint256))
        f.claims[2 * i] = evidence._claim(assignment, e.run)
        f.claims[2 * i + 1] = evidence._claim(other, e.contradiction)
        f.specHashes[i] = e.run.assignment.specHash
        f.inputRoots[i] = e.job.order.inputRoot
        f.assignmentHashes[i] = assignment
        f.contradictions[i] = other
        f.commitments[i] = e.run.commit.commitment
        f.maxDurations[i] = convert(e.run.assignment.maxDuration, uint256)
        spent: uint256 = 0
        jobs[i] = jobId
        for j: uint256 in range(i, bound=EXECUTIONS_MAX):
            if jobs[j] == jobId:
                spent += f.pays[j]
        f.pays[i] = self._jury_pay(e.job.order, e.run, spent)
        f.since = min(f.since, acceptBy)
        duration += f.maxDurations[i]
    assert duration <= DURATION_MAX, "duration"
    return extcall Court(COURT).open(f)


@internal
@view
def _check_owners(hostClass: bytes32, side: address, other: address):
    """Neither side's own slots count: by closing them it would otherwise end its case."""
    owners: uint256 = staticcall Stakes(STAKES).owner_count(hostClass)
    if staticcall Stakes(STAKES).open_slots_of(side, hostClass) > 0:
        owners -= 1
    if staticcall Stakes(STAKES).open_slots_of(other, hostClass) > 0:
        owners -= 1
    assert owners >= OWNERS_MIN, "owners"


@internal
@view
def _jury_pay(order: evidence.Order, run: evidence.Run, spent: uint256) -> uint256:
    """What a juror gets for one execution, and what the slash counts."""
    pay: uint256 = max(evidence._pay_at_most(order, run, spent), JURY_PAY_MIN)
    assert pay <= MASK80, "amount"
    return pay


@internal
def _name(execution: bytes32, caseId: uint256, position: uint256, ended: uint256):
    """
    @notice An execution is in one case at a time, and in none once a jury judged it. After a case that failed on it, it may be named once
            more. Its evidence gets older only while no case is open.
    """
    seconds: uint256 = 0
    failed: uint256 = 0
    word: uint256 = self.named[execution]
    if word != 0:
        isOver: uint256 = 0
        closed: uint256 = 0
        failures: uint256 = 0
        took: uint256 = 0
        isOver, closed, failures, took = staticcall Court(COURT).ending(word >> 64)
        assert isOver == 1 and (closed >> (word & 255)) & 1 == 0, "named"
        seconds = ((word >> 16) & MASK48) + took
        failed = ((word >> 8) & 255) + ((failures >> (word & 255)) & 1)
        assert failed < FAILED_MAX, "named"
    assert block.timestamp <= ended + EVIDENCE_AGE + seconds, "late"
    self.named[execution] = (caseId << 64) | (seconds << 16) | (failed << 8) | position
