# pragma version 0.4.3
"""
@title Court
@notice The only way to take stake for a wrong result (PROTOCOL §5): a case over two or three executions of one provider, a
        jury that the beacon draws among the stakers of the host class, votes as commitments, their opening, the decision.
@dev The hash of the Reveal that a case must show is the commitment inside the Commit: it binds salt and result. It alone is checked at
     the decision, so an accuser who works for the accused cannot block a case by showing some other hash.
     Money here = bonds of open cases + credits + `burned`, which nothing can move.
"""

from ethereum.ercs import IERC20

import docket
import evidence
import signatures

interface Stakes:
    def key_valid(account: address, key: address, at: uint256) -> bool: view
    def index_of(account: address) -> uint256: view
    def account_at(index: uint256) -> address: view
    def payout_of(account: address) -> address: view
    def stake_of(account: address) -> uint256: view
    def slot_count(hostClass: bytes32) -> uint256: view
    def owner_count(hostClass: bytes32) -> uint256: view
    def draw(hostClass: bytes32, length: uint256, seed: bytes32, want: uint256, atBlock: uint256, openedBy: uint256, excluded: DynArray[address, 16]) -> DynArray[uint256, JURORS]: view
    def freeze(account: address): nonpayable
    def unfreeze(account: address): nonpayable
    def slash(account: address, amount: uint256) -> uint256: nonpayable

interface Escrow:
    def allocated_since(client: address, coordinator: address) -> uint256: view

interface Beacon:
    def PERIOD() -> uint256: view
    def first_round_from(timestamp: uint256) -> uint256: view
    def time_of(round: uint256) -> uint256: view
    def randomness(round: uint256) -> bytes32: view

struct Case:
    state: docket.State
    accused: address
    accuser: address
    hostClass: bytes32
    bond: uint256
    jurors: DynArray[address, JURORS]  # drawn and not replaced

EXECUTIONS_MAX: constant(uint256) = 3
JURORS: constant(uint256) = 7
SLASH_MULTIPLE: constant(uint256) = 8
MASK32: constant(uint256) = 2**32 - 1
MASK48: constant(uint256) = 2**48 - 1
MASK80: constant(uint256) = 2**80 - 1
MASK96: constant(uint256) = 2**96 - 1

JURY_VOTE_TYPE: constant(bytes32) = keccak256("JuryVote(uint256 caseId,address juror,bytes32 ballot)")

TOKEN: public(immutable(address))
STAKES: public(immutable(address))
ESCROW: public(immutable(address))
BEACON: public(immutable(address))
OWNERS_MIN: public(immutable(uint256))
SLOT_AGE: public(immutable(uint256))
ROUNDS_AHEAD: public(immutable(uint256))
BEACON_MISSING: public(immutable(uint256))
WINDOW: public(immutable(uint256))
GAS_FEE: public(immutable(uint256))
EVIDENCE_AGE: public(immutable(uint256))
ALLOCATION_AGE: public(immutable(uint256))

case_count: public(uint256)
burned: public(uint256)
credit_of: public(HashMap[address, uint256])
named_in: HashMap[bytes32, uint256]  # assignment -> case << 8 | position
states: HashMap[uint256, uint256]
parties: HashMap[uint256, uint256]  # accused(160) | bond(96)
openers: HashMap[uint256, uint256]  # accuser(160) | block(48) | length of the slot list(32)
host_classes: HashMap[uint256, bytes32]
pays: HashMap[uint256, uint256]  # 80 bits per execution
shown: HashMap[uint256, bytes32]  # H(assignment hashes, commitments)
juries: HashMap[uint256, uint256]  # 32 bits per seat: registration index, 0 = empty
ballots: HashMap[uint256, HashMap[uint256, bytes32]]  # case -> seat
answers: HashMap[uint256, uint256]  # 12 bits per seat, 4 per execution: 1 + candidate, or docket.VOID_ANSWER
candidates: HashMap[uint256, HashMap[uint256, bytes32]]  # case -> 8 * execution + number -> digest

