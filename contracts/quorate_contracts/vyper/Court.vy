# pragma version 0.4.3
"""
@title Court
@notice The only way to take stake for a wrong result (PROTOCOL §5): a case that Cases has checked, a
        jury that the beacon draws among the stakers of the host class, votes as commitments, their opening, the decision.
@dev A claim binds assignment, provider and the commitment inside the Commit, which binds salt and result. Claims alone are checked at the
     decision, so an accuser who works for the accused cannot block a case by showing some other hash.
     Money here = bonds of open cases + credits + `burned`, which nothing can move.
"""

from ethereum.ercs import IERC20
import docket
import signatures

interface Stakes:
    def key_valid(account: address, key: address, at: uint256) -> bool: view
    def index_of(account: address) -> uint256: view
    def account_at(index: uint256) -> address: view
    def payout_of(account: address) -> address: view
    def slot_count(hostClass: bytes32) -> uint256: view
    def draw(hostClass: bytes32, length: uint256, seed: bytes32, want: uint256, atBlock: uint256, openedBy: uint256, profilesAt: uint256, excluded: DynArray[address, 16]) -> DynArray[uint256, JURORS]: view
    def freeze(account: address): nonpayable
    def unfreeze(account: address): nonpayable
    def slash(account: address, amount: uint256) -> uint256: nonpayable
    def fine(account: address, amount: uint256) -> uint256: nonpayable

interface Beacon:
    def PERIOD() -> uint256: view
    def first_round_from(timestamp: uint256) -> uint256: view
    def time_of(round: uint256) -> uint256: view
    def randomness(round: uint256) -> bytes32: view

EXECUTIONS_MAX: constant(uint256) = 3
CLAIMS_MAX: constant(uint256) = 6
JURORS: constant(uint256) = 7
SLASH_MULTIPLE: constant(uint256) = 8
MASK32: constant(uint256) = 2**32 - 1
MASK48: constant(uint256) = 2**48 - 1
MASK80: constant(uint256) = 2**80 - 1
MASK96: constant(uint256) = 2**96 - 1

JURY_VOTE_TYPE: constant(bytes32) = keccak256("JuryVote(uint256 caseId,address juror,bytes32 ballot)")

TOKEN: public(immutable(address))
STAKES: public(immutable(address))
CASES: public(immutable(address))
BEACON: public(immutable(address))
SLOT_AGE: public(immutable(uint256))
ROUNDS_AHEAD: public(immutable(uint256))
BEACON_MISSING: public(immutable(uint256))
WINDOW: public(immutable(uint256))
GAS_FEE: public(immutable(uint256))
SEAT_DEPOSIT: public(immutable(uint256))

case_count: public(uint256)
burned: public(uint256)
credit_of: public(HashMap[address, uint256])
states: HashMap[uint256, uint256]
times: HashMap[uint256, uint256]  # opened at(48) << 48 | ended at(48)
parties: HashMap[uint256, uint256]  # liable(160) | bond(96)
openers: HashMap[uint256, uint256]  # accuser(160) | block(48) | length of the slot list(32)
host_classes: HashMap[uint256, bytes32]
pays: HashMap[uint256, uint256]  # 80 bits per execution
shown: HashMap[uint256, bytes32]  # H(claims)
juries: HashMap[uint256, uint256]  # 32 bits per seat: registration index, 0 = empty
ballots: HashMap[uint256, HashMap[uint256, bytes32]]  # case -> seat
answers: HashMap[uint256, uint256]  # 12 bits per seat, 4 per execution: 1 + candidate, or docket.VOID_ANSWER
candidates: HashMap[uint256, HashMap[uint256, bytes32]]  # case -> 8 * execution + number -> digest

@deploy
def __init__(token: address, stakes: address, cases: address, beacon: address, slotAge: uint256, roundsAhead: uint256,
             beaconMissing: uint256, window: uint256, gasFee: uint256, seatDeposit: uint256):
    """Seconds, except `roundsAhead` (beacon periods), `gasFee` and `seatDeposit` (token units)."""
    TOKEN = token
    STAKES = stakes
    CASES = cases
    BEACON = beacon
    SLOT_AGE = slotAge
    ROUNDS_AHEAD = roundsAhead
    BEACON_MISSING = beaconMissing
    WINDOW = window
    GAS_FEE = gasFee
    SEAT_DEPOSIT = seatDeposit

# -------------------------------------------------------------------------------------------------------------- opening

