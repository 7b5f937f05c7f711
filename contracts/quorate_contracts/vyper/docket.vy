# pragma version 0.4.3
"""
@title docket
@notice The record of a case: one hash of all that does not change, one word of state with a chain of ballots, and what is logged.
@dev The chain keeps 160 bits. Who wants to open a ballot in two ways needs two ballots that give one chain. A juror must find them before
     it votes, 2**80 hashes for one juror's pay; any later needs 2**160.
"""

import orders
import signatures

JURORS: constant(uint256) = 7
JURORS_MIN: constant(uint256) = 3
DRAWN_MAX: constant(uint256) = 14  # a jury, and those who replace it
JURY_BYTES: constant(uint256) = 280  # their addresses, 20 bytes each
MASK34: constant(uint256) = 2**34 - 1
MASK160: constant(uint256) = 2**160 - 1

DRAWING: constant(uint256) = 1
VOTING: constant(uint256) = 2
REVEALING: constant(uint256) = 3
CLOSED: constant(uint256) = 4  # for good: a jury convicted the execution, or named its result

IS_CLOSED: constant(uint256) = CLOSED << 253  # the state's word

CONVICTED: constant(uint256) = 1
ACQUITTED: constant(uint256) = 2  # the jury named the accused's result
FAILED: constant(uint256) = 3  # no jury, no beacon round, nothing opened, or no answer of two thirds: another case may follow

KILLED: constant(uint16) = 512  # and 513: the machine ended it, so it shows nothing about the result

struct Filing:
    accuser: address
    accused: address
    other: address  # the owner of the contradiction
    pool: bytes32
    length: uint256  # of the slot list
    atBlock: uint256  # in which the case was opened
    openedAt: uint256
    openedBy: uint256  # jurors' slots are as old
    duration: uint256  # maxDuration of the accused's Assignment
    pay: uint256  # of one juror, beside its gas
    execution: bytes32  # digest of the accused's Assignment
    commitment: bytes32
    contradiction: bytes32  # digest of the other Assignment
    otherCommitment: bytes32

struct State:
    phase: uint256  # 0 = no case
    moved: uint256  # how often a missing beacon round was replaced
    floor: uint256  # those drawn before this place can vote no more; 0 until the redraw
    voted: uint256  # bit per place in the list of those drawn
    revealed: uint256  # bit per place in the chain of ballots
    when: uint256  # DRAWING: the beacon round; then the last second of the phase
    tries: uint256  # with which the draw goes on
    chain: uint256  # of ballots

struct Vote:
    place: uint256  # in the list of those drawn
    ballot: bytes32  # H(execution, juror, salt, digest)
    sig: signatures.Sig  # of a JuryVote, by the juror's operator key

struct Reveal:
    place: uint256  # in the chain of ballots
    juror: address
    salt: bytes32
    digest: bytes32  # the juror's result; zero = none

struct Ballot:
    juror: address
    salt: bytes32  # of a ballot that was not revealed: its link in the chain
    digest: bytes32

struct Opening:
    exitStatus: uint16
    outputDigest: bytes32
    salt: bytes32

# Further events of a case name its execution: there is one case over it at a time
event CaseOpened:
    execution: indexed(bytes32)
    accused: indexed(address)
    filing: Filing  # its hash is the case's id
    specHash: bytes32
    inputRoot: bytes32
    classId: bytes32  # the determinism class of both runs

event RoundSet:
    execution: indexed(bytes32)
    round: uint256  # the beacon round that draws next

event JuryDrawn:
    execution: indexed(bytes32)
    jury: DynArray[address, DRAWN_MAX]  # all that were drawn so far, those who did not vote included
    voteBy: uint256  # 0 = the draw goes on, or nobody votes any more

event Voted:
    execution: indexed(bytes32)
    juror: indexed(address)
    ballot: bytes32

event RevealsOpen:
    execution: indexed(bytes32)
    revealBy: uint256

event Revealed:
    execution: indexed(bytes32)
    juror: indexed(address)
    salt: bytes32
    digest: bytes32

event Decided:
    execution: indexed(bytes32)
    outcome: uint256
    taken: uint256  # of the accused's stake
    paid: uint256  # to jurors, of what the accuser gave


# chain(160) | when(34) | tries(32) | voted(14) | revealed(7) | floor(4) | moved(2) | phase(3)


@internal
@pure
def _pack(s: State) -> uint256:
    return s.chain | (s.when << 160) | (s.tries << 194) | (s.voted << 226) | (s.revealed << 240) | (s.floor << 247) | (s.moved << 251) | (s.phase << 253)


@internal
@pure
def _unpack(w: uint256) -> State:
    return State(phase=w >> 253, moved=(w >> 251) & 3, floor=(w >> 247) & 15, voted=(w >> 226) & 16383, revealed=(w >> 240) & 127,
                 when=(w >> 160) & MASK34, tries=(w >> 194) & (2**32 - 1), chain=w & MASK160)