@deploy
def __init__(token: address, stakes: address, escrow: address, beacon: address, ownersMin: uint256, slotAge: uint256, roundsAhead: uint256,
             beaconMissing: uint256, window: uint256, gasFee: uint256, evidenceAge: uint256, allocationAge: uint256):
    """Seconds, except `roundsAhead` (beacon periods) and `gasFee` (token units)."""
    TOKEN = token
    STAKES = stakes
    ESCROW = escrow
    BEACON = beacon
    OWNERS_MIN = ownersMin
    SLOT_AGE = slotAge
    ROUNDS_AHEAD = roundsAhead
    BEACON_MISSING = beaconMissing
    WINDOW = window
    GAS_FEE = gasFee
    EVIDENCE_AGE = evidenceAge
    ALLOCATION_AGE = allocationAge

# -------------------------------------------------------------------------------------------------------------- opening

@external
@nonreentrant
def open_case(executions: DynArray[evidence.Execution, EXECUTIONS_MAX]) -> uint256:
    """
    @notice Accuses one provider with two executions for different clients, or three for any. The bond for a whole jury is pulled
            from the sender; the accused's stake cannot unbond until the case ends.
    """
    count: uint256 = len(executions)
    assert count >= 2, "count"
    accused: address = executions[0].assignment.provider
    hostClass: bytes32 = executions[0].assignment.hostClass
    assert msg.sender != accused, "accuser"
    assert staticcall Stakes(STAKES).stake_of(accused) > 0, "stake"
    assert staticcall Stakes(STAKES).owner_count(hostClass) >= OWNERS_MIN, "owners"
    assert count > 2 or executions[0].order.client != executions[1].order.client, "clients"
    domain: bytes32 = signatures._domain(STAKES)
    caseId: uint256 = self.case_count + 1
    self.case_count = caseId
    s: docket.State = empty(docket.State)
    s.phase = docket.DRAWING
    s.count = count
    s.since = MASK48
    specHashes: bytes32[EXECUTIONS_MAX] = empty(bytes32[EXECUTIONS_MAX])
    inputRoots: bytes32[EXECUTIONS_MAX] = empty(bytes32[EXECUTIONS_MAX])
    assignments: bytes32[EXECUTIONS_MAX] = empty(bytes32[EXECUTIONS_MAX])
    commitments: bytes32[EXECUTIONS_MAX] = empty(bytes32[EXECUTIONS_MAX])
    durations: uint256[EXECUTIONS_MAX] = empty(uint256[EXECUTIONS_MAX])
    pays: uint256[EXECUTIONS_MAX] = empty(uint256[EXECUTIONS_MAX])
    bond: uint256 = GAS_FEE
    for i: uint256 in range(count, bound=EXECUTIONS_MAX):
        e: evidence.Execution = executions[i]
        assert e.assignment.provider == accused, "provider"
        assert e.assignment.hostClass == hostClass, "class"
        assignments[i] = evidence._check(STAKES, domain, e, EVIDENCE_AGE)
        if count == 2:
            since: uint256 = staticcall Escrow(ESCROW).allocated_since(e.order.client, e.order.coordinator)
            assert since != 0 and since + ALLOCATION_AGE <= convert(e.assignment.acceptBy, uint256), "allocation"
        self._name(assignments[i], caseId, i)
        specHashes[i] = e.order.specHash
        inputRoots[i] = e.order.inputRoot
        commitments[i] = e.commit.commitment
        durations[i] = convert(e.assignment.maxDuration, uint256)
        pays[i] = evidence._pay_named(e)
        bond += convert(e.assignment.pricePerHour, uint256) * durations[i] // 3600
        s.duration += durations[i]
        s.since = min(s.since, convert(e.assignment.acceptBy, uint256))
    bond *= JURORS
    assert bond <= MASK96 and s.duration <= MASK32 and s.since >= SLOT_AGE, "amount"
    s.since -= SLOT_AGE
    s.round = self._round_ahead()
    self.states[caseId] = docket._pack(s)
    self.parties[caseId] = (convert(accused, uint256) << 96) | bond
    self.openers[caseId] = (convert(msg.sender, uint256) << 80) | (block.number << 32) | staticcall Stakes(STAKES).slot_count(hostClass)
    self.host_classes[caseId] = hostClass
    self.pays[caseId] = pays[0] | (pays[1] << 80) | (pays[2] << 160)
    self.shown[caseId] = keccak256(abi_encode(assignments, commitments))
    extcall Stakes(STAKES).freeze(accused)
    self._pull(msg.sender, bond)
    log docket.CaseOpened(caseId=caseId, accused=accused, accuser=msg.sender, hostClass=hostClass, round=s.round, bond=bond, specHashes=specHashes,
                   inputRoots=inputRoots, assignmentHashes=assignments, commitments=commitments, maxDurations=durations, pays=pays)
    return caseId

