# pragma version 0.4.3
"""
@title Court
@notice Takes stake for a wrong result by the verdict of a jury (PROTOCOL §5). An accuser shows one execution and one contradiction of it, and
        burns the jury's pay. The beacon draws a jury among the stakers of the pool; jurors repeat the job, vote by commitments, and
        open them. If they find the contradiction's result, the accused loses half of what the accuser burned.
@dev A case is known by the hash of all about it that does not change. Callers give that again, with the list of those drawn or the ballots,
     all from events. Money: the accuser's goes to this contract's balance in Escrow, and jurors are paid from it. The rest of
     the balance stays: nothing can move it.
"""

import docket
import evidence
import registry
import signatures
import words

interface Stakes:
    def bonded_at(coordinator: address, at: uint256) -> bool: view
    def key_valid(account: address, key: address, at: uint256) -> bool: view
    def owners_apart(pool: bytes32, parties: address[3]) -> (uint256, uint256): view
    def draw(lot: registry.Lot, want: uint256, start: uint256, parties: address[3], drawn: DynArray[address, DRAWN_MAX]) -> (DynArray[address, JURORS], uint256): view
    def burn(account: address, isBond: bool, amount: uint256, reward: uint256, receiver: address) -> uint256: nonpayable

interface Escrow:
    def take(account: address, amount: uint256): nonpayable
    def pay(pays: DynArray[uint256, JURORS]): nonpayable

interface Beacon:
    def PERIOD() -> uint256: view
    def first_round_from(timestamp: uint256) -> uint256: view
    def time_of(round: uint256) -> uint256: view
    def randomness(round: uint256) -> bytes32: view

JURORS: constant(uint256) = 7
DRAWN_MAX: constant(uint256) = 14
JURY_BYTES: constant(uint256) = 280  # addresses of all that were drawn, 20 bytes each
VOTES_ENOUGH: constant(uint256) = 5  # a round and a draw cost more than two absent jurors would have earned
MOVES_MAX: constant(uint256) = 2  # a case waits for so many further rounds if one is missing
JURY_VOTE_TYPE: constant(bytes32) = keccak256("JuryVote(bytes32 caseId,address juror,bytes32 ballot)")

STAKES: public(immutable(address))
ESCROW: public(immutable(address))
BEACON: public(immutable(address))
OWNERS_MIN: public(immutable(uint256))
SLOT_AGE: public(immutable(uint256))
EVIDENCE_AGE: public(immutable(uint256))
DURATION_MAX: public(immutable(uint256))
ROUNDS_AHEAD: public(immutable(uint256))
BEACON_MISSING: public(immutable(uint256))
WINDOW: public(immutable(uint256))
GAS_FEE: public(immutable(uint256))
JURY_PAY_MIN: public(immutable(uint256))

states: HashMap[bytes32, uint256]  # digest of the accused's Assignment -> docket.State
shown: HashMap[bytes32, bytes32]  # likewise -> docket._bound


@deploy
def __init__(stakes: address, escrow: address, beacon: address, ownersMin: uint256, slotAge: uint256, evidenceAge: uint256,
             durationMax: uint256, roundsAhead: uint256, beaconMissing: uint256, window: uint256, gasFee: uint256, juryPayMin: uint256):
    """Times in seconds, but `roundsAhead` in beacon periods; amounts in token units."""
    STAKES = stakes
    ESCROW = escrow
    BEACON = beacon
    OWNERS_MIN = ownersMin
    SLOT_AGE = slotAge
    EVIDENCE_AGE = evidenceAge
    DURATION_MAX = durationMax
    ROUNDS_AHEAD = roundsAhead
    BEACON_MISSING = beaconMissing
    WINDOW = window
    GAS_FEE = gasFee
    JURY_PAY_MIN = juryPayMin


# -------------------------------------------------------------------------------------------------------------- opening


