# pragma version 0.4.3
"""
@title docket
@notice The record of a case: its phases and outcomes, its state in one word, how answers are counted, and what is logged.
"""

import signatures

EXECUTIONS_MAX: constant(uint256) = 3
JURORS: constant(uint256) = 7
JURORS_MIN: constant(uint256) = 3
MASK32: constant(uint256) = 2**32 - 1
MASK48: constant(uint256) = 2**48 - 1

DRAWING: constant(uint256) = 1
VOTING: constant(uint256) = 2
REVEALING: constant(uint256) = 3
DECIDING: constant(uint256) = 4
DECIDED: constant(uint256) = 5

CONVICTED: constant(uint256) = 1
ACQUITTED: constant(uint256) = 2
VOID: constant(uint256) = 3  # too few jurors or reveals, or half of them could not fetch what the jobs need
UNOPENED: constant(uint256) = 4  # nobody opened the accused's commitments
NO_BEACON: constant(uint256) = 5
VOID_ANSWER: constant(uint256) = 15

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
    exitStatus: uint16
    outputDigest: bytes32
    salt: bytes32

struct State:
    phase: uint256
    count: uint256  # executions
    jurors: uint256  # seats taken
    voted: uint256  # bit per seat
    revealed: uint256  # bit per seat
    redrawn: uint256  # 0 or 1
    outcome: uint256
    closed: uint256  # bit per execution that no later case may name
    deadline: uint256
    duration: uint256  # sum of the maxDurations
    since: uint256  # jurors' slots were opened by then
    round: uint256

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
    return (s.phase | (s.count << 8) | (s.jurors << 16) | (s.voted << 24) | (s.revealed << 32) | (s.redrawn << 40) | (s.outcome << 48)
            | (s.closed << 56) | (s.deadline << 64) | (s.duration << 112) | (s.since << 144) | (s.round << 192))


@internal
@pure
def _unpack(w: uint256) -> State:
    return State(phase=w & 255, count=(w >> 8) & 255, jurors=(w >> 16) & 255, voted=(w >> 24) & 255, revealed=(w >> 32) & 255,
                 redrawn=(w >> 40) & 255, outcome=(w >> 48) & 255, closed=(w >> 56) & 255, deadline=(w >> 64) & MASK48,
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
def _is_void(s: State, answers: uint256) -> bool:
    """Fewer than three reveals, or at least half of them say that something was unavailable."""
    revealed: uint256 = 0
    void: uint256 = 0
    for seat: uint256 in range(JURORS):
        if (s.revealed >> seat) & 1 == 1:
            revealed += 1
            answer: uint256 = (answers >> (12 * seat)) & 4095
            if answer & 15 == VOID_ANSWER or (answer >> 4) & 15 == VOID_ANSWER or answer >> 8 == VOID_ANSWER:
                void += 1
    return revealed < JURORS_MIN or 2 * void >= revealed


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