@internal
@view
def _is_open(w: uint256, phase: uint256) -> bool:
    """Whether the case is in a phase, and its last second has not passed."""
    return w >> 253 == phase and block.timestamp <= (w >> 160) & MASK34


@internal
@pure
def _chain(w: uint256) -> uint256:
    return w & MASK160


@internal
@pure
def _floor(w: uint256) -> uint256:
    return (w >> 247) & 15


@internal
@pure
def _has_voted(w: uint256, place: uint256) -> bool:
    return (w >> (226 + place)) & 1 == 1


@internal
@pure
def _with_vote(w: uint256, place: uint256, link: bytes32) -> uint256:
    return (w >> 160 << 160) | (1 << (226 + place)) | self._linked(w & MASK160, link)


@internal
@pure
def _have_all_voted(w: uint256, drawn: uint256) -> bool:
    """Whether everybody voted that may."""
    first: uint256 = self._floor(w)
    return ((w >> 226) & 16383) >> first == (1 << (drawn - first)) - 1


@internal
@pure
def _is_revealed(w: uint256, place: uint256) -> bool:
    return (w >> (240 + place)) & 1 == 1


@internal
@pure
def _with_reveal(w: uint256, place: uint256) -> uint256:
    return w | (1 << (240 + place))


@internal
@pure
def _case_id(filing: Filing) -> bytes32:
    return keccak256(abi_encode(filing))


@internal
@pure
def _bound(case: bytes32, jury: bytes32) -> bytes32:
    """What a case stores: all about it that does not change but at a draw."""
    return keccak256(abi_encode(case, jury))


@internal
@pure
def _juror(jury: Bytes[JURY_BYTES], place: uint256) -> address:
    return convert(convert(slice(jury, 20 * place, 20), bytes20), address)


@internal
@pure
def _jurors(jury: Bytes[JURY_BYTES]) -> DynArray[address, DRAWN_MAX]:
    jurors: DynArray[address, DRAWN_MAX] = []
    for place: uint256 in range(len(jury) // 20, bound=DRAWN_MAX):
        jurors.append(self._juror(jury, place))
    return jurors


@internal
@pure
def _jury_hash(jury: Bytes[JURY_BYTES], found: DynArray[address, JURORS]) -> bytes32:
    """The hash of a list with those that were found now."""
    a: bytes20[JURORS] = empty(bytes20[JURORS])
    count: uint256 = len(found)
    for i: uint256 in range(count, bound=JURORS):
        a[i] = convert(found[i], bytes20)
    return keccak256(concat(jury, slice(concat(a[0], a[1], a[2], a[3], a[4], a[5], a[6]), 0, 20 * count)))


@internal
@pure
def _link(juror: address, ballot: bytes32) -> bytes32:
    """A link of the chain: who voted what. It has 160 bits too, because every reveal gives all links."""
    return convert(convert(keccak256(abi_encode(juror, ballot)), uint256) & MASK160, bytes32)


@internal
@pure
def _opened_link(execution: bytes32, juror: address, salt: bytes32, digest: bytes32) -> bytes32:
    """The link that a juror's answer opens."""
    return self._link(juror, keccak256(abi_encode(execution, juror, salt, digest)))


@internal
@pure
def _linked(links: uint256, link: bytes32) -> uint256:
    """A chain with one more link."""
    return convert(keccak256(abi_encode(links, link)), uint256) & MASK160


@internal
@pure
def _ones(mask: uint256) -> uint256:
    count: uint256 = 0
    rest: uint256 = mask
    for _: uint256 in range(DRAWN_MAX):
        if rest == 0:
            break
        rest &= rest - 1
        count += 1
    return count


@internal
@pure
def _largest(digests: DynArray[bytes32, JURORS]) -> (uint256, uint256):
    """The size of the largest group of equal digests, and a bit for each digest in a group of that size."""
    best: uint256 = 0
    places: uint256 = 0
    for digest: bytes32 in digests:
        size: uint256 = 0
        same: uint256 = 0
        for j: uint256 in range(len(digests), bound=JURORS):
            if digests[j] == digest:
                size += 1
                same |= 1 << j
        if size > best:
            best = size
            places = same
        elif size == best:
            places |= same
        if 2 * best > len(digests):
            break
    return best, places


@internal
@pure
def _result(assignment: bytes32, provider: address, commitment: bytes32, opening: Opening) -> bytes32:
    """The result that a commitment hides."""
    result: bytes32 = orders._result_digest(opening.exitStatus, opening.outputDigest)
    assert orders._commitment(assignment, provider, opening.salt, result) == commitment, "opening"
    return result


@internal
@pure
def _is_killed(opening: Opening) -> bool:
    return opening.exitStatus == KILLED or opening.exitStatus == KILLED + 1