@external
@nonreentrant
def open_case(e: evidence.Execution, pay: uint256):
    """
    @notice Accuses the provider of `e.run`. The sender's balance in Escrow pays a whole jury, and gets nothing back. `pay` is what a juror
            gets beside its gas; it may be more than the least, for work that jurors decline. It is fixed here, because a sender that knew
            the jury could raise the loss of the accused and be paid by its own jurors.
    """
    accused: address = e.run.provider
    other: address = e.contradiction.provider
    duration: uint256 = convert(e.run.maxDuration, uint256)
    acceptBy: uint256 = convert(e.run.acceptBy, uint256)
    assert other != accused, "contradiction"
    assert duration <= DURATION_MAX, "duration"
    assert block.timestamp <= acceptBy + duration + EVIDENCE_AGE, "late"
    most: uint256 = min(convert(e.order.budget, uint256), evidence._most_pay(e.run.maxDuration, e.run.pricePerHour))
    assert pay >= max(JURY_PAY_MIN, most) and pay <= words.AMOUNT_MAX, "pay"
    domain: bytes32 = signatures._domain(STAKES)
    jobId: bytes32 = evidence._job(domain, e)
    execution: bytes32 = evidence._run(STAKES, domain, jobId, e.order, e.pool, e.classId, e.run)
    assert self.states[execution] == 0, "named"
    assert staticcall Stakes(STAKES).bonded_at(e.order.coordinator, acceptBy), "bond"
    # The parties' own slots do not count: by closing them they would otherwise end a case
    owners: uint256 = 0
    length: uint256 = 0
    owners, length = staticcall Stakes(STAKES).owners_apart(e.pool, [msg.sender, accused, other])
    assert owners >= OWNERS_MIN, "owners"
    filing: docket.Filing = docket.Filing(
        accuser=msg.sender, accused=accused, other=other, pool=e.pool, length=length,
        atBlock=block.number, openedAt=block.timestamp, openedBy=acceptBy - SLOT_AGE, duration=duration, pay=pay, execution=execution,
        commitment=e.run.commitment,
        contradiction=evidence._run(STAKES, domain, jobId, e.order, e.pool, e.classId, e.contradiction),
        otherCommitment=e.contradiction.commitment)
    caseId: bytes32 = docket._case_id(filing)
    s: docket.State = empty(docket.State)
    s.phase = docket.DRAWING
    s.when = self._round_ahead()
    self.states[execution] = docket._pack(s)
    self.shown[execution] = docket._bound(caseId, keccak256(b""))
    extcall Escrow(ESCROW).take(msg.sender, JURORS * (pay + GAS_FEE))
    log docket.CaseOpened(execution=execution, accused=accused, filing=filing, specHash=e.order.specHash, inputRoot=e.order.inputRoot, classId=e.classId)


# ----------------------------------------------------------------------------------------------------------------- jury


@external
def draw(filing: docket.Filing, jury: Bytes[JURY_BYTES]):
    """
    @notice Draws by the case's beacon round those that a jury of seven misses; `jury` lists who was drawn so far. In a long list one call
            does a part, and the next one goes on. A draw that ends with fewer than three jurors, those who voted included, seeks no more
            votes.
    """
    s: docket.State = docket._unpack(self.states[filing.execution])
    assert s.phase == docket.DRAWING, "phase"
    caseId: bytes32 = docket._case_id(filing)
    assert docket._bound(caseId, keccak256(jury)) == self.shown[filing.execution], "case"
    random: bytes32 = staticcall Beacon(BEACON).randomness(s.when)
    assert random != empty(bytes32), "beacon"
    lot: registry.Lot = registry.Lot(pool=filing.pool, length=filing.length, seed=keccak256(abi_encode(random, caseId)),
                               atBlock=filing.atBlock, openedBy=filing.openedBy, profilesAt=filing.openedAt)
    drawn: DynArray[address, DRAWN_MAX] = docket._jurors(jury)
    seats: uint256 = docket._ones(s.voted) + len(drawn) - s.floor
    found: DynArray[address, JURORS] = []
    found, s.tries = staticcall Stakes(STAKES).draw(lot, JURORS - seats, s.tries, [filing.accuser, filing.accused, filing.other], drawn)
    for juror: address in found:
        drawn.append(juror)
    seats += len(found)
    self.shown[filing.execution] = docket._bound(caseId, docket._jury_hash(jury, found))
    isOver: bool = s.tries == 0
    isEnough: bool = seats >= docket.JURORS_MIN and len(drawn) > s.floor
    if isOver and isEnough:
        s.phase = docket.VOTING
        s.when = block.timestamp + WINDOW + filing.duration
    log docket.JuryDrawn(execution=filing.execution, jury=drawn, voteBy=s.when if s.phase == docket.VOTING else 0)
    if isOver and not isEnough:
        self._end_votes(filing.execution, s)
    else:
        self.states[filing.execution] = docket._pack(s)