@external
@nonreentrant
def open(filing: docket.Filing) -> uint256:
    """Cases only: opens a case. The bond for a whole jury is pulled from the accuser; nothing of the liable account unbonds until the end."""
    assert msg.sender == CASES, "cases"
    caseId: uint256 = self.case_count + 1
    self.case_count = caseId
    s: docket.State = empty(docket.State)
    s.phase = docket.DRAWING
    s.count = filing.count
    bond: uint256 = GAS_FEE
    pays: uint256 = 0
    for i: uint256 in range(filing.count, bound=EXECUTIONS_MAX):
        s.duration += filing.maxDurations[i]
        pays |= filing.pays[i] << (80 * i)
        bond += filing.pays[i]
    bond *= JURORS
    assert bond <= MASK96 and s.duration <= MASK32 and filing.since >= SLOT_AGE, "amount"
    s.since = filing.since - SLOT_AGE
    s.round = self._round_ahead()
    self.states[caseId] = docket._pack(s)
    self.times[caseId] = block.timestamp << 48
    self.parties[caseId] = (convert(filing.liable, uint256) << 96) | bond
    self.openers[caseId] = (convert(filing.accuser, uint256) << 80) | (block.number << 32) | staticcall Stakes(STAKES).slot_count(filing.hostClass)
    self.host_classes[caseId] = filing.hostClass
    self.pays[caseId] = pays
    self.shown[caseId] = keccak256(abi_encode(filing.claims))
    extcall Stakes(STAKES).freeze(filing.liable)
    self._pull(filing.accuser, bond)
    log docket.CaseOpened(caseId=caseId, accused=filing.liable, accuser=filing.accuser, hostClass=filing.hostClass, round=s.round, bond=bond, specHashes=filing.specHashes, inputRoots=filing.inputRoots,
                   assignmentHashes=filing.assignmentHashes, contradictions=filing.contradictions, commitments=filing.commitments,
                   maxDurations=filing.maxDurations, pays=filing.pays)
    return caseId

@internal
@view
def _round_ahead() -> uint256:
    """The first round that appears at least ROUNDS_AHEAD periods from now; a block's stamp may be older than its transactions."""
    return staticcall Beacon(BEACON).first_round_from(block.timestamp + ROUNDS_AHEAD * staticcall Beacon(BEACON).PERIOD())

# ----------------------------------------------------------------------------------------------------------------- jury

@external
def draw_jury(caseId: uint256):
    """Fills the empty seats by the case's beacon round. A second draw keeps those who voted and excludes everybody drawn before."""
    s: docket.State = docket._unpack(self.states[caseId])
    assert s.phase == docket.DRAWING, "phase"
    random: bytes32 = staticcall Beacon(BEACON).randomness(s.round)
    assert random != empty(bytes32), "beacon"
    opener: uint256 = self.openers[caseId]
    jury: uint256 = self.juries[caseId]
    excluded: DynArray[address, 16] = [convert(self.parties[caseId] >> 96, address), convert(opener >> 80, address)]
    kept: uint256 = 0
    for seat: uint256 in range(JURORS):
        index: uint256 = (jury >> (32 * seat)) & MASK32
        if index != 0:
            excluded.append(staticcall Stakes(STAKES).account_at(index))
        if (s.voted >> seat) & 1 == 1:
            kept += 1
    seed: bytes32 = keccak256(abi_encode(random, caseId, s.redrawn))
    drawn: DynArray[uint256, JURORS] = staticcall Stakes(STAKES).draw(
        self.host_classes[caseId], opener & MASK32, seed, JURORS - kept, (opener >> 32) & MASK48, s.since, self.times[caseId] >> 48, excluded)
    seated: uint256 = 0
    taken: uint256 = 0
    for seat: uint256 in range(JURORS):
        if (s.voted >> seat) & 1 == 1:
            seated |= jury & (MASK32 << (32 * seat))
        elif taken < len(drawn):
            seated |= drawn[taken] << (32 * seat)
            taken += 1
    self.juries[caseId] = seated
    s.jurors = kept + taken
    s.phase = docket.VOTING
    s.deadline = block.timestamp + WINDOW + s.duration
    log docket.JuryDrawn(caseId=caseId, jurors=self._jurors(seated), voteBy=s.deadline)
    if s.jurors < docket.JURORS_MIN:
        self._end(caseId, s, docket.VOID, 0)
    elif taken == 0:
        self._open_reveals(caseId, s)
    else:
        self.states[caseId] = docket._pack(s)

