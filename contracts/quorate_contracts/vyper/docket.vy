# pragma version 0.4.3
"""
@title docket
@notice The record of a case: its phases and outcomes, its state in one word, how answers are counted, and what is logged.
"""

import signatures

EXECUTIONS_MAX: constant(uint256) = 3
CLAIMS_MAX: constant(uint256) = 6
JURORS: constant(uint256) = 7
JURORS_MIN: constant(uint256) = 3
MASK32: constant(uint256) = 2**32 - 1
MASK48: constant(uint256) = 2**48 - 1
MASK80: constant(uint256) = 2**80 - 1

DRAWING: constant(uint256) = 1
VOTING: constant(uint256) = 2
REVEALING: constant(uint256) = 3
DECIDING: constant(uint256) = 4
DECIDED: constant(uint256) = 5

CONVICTED: constant(uint256) = 1
ACQUITTED: constant(uint256) = 2
VOID: constant(uint256) = 3  # too few jurors or reveals, or half of them could not fetch what a job needs
UNOPENED: constant(uint256) = 4  # nobody opened the commitments
NO_BEACON: constant(uint256) = 5
VOID_ANSWER: constant(uint256) = 15
KILLED: constant(uint16) = 512  # and 513: the machine ended it, so it shows nothing about the result

struct Vote:
    juror: address
    ballot: bytes32  # H(caseId, juror, salt, digests)
    sig: signatures.Sig

struct Reveal:
    juror: address
    salt: bytes32
    digests: bytes32[EXECUTIONS_MAX]  # result digests in the case's order; zero = void, and past the last execution

struct Opening:
    assignmentHash: bytes32
    provider: address
    exitStatus: uint16
    outputDigest: bytes32
    salt: bytes32

# What Cases has checked. Claim 2 i is the accused's, and claim 2 i + 1 contradicts it
struct Filing:
    accuser: address
    liable: address  # the accused
    hostClass: bytes32
    count: uint256
    since: uint256  # acceptBy of the oldest execution
    claims: bytes32[CLAIMS_MAX]  # H(assignmentHash, provider, commitment)
    specHashes: bytes32[EXECUTIONS_MAX]
    inputRoots: bytes32[EXECUTIONS_MAX]
    assignmentHashes: bytes32[EXECUTIONS_MAX]
    contradictions: bytes32[EXECUTIONS_MAX]  # Assignments of the other owners' executions
    commitments: bytes32[EXECUTIONS_MAX]
    maxDurations: uint256[EXECUTIONS_MAX]
    pays: uint256[EXECUTIONS_MAX]

struct State:
    phase: uint256
    count: uint256  # executions
    jurors: uint256  # seats taken
    voted: uint256  # bit per seat
    revealed: uint256  # bit per seat
    redrawn: uint256  # 0 or 1
    outcome: uint256
    closed: uint256  # bit per execution that was judged: no later case may name it
    failed: uint256  # bit per execution on which this case failed: one later case may name it
    deadline: uint256
    duration: uint256  # sum of the maxDurations
    since: uint256  # jurors' slots were opened by then
    round: uint256

struct Case:
    state: State
    accused: address
    accuser: address
    hostClass: bytes32
    bond: uint256
    openedAt: uint256
    endedAt: uint256
    jurors: DynArray[address, JURORS]  # drawn and not replaced

event CaseOpened:
    caseId: indexed(uint256)
    accused: indexed(address)
    accuser: indexed(address)
    hostClass: bytes32
    round: uint256
    bond: uint256
    specHashes: bytes32[EXECUTIONS_MAX]
    inputRoots: bytes32[EXECUTIONS_MAX]
    assignmentHashes: bytes32[EXECUTIONS_MAX]
    contradictions: bytes32[EXECUTIONS_MAX]  # Assignments of the other owners' executions
    commitments: bytes32[EXECUTIONS_MAX]
    maxDurations: uint256[EXECUTIONS_MAX]
    pays: uint256[EXECUTIONS_MAX]

event JuryDrawn:
    caseId: indexed(uint256)
    jurors: DynArray[address, JURORS]
    voteBy: uint256

event Voted:
    caseId: indexed(uint256)
    juror: indexed(address)
    ballot: bytes32

event RevealsOpen:
    caseId: indexed(uint256)
    revealBy: uint256

event Revealed:
    caseId: indexed(uint256)
    juror: indexed(address)
    digests: bytes32[EXECUTIONS_MAX]

event Redraw:
    caseId: indexed(uint256)
    round: uint256

event Decided:
    caseId: indexed(uint256)
    accused: indexed(address)
    convicted: bool
    outcome: uint256
    slashed: uint256
    burned: uint256

event Credited:
    account: indexed(address)
    caseId: uint256
    amount: uint256


@internal
@pure
def _pack(s: State) -> uint256:
    return (s.phase | (s.count << 8) | (s.jurors << 16) | (s.voted << 24) | (s.revealed << 32) | (s.redrawn << 40)
            | (s.outcome << 48) | (s.closed << 56) | (s.failed << 60) | (s.deadline << 64) | (s.duration << 112) | (s.since << 144) | (s.round << 192))


@internal
@pure
def _unpack(w: uint256) -> State:
    return State(phase=w & 255, count=(w >> 8) & 255, jurors=(w >> 16) & 255, voted=(w >> 24) & 255, revealed=(w >> 32) & 255,
                 redrawn=(w >> 40) & 15, outcome=(w >> 48) & 255, closed=(w >> 56) & 15, failed=(w >> 60) & 15, deadline=(w >> 64) & MASK48,
                 duration=(w >> 112) & MASK32, since=(w >> 144) & MASK48, round=w >> 192)


@internal
@pure
def _ones(mask: uint256) -> uint256:
    count: uint256 = 0
    for seat: uint256 in range(JURORS):
        count += (mask >> seat) & 1
    return count


@internal
@pure
def _votes(answers: uint256, execution: uint256) -> uint256:
    """Ballots per answer to one execution, 4 bits each."""
    votes: uint256 = 0
    for seat: uint256 in range(JURORS):
        votes += 1 << (4 * ((answers >> (12 * seat + 4 * execution)) & 15))
    return votes


@internal
@pure
def _largest(revealed: uint256, answers: uint256) -> uint256:
    """Bit per seat whose whole ballot is shared by most."""
    best: uint256 = 0
    seats: uint256 = 0
    for seat: uint256 in range(JURORS):
        if (revealed >> seat) & 1 == 0:
            continue
        size: uint256 = 0
        for other: uint256 in range(JURORS):
            if (revealed >> other) & 1 == 1 and (answers >> (12 * other)) & 4095 == (answers >> (12 * seat)) & 4095:
                size += 1
        if size > best:
            best = size
            seats = 0
        if size == best:
            seats |= 1 << seat
    return seats


@internal
@pure
def _owed(pays: uint256, seats: uint256, answers: uint256, gasFee: uint256) -> uint256[JURORS]:
    """What each of these seats earns: gas, and the pay of each execution that it did not find void."""
    owed: uint256[JURORS] = empty(uint256[JURORS])
    for seat: uint256 in range(JURORS):
        if (seats >> seat) & 1 == 0:
            continue
        owed[seat] = gasFee
        for i: uint256 in range(EXECUTIONS_MAX):
            answer: uint256 = (answers >> (12 * seat + 4 * i)) & 15
            if answer != 0 and answer != VOID_ANSWER:
                owed[seat] += (pays >> (80 * i)) & MASK80
    return owed