@external
def vote(execution: bytes32, caseId: bytes32, jury: Bytes[JURY_BYTES], votes: DynArray[docket.Vote, JURORS]):
    """Ballots signed by the jurors' operator keys, sent by anyone, one or more at once. The window closes when all are in."""
    state: uint256 = self.states[execution]
    assert docket._is_open(state, docket.VOTING), "phase"
    assert docket._bound(caseId, keccak256(jury)) == self.shown[execution], "case"
    domain: bytes32 = signatures._domain(STAKES)
    count: uint256 = len(jury) // 20
    for each: docket.Vote in votes:
        assert each.place >= docket._floor(state) and each.place < count, "juror"
        assert not docket._has_voted(state, each.place), "voted"
        juror: address = docket._juror(jury, each.place)
        signed: bytes32 = signatures._digest(domain, keccak256(abi_encode(JURY_VOTE_TYPE, caseId, juror, each.ballot)))
        assert staticcall Stakes(STAKES).key_valid(juror, signatures._signer(signed, each.sig), block.timestamp), "key"
        state = docket._with_vote(state, each.place, docket._link(juror, each.ballot))
        log docket.Voted(execution=execution, juror=juror, ballot=each.ballot)
    if docket._have_all_voted(state, count):
        self._end_votes(execution, docket._unpack(state))
    else:
        self.states[execution] = state


@external
def advance(execution: bytes32, caseId: bytes32, jury: Bytes[JURY_BYTES]):
    """
    @notice Moves a case past a deadline. A beacon round that is missing is replaced, twice at most. Jurors that did not vote are replaced
            once, by a new round, if there are more than two. Otherwise those who voted go on to their reveals.
    """
    s: docket.State = docket._unpack(self.states[execution])
    assert docket._bound(caseId, keccak256(jury)) == self.shown[execution], "case"
    isMoved: bool = False
    if s.phase == docket.DRAWING:
        assert staticcall Beacon(BEACON).randomness(s.when) == empty(bytes32), "phase"
        assert block.timestamp > staticcall Beacon(BEACON).time_of(s.when) + BEACON_MISSING, "early"
        isMoved = s.moved < MOVES_MAX
        s.moved += 1
    else:
        assert s.phase == docket.VOTING, "phase"
        assert block.timestamp > s.when, "early"
        isMoved = s.floor == 0 and docket._ones(s.voted) < VOTES_ENOUGH
        s.floor = len(jury) // 20
    if isMoved:
        s.phase = docket.DRAWING
        s.when = self._round_ahead()
        self.states[execution] = docket._pack(s)
        log docket.RoundSet(execution=execution, round=s.when)
    else:
        self._end_votes(execution, s)


@external
def reveal(execution: bytes32, ballots: DynArray[bytes32, JURORS], reveals: DynArray[docket.Reveal, JURORS]):
    """Opens ballots; needs no signature. `ballots` are the links of their chain, in order."""
    state: uint256 = self.states[execution]
    assert docket._is_open(state, docket.REVEALING), "phase"
    links: uint256 = 0
    for link: bytes32 in ballots:
        links = docket._linked(links, link)
    assert links == docket._chain(state), "ballots"
    for each: docket.Reveal in reveals:
        link: bytes32 = docket._opened_link(execution, each.juror, each.salt, each.digest)
        assert each.place < len(ballots) and link == ballots[each.place], "reveal"
        assert not docket._is_revealed(state, each.place), "revealed"
        state = docket._with_reveal(state, each.place)
        log docket.Revealed(execution=execution, juror=each.juror, salt=each.salt, digest=each.digest)
    self.states[execution] = state


# ------------------------------------------------------------------------------------------------------------- decision