@external
def vote(caseId: uint256, votes: DynArray[docket.Vote, JURORS]):
    """Ballots signed by the jurors' operator keys, sent by anyone, one or more at once. The window closes when all are in."""
    s: docket.State = docket._unpack(self.states[caseId])
    assert s.phase == docket.VOTING and block.timestamp <= s.deadline, "phase"
    domain: bytes32 = signatures._domain(STAKES)
    jury: uint256 = self.juries[caseId]
    for each: docket.Vote in votes:
        seat: uint256 = self._seat(jury, each.juror)
        assert (s.voted >> seat) & 1 == 0, "voted"
        key: address = signatures._signer(signatures._digest(domain, keccak256(abi_encode(JURY_VOTE_TYPE, caseId, each.juror, each.ballot))), each.sig)
        assert staticcall Stakes(STAKES).key_valid(each.juror, key, block.timestamp), "key"
        self.ballots[caseId][seat] = each.ballot
        s.voted |= 1 << seat
        log docket.Voted(caseId=caseId, juror=each.juror, ballot=each.ballot)
    if docket._ones(s.voted) == s.jurors:
        self._open_reveals(caseId, s)
    else:
        self.states[caseId] = docket._pack(s)

@external
def advance(caseId: uint256):
    """
    @notice Moves a case past a deadline that nobody met: no-shows lose their deposit and are redrawn once, at a new round; after that
            those who voted go on. A first round that never appears burns the bond.
    """
    s: docket.State = docket._unpack(self.states[caseId])
    if s.phase == docket.DRAWING:
        assert staticcall Beacon(BEACON).randomness(s.round) == empty(bytes32), "phase"
        assert block.timestamp > staticcall Beacon(BEACON).time_of(s.round) + BEACON_MISSING, "early"
        if s.redrawn == 0:
            self._end(caseId, s, docket.NO_BEACON, 0)
            return
    else:
        assert s.phase == docket.VOTING, "phase"
        assert block.timestamp > s.deadline, "early"
        self._fine(caseId, ~s.voted)
        if s.redrawn == 0:
            s.redrawn = 1
            s.phase = docket.DRAWING
            s.round = self._round_ahead()
            self.states[caseId] = docket._pack(s)
            log docket.Redraw(caseId=caseId, round=s.round)
            return
    if docket._ones(s.voted) < docket.JURORS_MIN:
        self._end(caseId, s, docket.VOID, 0)
    else:
        self._open_reveals(caseId, s)

@external
def reveal(caseId: uint256, reveals: DynArray[docket.Reveal, JURORS]):
    """Opens ballots; needs no signature. Equal digests share one stored candidate. The window closes when all are in."""
    s: docket.State = docket._unpack(self.states[caseId])
    assert s.phase == docket.REVEALING and block.timestamp <= s.deadline, "phase"
    jury: uint256 = self.juries[caseId]
    answers: uint256 = self.answers[caseId]
    for each: docket.Reveal in reveals:
        seat: uint256 = self._seat(jury, each.juror)
        assert (s.voted >> seat) & 1 == 1 and (s.revealed >> seat) & 1 == 0, "revealed"
        ballot: bytes32 = keccak256(abi_encode(caseId, each.juror, each.salt, each.digests))
        assert self.ballots[caseId][seat] == ballot, "reveal"
        s.revealed |= 1 << seat
        for i: uint256 in range(EXECUTIONS_MAX):
            if i < s.count:
                answers |= self._answer(caseId, i, each.digests[i]) << (12 * seat + 4 * i)
            else:
                assert each.digests[i] == empty(bytes32), "reveal"
        log docket.Revealed(caseId=caseId, juror=each.juror, digests=each.digests)
    self.answers[caseId] = answers
    if s.revealed == s.voted:
        s.phase = docket.DECIDING
        s.deadline = block.timestamp
    self.states[caseId] = docket._pack(s)

@internal
def _answer(caseId: uint256, execution: uint256, digest: bytes32) -> uint256:
    """The number under which a digest is counted; a new one is stored."""
    if digest == empty(bytes32):
        return docket.VOID_ANSWER
    number: uint256 = 0
    for k: uint256 in range(JURORS):
        number = k
        known: bytes32 = self.candidates[caseId][8 * execution + k]
        if known == digest:
            break
        if known == empty(bytes32):
            self.candidates[caseId][8 * execution + k] = digest
            break
    return number + 1

@internal
def _open_reveals(caseId: uint256, state: docket.State):
    s: docket.State = state
    s.phase = docket.REVEALING
    s.deadline = block.timestamp + WINDOW
    self.states[caseId] = docket._pack(s)
    log docket.RevealsOpen(caseId=caseId, revealBy=s.deadline)

# ------------------------------------------------------------------------------------------------------------- decision

