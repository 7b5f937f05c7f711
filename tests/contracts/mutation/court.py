"""Broken rules of Stakes, Court and Faults, and which tests may notice them."""

from contracts.mutation.money import Mutant, changed

FILES = {  # the quickest first
    "Court": ("court_refusals", "court_cases", "juries", "court_walks"),
    "docket": ("court_refusals", "court_cases", "court_walks"),
    "evidence": ("court_refusals", "faults"),
    "draws": ("juries",),
    "slot_list": ("juries", "exits_and_burns", "court_walks"),
    "profiles": ("exits_and_burns", "juries"),
    "Stakes": ("exits_and_burns", "faults", "court_refusals", "court_walks"),
    "Faults": ("faults", "court_walks"),
}
CHANGED = """
Court
one evidence in two cases
    assert self.states[execution] == 0, "named" => pass
evidence ages a second early
    block.timestamp <= acceptBy + d => block.timestamp < acceptBy + d
evidence never ages
    assert block.timestamp <= acceptBy + duration + EVIDENCE_AGE, "late" => pass
a job of any length
    assert duration <= DURATION_MAX, "duration" => pass
a juror gets less than the job
    pay >= max(JURY_PAY_MIN, most) => pay >= JURY_PAY_MIN
a juror gets less than the least
    pay >= max(JURY_PAY_MIN, most) => pay >= most
the accused contradicts itself
    assert other != accused, "contradiction" => pass
a coordinator without bond
    , acceptBy), "bond" => , acceptBy) or True, "bond"
one owner too many is needed
    assert owners >= OWNERS_MIN => assert owners > OWNERS_MIN
any count of owners
    assert owners >= OWNERS_MIN => assert owners >= 0
the accuser pays for six
    take(msg.sender, JURORS * => take(msg.sender, 6 *
young slots judge
    openedBy=acceptBy - SLOT_AGE => openedBy=block.timestamp
a draw without a round
    assert random != empty(bytes32), "beacon" => pass
one draw for all cases
    abi_encode(random, caseId) => abi_encode(random, random)
the accuser judges
    [filing.accuser, filing.accused, filing.other] => [filing.accused, filing.accused, filing.other]
the accused judges
    [filing.accuser, filing.accused, filing.other] => [filing.accuser, filing.accuser, filing.other]
the contradiction's owner judges
    filing.accused, filing.other] => filing.accused, filing.accused]
a draw begins again
    JURORS - seats, s.tries, => JURORS - seats, 0,
two jurors are enough
    seats >= docket.JURORS_MIN and => seats >= 2 and
a draw of nobody is voted on
    docket.JURORS_MIN and len(drawn) > s.floor => docket.JURORS_MIN
jurors have no time for long jobs
    WINDOW + filing.duration => WINDOW
a replaced juror votes
    each.place >= docket._floor(state) and each => each
a juror votes twice
    assert not docket._has_voted(state, each.place), "voted" => pass
any key votes
    , block.timestamp), "key" => , block.timestamp) or True, "key"
old keys vote
    each.sig), block.timestamp) => each.sig), block.timestamp - 1)
votes end a second early
    assert block.timestamp > s.when, "early" => assert block.timestamp >= s.when, "early"
a round is missing a second early
    block.timestamp > staticcall => block.timestamp >= staticcall
one move
    MOVES_MAX: constant(uint256) = 2 => MOVES_MAX: constant(uint256) = 1
three moves
    MOVES_MAX: constant(uint256) = 2 => MOVES_MAX: constant(uint256) = 3
a present round is replaced
    assert staticcall Beacon(BEACON).randomness(s.when) == empty(bytes32), "phase" => pass
absent jurors are replaced twice
    isMoved = s.floor == 0 and => isMoved =
absent jurors are not replaced
    isMoved = s.floor == 0 and => isMoved = False and
any ballots
    assert links == docket._chain(state), "ballots" => pass
any reveal
    and link == ballots[each.place] =>
revealed twice
    assert not docket._is_revealed(state, each.place), "revealed" => pass
any answers are counted
    assert links == s.chain, "ballots" => pass
decided before all revealed
    block.timestamp > s.when or len => True or len
decided a second early
    assert block.timestamp > s.when or len => assert block.timestamp >= s.when or len
ended unopened a second early
    block.timestamp > s.when + WINDOW => block.timestamp >= s.when + WINDOW
a failed case closes
    0 if outcome == docket.FAILED else => 0 if False else
an acquittal does not close
    0 if outcome == docket.FAILED else => 0 if outcome != docket.CONVICTED else
a conviction costs all that was burned
    (filing.pay + GAS_FEE) // 2 => (filing.pay + GAS_FEE)
half of the answers convict
    3 * size < 2 * len(digests) => 2 * size < len(digests)
two answers convict
    size < docket.JURORS_MIN or  =>
any third result convicts
    if found == theirs and => if
a killed accused is convicted
    not docket._is_killed(openings[0]) and  =>
a killed contradiction convicts
     and not docket._is_killed(openings[1]) =>
no result is paid as one
    GAS_FEE if digests[i] == empty(bytes32) else pay + GAS_FEE => pay + GAS_FEE
everybody is paid
            if (places >> i) & 1 == 1:\\n            amount =>         if True:\\n            amount
one voter is too few to reveal
    if s.voted == 0: => if docket._ones(s.voted) < 3:
three absent jurors are not replaced
    docket._ones(s.voted) < VOTES_ENOUGH => docket._ones(s.voted) < 4
two absent jurors are replaced
    docket._ones(s.voted) < VOTES_ENOUGH => docket._ones(s.voted) < 6
docket
the last second does not count
    block.timestamp <= (w >> 160) => block.timestamp < (w >> 160)
an opening of another result
     == commitment, "opening" =>  != empty(bytes32), "opening"
memory kills convict
    or opening.exitStatus == KILLED + 1 =>
one of equal groups is paid
                places |= same\\n =>             pass\\n
a voter can be changed
    abi_encode(juror, ballot) => abi_encode(ballot, ballot)
the order of ballots is free
    (links, link)), uint256) & MASK160 => (link, link)), uint256) ^ links & MASK160
evidence
uncaseable orders
    e.order.comparator == EXACT and e.order.caseable => e.order.comparator == EXACT
other comparators
    e.order.comparator == EXACT and e.order.caseable => e.order.caseable
an order of another class
    e.order.pool == e.pool,  => True,
an ended session
    assert e.run.acceptBy <= e.expires, "expired" => pass
a session of anybody
    e.sessionSig) == e.order.client => e.sessionSig) != empty(address)
an order of anybody
    e.orderSig) == e.sessionKey => e.orderSig) != empty(address)
evidence of the future
    acceptBy < block.timestamp => acceptBy <= block.timestamp
any price
    assert run.pricePerHour <= order.maxPricePerHour, "price" => pass
any duration
    assert run.maxDuration <= order.maxDuration, "duration" => pass
an assignment of anybody
    , acceptBy), "assignment" => , acceptBy) or True, "assignment"
a commit of anybody
    , acceptBy), "commit" => , acceptBy) or True, "commit"
draws
young slots are drawn
    or word & MASK32 > lot.openedBy  =>
two of a network judge
            if network in networks:\\n            continue\\n =>
replaced jurors are drawn again
    networks.append(profiles._network_at(juror => networks.append(profiles._network_at(self
a draw ends soon
    TRIES_PER_PLACE: constant(uint256) = 8 => TRIES_PER_PLACE: constant(uint256) = 1
lists of 63 are long
    SHUFFLED_MAX: constant(uint256) = 64 => SHUFFLED_MAX: constant(uint256) = 63
slot_list
closed slots judge
    and block.number < (word >> 32) & MASK32  =>
owners that left judge
     and (start > out or block.number < out) =>
profiles
long networks
    assert convert(network, uint256) & MASK96 == 0, "network" => pass
a change of network undoes an exit
    | (self._out_block(self.owners[account]) << 48)  =>
an exit forgets the change
    ((block.number + 1) << 48) | (word & MASK48) => ((block.number + 1) << 48)
an old network counts a second longer
    changed != 0 and at < changed => changed != 0 and at <= changed
Stakes
anybody burns
    assert msg.sender in [COURT, FAULTS], "module" => pass
Faults does not burn
    [COURT, FAULTS] => [COURT, COURT]
more than a slot is burned
    min(amount, SLOT_STAKE) => amount
the sender gets more than half
    min(reward, taken // 2) => min(reward, taken)
half a stake closes slots
    if 2 * self.stake_of[account] < slot => if 2 * self.stake_of[account] <= slot
a burn prolongs
     and slot_list._has_open(account):\\n            slot_list => :\\n            slot_list
an account leaves twice
        assert self.exited_at[account] == 0, "exited"\\n    self.exited_at =>     self.exited_at
who left opens slots
        assert self.exited_at[account] == 0, "exited"\\n    slot_list =>     slot_list
who left restores
        assert self.exited_at[msg.sender] == 0, "exited"\\n =>
a bond leaves at once
    block.timestamp >= self.exited_at[msg.sender] + UNBOND_AFTER => True
an announcement without bond
    assert bonds.bond_of[coordinator] > 0, "registered" => pass
anybody announces
    assert self.posting_key[coordinator] == msg.sender, "signer" => pass
a party counts twice
    if not isAgain and => if
Faults
one commit twice
    oneSig, at)\\n    assert first != self => oneSig, at)\\n    assert empty(bytes32) != self
one ack twice
    one, oneSig)\\n    assert first != => one, oneSig)\\n    assert empty(bytes32) !=
two jobs
    assert one.jobId == other.jobId, "job" => pass
a coordinator without bond
    at), "bond" => at) or True, "bond"
any assignment
    at), "assignment" => at) or True, "assignment"
another assignment's commit
    one.assignmentHash == place and  =>
any key
    sig), at), "key" => sig), at) or True, "key"
evidence of the future
    assert at <= block.timestamp, "early" => pass
evidence ages a second early
    block.timestamp <= at + EVIDENCE_AGE => block.timestamp < at + EVIDENCE_AGE
the same accident a second longer
    at > last + EVIDENCE_AGE => at > last + EVIDENCE_AGE + 1
the same accident counts again
    assert at > last + EVIDENCE_AGE, "proven" => pass
every fault is a first one
    if at < last + FIRST_FAULT_FOR => if at < last
90 days and a second
    if at < last + FIRST_FAULT_FOR => if at <= last + FIRST_FAULT_FOR
a cheap job costs no gas
    max(GAS_FEE, evidence => max(1, evidence
an ack's first time counts
    convert(max(one.ackTime => convert(min(one.ackTime
the bond answers for a provider
    self._punish(assignment.provider, False => self._punish(assignment.provider, True
"""


def court_mutants() -> list[Mutant]:
    """All of them."""
    return list(changed(CHANGED, tuple(FILES)))