@external
@nonreentrant
def decide(filing: docket.Filing, juryHash: bytes32, ballots: DynArray[docket.Ballot, JURORS], openings: DynArray[docket.Opening, 2]):
    """
    @notice Opens the commitments of accused and contradiction, pays the jurors, and ends the case. Without openings, which anybody may
            give, it ends one window after the reveals, and another case may follow. `ballots` are given in order, as revealed.
    """
    s: docket.State = docket._unpack(self.states[filing.execution])
    assert s.phase == docket.REVEALING, "phase"
    caseId: bytes32 = docket._case_id(filing)
    assert docket._bound(caseId, juryHash) == self.shown[filing.execution], "case"
    links: uint256 = 0
    jurors: DynArray[address, JURORS] = []
    digests: DynArray[bytes32, JURORS] = []
    for each: docket.Ballot in ballots:
        link: bytes32 = each.salt
        if s.revealed & 1 == 1:
            link = docket._opened_link(filing.execution, each.juror, each.salt, each.digest)
            jurors.append(each.juror)
            digests.append(each.digest)
        s.revealed >>= 1
        links = docket._linked(links, link)
    assert links == s.chain, "ballots"
    assert block.timestamp > s.when or len(digests) == len(ballots), "early"
    size: uint256 = 0
    places: uint256 = 0
    size, places = docket._largest(digests)
    outcome: uint256 = docket.FAILED
    if len(openings) == 0:
        assert block.timestamp > s.when + WINDOW, "early"
    else:
        outcome = self._outcome(filing, digests, size, places, openings)
    self.states[filing.execution] = 0 if outcome == docket.FAILED else docket.IS_CLOSED
    self.shown[filing.execution] = empty(bytes32)
    taken: uint256 = 0
    if outcome == docket.CONVICTED:
        # Half, because jurors' pay may flow back to an accuser's own jurors
        taken = extcall Stakes(STAKES).burn(filing.accused, False, JURORS * (filing.pay + GAS_FEE) // 2, 0, empty(address))
    paid: uint256 = self._pay_jurors(jurors, digests, places, filing.pay)
    log docket.Decided(execution=filing.execution, outcome=outcome, taken=taken, paid=paid)


@internal
@pure
def _outcome(filing: docket.Filing, digests: DynArray[bytes32, JURORS], size: uint256, places: uint256, openings: DynArray[docket.Opening, 2]) -> uint256:
    """What the jury says: two thirds of the answers, and at least three, are one result."""
    assert len(openings) == 2, "opening"
    mine: bytes32 = docket._result(filing.execution, filing.accused, filing.commitment, openings[0])
    theirs: bytes32 = docket._result(filing.contradiction, filing.other, filing.otherCommitment, openings[1])
    if size < docket.JURORS_MIN or 3 * size < 2 * len(digests):
        return docket.FAILED
    found: bytes32 = empty(bytes32)
    for i: uint256 in range(JURORS):
        if (places >> i) & 1 == 1:
            found = digests[i]
            break
    if found == mine:
        return docket.ACQUITTED
    if found == theirs and not docket._is_killed(openings[0]) and not docket._is_killed(openings[1]):
        return docket.CONVICTED
    return docket.FAILED


@internal
def _pay_jurors(jurors: DynArray[address, JURORS], digests: DynArray[bytes32, JURORS], places: uint256, pay: uint256) -> uint256:
    """
    @notice Pays every juror of the largest groups, into balances. One that found no result gets its gas alone: otherwise a jury that does
            nothing would earn as much as one that works.
    """
    pays: DynArray[uint256, JURORS] = []
    paid: uint256 = 0
    for i: uint256 in range(len(jurors), bound=JURORS):
        if (places >> i) & 1 == 1:
            amount: uint256 = GAS_FEE if digests[i] == empty(bytes32) else pay + GAS_FEE
            pays.append(words._pair_word(jurors[i], amount))
            paid += amount
    extcall Escrow(ESCROW).pay(pays)
    return paid


@external
@view
def case_of(execution: bytes32) -> docket.State:
    """The case over an execution as it stands, by the digest of the accused's Assignment; all zero when there is none."""
    return docket._unpack(self.states[execution])


# ------------------------------------------------------------------------------------------------------------- internal


@internal
@view
def _round_ahead() -> uint256:
    """The first round that appears at least ROUNDS_AHEAD periods from now; a block's stamp may be older than its transactions."""
    return staticcall Beacon(BEACON).first_round_from(block.timestamp + ROUNDS_AHEAD * staticcall Beacon(BEACON).PERIOD())


@internal
def _end_votes(execution: bytes32, state: docket.State):
    """Goes on to the reveals of those who voted, however few, because they worked. Without any the case has failed."""
    s: docket.State = state
    if s.voted == 0:
        self.states[execution] = 0
        self.shown[execution] = empty(bytes32)
        log docket.Decided(execution=execution, outcome=docket.FAILED, taken=0, paid=0)
        return
    s.phase = docket.REVEALING
    s.when = block.timestamp + WINDOW
    self.states[execution] = docket._pack(s)
    log docket.RevealsOpen(execution=execution, revealBy=s.when)