@external
@nonreentrant
def decide(caseId: uint256, openings: DynArray[docket.Opening, CLAIMS_MAX]):
    """
    @notice Opens the commitments that the case showed, and ends it. Without openings, which anybody may give, it ends one window after
            the reveals: the bond pays, and the executions may be named once more.
    """
    s: docket.State = docket._unpack(self.states[caseId])
    assert s.phase == docket.DECIDING or (s.phase == docket.REVEALING and block.timestamp > s.deadline), "phase"
    self._fine(caseId, s.voted & ~s.revealed)
    answers: uint256 = self.answers[caseId]
    all: uint256 = (1 << s.count) - 1
    outcome: uint256 = docket.UNOPENED
    s.failed = all
    if len(openings) == 0:
        assert block.timestamp > s.deadline + WINDOW, "early"
        if docket._ones(s.revealed) < docket.JURORS_MIN:
            outcome = docket.VOID
    else:
        digests: bytes32[CLAIMS_MAX] = self._opened(caseId, s, openings)
        revealed: uint256 = docket._ones(s.revealed)
        need: uint256 = max(docket.JURORS_MIN, (2 * revealed + 2) // 3)
        right: uint256 = 0  # bit per execution that does not convict
        wrong: uint256 = 0
        void: uint256 = 0
        for i: uint256 in range(s.count, bound=EXECUTIONS_MAX):
            votes: uint256 = docket._votes(answers, i)
            if 2 * ((votes >> (4 * docket.VOID_ANSWER)) & 15) >= revealed:
                void |= 1 << i
            found: bytes32 = empty(bytes32)
            for number: uint256 in range(JURORS):
                if (votes >> (4 * (number + 1))) & 15 >= need:
                    found = self.candidates[caseId][8 * i + number]
            mine: bytes32 = digests[2 * i]
            other: bytes32 = digests[2 * i + 1]
            if mine == empty(bytes32) or mine == other:
                right |= 1 << i
            elif found == empty(bytes32):
                continue
            elif found == other:
                wrong |= 1 << i
            elif found == mine:
                right |= 1 << i
        s.closed = right
        s.failed = all & ~right & ~wrong
        outcome = docket.ACQUITTED
        if revealed < docket.JURORS_MIN:
            outcome = docket.VOID
            s.closed = 0
            s.failed = all
        elif wrong == all:
            outcome = docket.CONVICTED
            s.closed = all
        elif void != 0:
            outcome = docket.VOID
    self._end(caseId, s, outcome, answers)

@internal
@view
def _opened(caseId: uint256, s: docket.State, openings: DynArray[docket.Opening, CLAIMS_MAX]) -> bytes32[CLAIMS_MAX]:
    """Result digest of each claim, by the commitment that its provider signed; zero for a pair of which one was killed."""
    assert len(openings) == 2 * s.count, "count"
    claims: bytes32[CLAIMS_MAX] = empty(bytes32[CLAIMS_MAX])
    digests: bytes32[CLAIMS_MAX] = empty(bytes32[CLAIMS_MAX])
    killed: uint256 = 0
    for k: uint256 in range(len(openings), bound=CLAIMS_MAX):
        o: docket.Opening = openings[k]
        digests[k] = keccak256(abi_encode(o.exitStatus, o.outputDigest))
        claims[k] = keccak256(abi_encode(o.assignmentHash, o.provider, keccak256(abi_encode(o.assignmentHash, o.provider, o.salt, digests[k]))))
        if o.exitStatus == docket.KILLED or o.exitStatus == docket.KILLED + 1:
            killed |= 1 << (k // 2)
    assert keccak256(abi_encode(claims)) == self.shown[caseId], "reveal"
    for k: uint256 in range(CLAIMS_MAX):
        if (killed >> (k // 2)) & 1 == 1:
            digests[k] = empty(bytes32)
    return digests

@internal
def _fine(caseId: uint256, seats: uint256):
    """Jurors that were drawn and did not vote, or voted and did not reveal, lose a small deposit. It is burned."""
    jury: uint256 = self.juries[caseId]
    for seat: uint256 in range(JURORS):
        index: uint256 = (jury >> (32 * seat)) & MASK32
        if index != 0 and (seats >> seat) & 1 == 1:
            self.burned += extcall Stakes(STAKES).fine(staticcall Stakes(STAKES).account_at(index), SEAT_DEPOSIT)

@internal
def _end(caseId: uint256, state: docket.State, outcome: uint256, answers: uint256):
    """
    @notice Pays and frees everybody. Who was right gets the whole bond back, then gas, then the jurors are paid;
            all of it together is at most what was taken. Otherwise the bond pays the jurors: what is left of it goes back if the case is
            void, else it is burned. Jurors of every largest agreeing group are paid; before the reveals those who voted get the gas.
    """
    s: docket.State = state
    party: uint256 = self.parties[caseId]
    liable: address = convert(party >> 96, address)
    accuser: address = convert(self.openers[caseId] >> 80, address)
    burned: uint256 = party & MASK96
    pays: uint256 = self.pays[caseId]
    paid: uint256 = docket._largest(s.revealed, answers)
    if s.phase == docket.DRAWING or s.phase == docket.VOTING:
        paid = s.voted
    owed: uint256[JURORS] = docket._owed(pays, paid, answers, GAS_FEE)
    total: uint256 = 0
    for seat: uint256 in range(JURORS):
        total += owed[seat]
    funds: uint256 = total
    slashed: uint256 = 0
    extcall Stakes(STAKES).unfreeze(liable)
    if outcome == docket.CONVICTED:
        amount: uint256 = SLASH_MULTIPLE * ((pays & MASK80) + ((pays >> 80) & MASK80) + (pays >> 160))
        slashed = extcall Stakes(STAKES).slash(liable, max(amount, total + GAS_FEE))
        own: uint256 = min(slashed, GAS_FEE)
        funds = min(total, slashed - own)
        self._credit(caseId, accuser, burned + own)
        burned = slashed - own
    elif outcome == docket.VOID:
        self._credit(caseId, accuser, burned - total)
        burned = total
    jury: uint256 = self.juries[caseId]
    for seat: uint256 in range(JURORS):
        if owed[seat] != 0:
            amount: uint256 = owed[seat] * funds // total
            self._credit(caseId, staticcall Stakes(STAKES).account_at((jury >> (32 * seat)) & MASK32), amount)
            burned -= amount
    self.burned += burned
    if s.phase != docket.DECIDING and s.phase != docket.REVEALING and outcome != docket.CONVICTED:
        s.failed = (1 << s.count) - 1
    s.phase = docket.DECIDED
    s.outcome = outcome
    self.states[caseId] = docket._pack(s)
    self.times[caseId] |= block.timestamp
    log docket.Decided(caseId=caseId, accused=liable, convicted=outcome == docket.CONVICTED, outcome=outcome, slashed=slashed, burned=burned)

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

@external
@view
def case_of(caseId: uint256) -> docket.Case:
    """One case as it stands; all zero when it was never opened."""
    party: uint256 = self.parties[caseId]
    return docket.Case(state=docket._unpack(self.states[caseId]), accused=convert(party >> 96, address), accuser=convert(self.openers[caseId] >> 80, address),
                hostClass=self.host_classes[caseId], bond=party & MASK96, openedAt=self.times[caseId] >> 48,
                endedAt=self.times[caseId] & MASK48, jurors=self._jurors(self.juries[caseId]))

@external
@view
def ending(caseId: uint256) -> (uint256, uint256, uint256, uint256):
    """Whether a case is over (1), which executions it judged, on which it failed, and how long it took, in seconds."""
    s: docket.State = docket._unpack(self.states[caseId])
    times: uint256 = self.times[caseId]
    if s.phase != docket.DECIDED:
        return 0, 0, 0, 0
    return 1, s.closed, s.failed, (times & MASK48) - (times >> 48)

# ------------------------------------------------------------------------------------------------------------- internal

@internal
@view
def _jurors(jury: uint256) -> DynArray[address, JURORS]:
    accounts: DynArray[address, JURORS] = []
    for seat: uint256 in range(JURORS):
        index: uint256 = (jury >> (32 * seat)) & MASK32
        if index != 0:
            accounts.append(staticcall Stakes(STAKES).account_at(index))
    return accounts

@internal
@view
def _seat(jury: uint256, juror: address) -> uint256:
    index: uint256 = staticcall Stakes(STAKES).index_of(juror)
    for seat: uint256 in range(JURORS):
        if index != 0 and (jury >> (32 * seat)) & MASK32 == index:
            return seat
    raise "juror"

@internal
def _credit(caseId: uint256, account: address, amount: uint256):
    if amount > 0:
        self.credit_of[account] += amount
        log docket.Credited(account=account, caseId=caseId, amount=amount)

@internal
def _pull(owner: address, amount: uint256):
    """Tokens in; a token that rebases or takes a fee on transfer is refused."""
    before: uint256 = staticcall IERC20(TOKEN).balanceOf(self)
    assert extcall IERC20(TOKEN).transferFrom(owner, self, amount, default_return_value=True), "token"
    assert staticcall IERC20(TOKEN).balanceOf(self) == before + amount, "amount"