@internal
def _name(assignment: bytes32, caseId: uint256, position: uint256):
    """An execution is in one case at a time; once it was judged, in none."""
    word: uint256 = self.named_in[assignment]
    if word != 0:
        earlier: docket.State = docket._unpack(self.states[word >> 8])
        assert earlier.phase == docket.DECIDED and (earlier.closed >> (word & 255)) & 1 == 0, "named"
    self.named_in[assignment] = (caseId << 8) | position

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
        self.host_classes[caseId], opener & MASK32, seed, JURORS - kept, (opener >> 32) & MASK48, s.since, excluded)
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
        self._end(caseId, s, docket.VOID, 0, 0)
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
    @notice Moves a case past a deadline that nobody met: no-shows are redrawn once, at a new round; after that those who voted go on.
            A first round that never appears burns the bond.
    """
    s: docket.State = docket._unpack(self.states[caseId])
    if s.phase == docket.DRAWING:
        assert staticcall Beacon(BEACON).randomness(s.round) == empty(bytes32), "phase"
        assert block.timestamp > staticcall Beacon(BEACON).time_of(s.round) + BEACON_MISSING, "early"
        if s.redrawn == 0:
            self._end(caseId, s, docket.NO_BEACON, 0, 0)
            return
    else:
        assert s.phase == docket.VOTING, "phase"
        assert block.timestamp > s.deadline, "early"
        if s.redrawn == 0:
            s.redrawn = 1
            s.phase = docket.DRAWING
            s.round = self._round_ahead()
            self.states[caseId] = docket._pack(s)
            log docket.Redraw(caseId=caseId, round=s.round)
            return
    if docket._ones(s.voted) < docket.JURORS_MIN:
        self._end(caseId, s, docket.VOID, 0, 0)
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
def decide(caseId: uint256, openings: DynArray[docket.Opening, EXECUTIONS_MAX]):
    """
    @notice Opens the accused's commitments and ends the case. Without openings, which anybody may give, it ends one window after the
            reveals: the bond pays, and the executions may be named again.
    """
    s: docket.State = docket._unpack(self.states[caseId])
    assert s.phase == docket.DECIDING or (s.phase == docket.REVEALING and block.timestamp > s.deadline), "phase"
    answers: uint256 = self.answers[caseId]
    outcome: uint256 = docket.UNOPENED
    closed: uint256 = 0
    if len(openings) == 0:
        assert block.timestamp > s.deadline + WINDOW, "early"
    else:
        wrong: uint256 = self._wrong(caseId, s, answers, self._opened(caseId, s, openings))
        all: uint256 = (1 << s.count) - 1
        if wrong == all:
            outcome = docket.CONVICTED
            closed = all
        else:
            outcome = docket.ACQUITTED
            closed = all & ~wrong
    if docket._is_void(s, answers) and outcome != docket.CONVICTED:
        outcome = docket.VOID
        closed = 0
    self._end(caseId, s, outcome, closed, answers)

@internal
@view
def _opened(caseId: uint256, s: docket.State, openings: DynArray[docket.Opening, EXECUTIONS_MAX]) -> bytes32[EXECUTIONS_MAX]:
    """Result digests of the accused, by the commitments it signed."""
    assert len(openings) == s.count, "count"
    accused: address = convert(self.parties[caseId] >> 96, address)
    digests: bytes32[EXECUTIONS_MAX] = empty(bytes32[EXECUTIONS_MAX])
    assignments: bytes32[EXECUTIONS_MAX] = empty(bytes32[EXECUTIONS_MAX])
    commitments: bytes32[EXECUTIONS_MAX] = empty(bytes32[EXECUTIONS_MAX])
    for i: uint256 in range(s.count, bound=EXECUTIONS_MAX):
        digests[i] = keccak256(abi_encode(openings[i].exitStatus, openings[i].outputDigest))
        assignments[i] = openings[i].assignmentHash
        commitments[i] = keccak256(abi_encode(assignments[i], accused, openings[i].salt, digests[i]))
    assert keccak256(abi_encode(assignments, commitments)) == self.shown[caseId], "reveal"
    return digests

@internal
@view
def _wrong(caseId: uint256, s: docket.State, answers: uint256, digests: bytes32[EXECUTIONS_MAX]) -> uint256:
    """Bit per execution where two thirds of the jurors, and at least three, name one digest that is not the accused's."""
    need: uint256 = max(docket.JURORS_MIN, (2 * s.jurors + 2) // 3)
    wrong: uint256 = 0
    for i: uint256 in range(s.count, bound=EXECUTIONS_MAX):
        votes: uint256 = 0  # 4 bits per answer
        for seat: uint256 in range(JURORS):
            votes += 1 << (4 * ((answers >> (12 * seat + 4 * i)) & 15))
        for number: uint256 in range(JURORS):
            if (votes >> (4 * (number + 1))) & 15 >= need and self.candidates[caseId][8 * i + number] != digests[i]:
                wrong |= 1 << i
    return wrong

@internal
def _end(caseId: uint256, state: docket.State, outcome: uint256, closed: uint256, answers: uint256):
    """Pays and frees everybody. Convicted: the stake pays the accuser's gas, then the jurors, the bond what is missing."""
    party: uint256 = self.parties[caseId]
    accused: address = convert(party >> 96, address)
    accuser: address = convert(self.openers[caseId] >> 80, address)
    bond: uint256 = party & MASK96
    extcall Stakes(STAKES).unfreeze(accused)
    cost: uint256 = self._pay_jurors(caseId, state, answers)
    slashed: uint256 = 0
    burned: uint256 = 0
    if outcome == docket.CONVICTED:
        pays: uint256 = self.pays[caseId]
        slashed = extcall Stakes(STAKES).slash(accused, SLASH_MULTIPLE * ((pays & MASK80) + ((pays >> 80) & MASK80) + (pays >> 160)))
        own: uint256 = min(slashed, GAS_FEE)
        paid: uint256 = min(slashed - own, cost)
        burned = slashed - own - paid
        self._credit(caseId, accuser, bond + own + paid - cost)
    elif outcome == docket.VOID:
        self._credit(caseId, accuser, bond - cost)
    else:
        burned = bond - cost
    self.burned += burned
    s: docket.State = state
    s.phase = docket.DECIDED
    s.outcome = outcome
    s.closed = closed
    self.states[caseId] = docket._pack(s)
    log docket.Decided(caseId=caseId, accused=accused, convicted=outcome == docket.CONVICTED, outcome=outcome, slashed=slashed, burned=burned)

@internal
def _pay_jurors(caseId: uint256, s: docket.State, answers: uint256) -> uint256:
    """
    @notice Credits the jurors of the largest agreeing group, of every one of them when some are equally large: gas, and the pay of each
            execution that they did not find void. In a case that ends before the reveals, those who voted get the gas.
    """
    jury: uint256 = self.juries[caseId]
    pays: uint256 = self.pays[caseId]
    paid: uint256 = docket._largest(s.revealed, answers)
    if s.phase == docket.DRAWING or s.phase == docket.VOTING:
        paid = s.voted
    total: uint256 = 0
    for seat: uint256 in range(JURORS):
        if (paid >> seat) & 1 == 0:
            continue
        amount: uint256 = GAS_FEE
        for i: uint256 in range(EXECUTIONS_MAX):
            answer: uint256 = (answers >> (12 * seat + 4 * i)) & 15
            if answer != 0 and answer != docket.VOID_ANSWER:
                amount += (pays >> (80 * i)) & MASK80
        self._credit(caseId, staticcall Stakes(STAKES).account_at((jury >> (32 * seat)) & MASK32), amount)
        total += amount
    return total

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
def case_of(caseId: uint256) -> Case:
    """One case as it stands; all zero when it was never opened."""
    party: uint256 = self.parties[caseId]
    return Case(state=docket._unpack(self.states[caseId]), accused=convert(party >> 96, address), accuser=convert(self.openers[caseId] >> 80, address),
                hostClass=self.host_classes[caseId], bond=party & MASK96, jurors=self._jurors(self.juries[caseId]))

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
@view
def _load(caseId: uint256) -> docket.State:
    w: uint256 = self.states[caseId]
    return docket.State(phase=w & 255, count=(w >> 8) & 255, jurors=(w >> 16) & 255, voted=(w >> 24) & 255, revealed=(w >> 32) & 255,
                 redrawn=(w >> 40) & 255, outcome=(w >> 48) & 255, closed=(w >> 56) & 255, deadline=(w >> 64) & MASK48,
                 duration=(w >> 112) & MASK32, since=(w >> 144) & MASK48, round=w >> 192)

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
