# pragma version 0.4.3
"""
@title Settlement
@notice Pays one job from its signed evidence when no epoch pays it (PROTOCOL §6): two executions of different owners that agree are
        credited from the client's allocation. The coordinator does it at once; anybody else announces it first. An answer shows
        that an epoch credits the execution, or that others outvoted it; anyone may send one.
@dev Nothing here holds money. An execution is paid once, also if another shows it, or its provider signs again: what is paid is noted by the
     order's nonce and the Assignment's index. At most three executions of an order are paid, each a third of its budget at most.
     Below the nonce floor of the client's newest posted voucher nothing is owed any more. The domain has this chain and this deployment's registry, so nothing that was signed for others counts.
"""

import credit_logs
import evidence
import leaves
import signatures

interface Stakes:
    def posting_key(account: address) -> address: view
    def key_valid(account: address, key: address, at: uint256) -> bool: view

interface Escrow:
    def settle(coordinator: address, debts: DynArray[Debt, JOBS_MAX], credits: DynArray[uint256, CREDITS_MAX]): nonpayable
    def settleable(client: address, coordinator: address) -> (uint256, uint256): view

interface Epochs:
    def session(coordinator: address, client: address) -> KnownSession: view
    def epoch(coordinator: address, number: uint256) -> Epoch: view

struct Debt:
    word: uint256  # client(160) | nonce(36) | amount(60)
    upTo: uint256  # of the client's session

struct KnownSession:
    sessionKey: address
    upTo: uint256
    expires: uint256

struct Epoch:
    root: bytes32
    number: uint256
    postedAt: uint256
    sumFinal: uint256
    sumHeld: uint256
    isExhausted: bool

struct SignedSession:
    sessionKey: address
    upTo: uint128
    expires: uint64
    sig: signatures.Sig  # by the client; v = 0: the session that Epochs remembers

struct Execution:
    place: uint256  # provider(160) | maxDuration(32) | acceptBy(48) | index of the Assignment within its job(16)
    terms: uint256  # pricePerHour(128) | usageMs(64) | beaconRound(64)
    blind: bytes32
    encryptedOutput: bytes32
    salt: bytes32
    commitSig: signatures.Sig

struct Countersigned:
    assignmentSig: signatures.Sig
    receiptTime: uint64
    receiptSig: signatures.Sig  # of the CommitReceipt

struct Job:
    order: evidence.Order
    orderSig: signatures.Sig
    hostClass: bytes32  # if the order names none
    classId: bytes32
    exitStatus: uint16
    outputDigest: bytes32
    executions: DynArray[Execution, EXECUTIONS_MAX]  # those that gave this result

struct Share:
    assignmentId: bytes32  # zero: answered
    provider: address
    index: uint256
    amount: uint256

struct Opening:
    jobId: bytes32
    coordinator: address
    client: address
    nonce: uint256
    upTo: uint256
    result: bytes32
    readyAt: uint256
    shares: DynArray[Share, EXECUTIONS_MAX]

event SettlementOpened:
    coordinator: indexed(address)
    client: indexed(address)
    opening: Opening

event SettlementAnswered:
    coordinator: indexed(address)
    client: indexed(address)
    jobId: bytes32
    provider: address
    amount: uint256  # that is left to settle
    opening: Opening  # as it is now

event SettlementOutvoted:
    coordinator: indexed(address)
    client: indexed(address)
    jobId: bytes32

event JobSettled:
    coordinator: indexed(address)
    client: indexed(address)
    jobId: bytes32
    amount: uint256

EXECUTIONS_MAX: constant(uint256) = 3
JOBS_MAX: constant(uint256) = 32
CREDITS_MAX: constant(uint256) = 96
DEPTH_MAX: constant(uint256) = 32
INDEX_MAX: constant(uint256) = 63
SETTLED_MAX: constant(uint256) = 3  # executions of one order
WORD_JOBS: constant(uint256) = 12  # orders in one word
WORD_BITS: constant(uint256) = 20  # of one order
MASK16: constant(uint256) = 2**16 - 1
MASK20: constant(uint256) = 2**20 - 1
MASK32: constant(uint256) = 2**32 - 1
MASK36: constant(uint256) = 2**36 - 1
MASK60: constant(uint256) = 2**60 - 1
MASK48: constant(uint256) = 2**48 - 1
MASK64: constant(uint256) = 2**64 - 1
USAGE_SLACK: constant(uint256) = 120  # seconds that usage may exceed the time from acceptBy to the CommitReceipt
RECEIPT_TYPE: constant(bytes32) = keccak256("CommitReceipt(bytes32 commitHash,uint64 time)")

STAKES: public(immutable(address))
ESCROW: public(immutable(address))
EPOCHS: public(immutable(address))
RESPONSE_TIME: public(immutable(uint256))
EVIDENCE_AGE: public(immutable(uint256))

words: HashMap[address, HashMap[address, HashMap[uint256, uint256]]]  # client -> coordinator -> nonce / 12 -> 12 times: index(6) thrice | how many(2)
is_open: public(HashMap[bytes32, bool])  # hash of an Opening
answered: HashMap[bytes32, uint256]  # assignmentId -> pay that an answer showed
answered_of: public(HashMap[address, HashMap[address, uint256]])  # coordinator -> provider -> pay that all answers showed


@deploy
def __init__(stakes: address, escrow: address, epochs: address, responseTime: uint256, evidenceAge: uint256):
    """Addresses of the deployment; times in seconds. Evidence counts as long as an announced release of an allocation takes."""
    STAKES = stakes
    ESCROW = escrow
    EPOCHS = epochs
    RESPONSE_TIME = responseTime
    EVIDENCE_AGE = evidenceAge


# ----------------------------------------------------------------------------------------------------- by the coordinator


@external
def settle_job(job: Job, session: SignedSession):
    """Credits one job at once. The coordinator's posting key sends it, so its own signatures are not asked for."""
    assert staticcall Stakes(STAKES).posting_key(job.order.coordinator) == msg.sender, "signer"
    domain: bytes32 = signatures._domain(STAKES)
    debt: Debt = empty(Debt)
    payments: uint256[EXECUTIONS_MAX] = empty(uint256[EXECUTIONS_MAX])
    debt, payments = self._settled(domain, job, self._session(domain, job.order.client, job.order.coordinator, session))
    credits: DynArray[uint256, EXECUTIONS_MAX] = []
    for payment: uint256 in payments:
        if payment != 0:
            credits.append(payment)
    extcall Escrow(ESCROW).settle(job.order.coordinator, [debt], credits)


@external
def settle_many(coordinator: address, jobs: DynArray[Job, JOBS_MAX]):
    """`settle_job` for many orders of one coordinator, under sessions that Epochs remembers."""
    assert staticcall Stakes(STAKES).posting_key(coordinator) == msg.sender, "signer"
    domain: bytes32 = signatures._domain(STAKES)
    debts: DynArray[Debt, JOBS_MAX] = []
    credits: DynArray[uint256, CREDITS_MAX] = []
    for job: Job in jobs:
        assert job.order.coordinator == coordinator, "coordinator"
        debt: Debt = empty(Debt)
        payments: uint256[EXECUTIONS_MAX] = empty(uint256[EXECUTIONS_MAX])
        debt, payments = self._settled(domain, job, staticcall Epochs(EPOCHS).session(coordinator, job.order.client))
        debts.append(debt)
        for payment: uint256 in payments:
            if payment != 0:
                credits.append(payment)
    extcall Escrow(ESCROW).settle(coordinator, debts, credits)


# -------------------------------------------------------------------------------------------------------------- by anybody


@external
def open(job: Job, session: SignedSession, countersigned: DynArray[Countersigned, EXECUTIONS_MAX]):
    """Announces a settlement. Each execution also shows its Assignment's and its CommitReceipt's signature by the coordinator."""
    opening: Opening = self._opening(signatures._domain(STAKES), job, session, countersigned)
    key: bytes32 = keccak256(abi_encode(opening))
    assert not self.is_open[key], "opened"
    self._check_owed(opening)
    self.is_open[key] = True
    log SettlementOpened(coordinator=opening.coordinator, client=opening.client, opening=opening)


@external
def answer(opening: Opening, number: uint256, share: uint256, leaf: leaves.Leaf, position: uint256, proof: DynArray[leaves.Sibling, DEPTH_MAX], entry: credit_logs.Entry):
    """
    @notice Shows that a posted epoch credits one execution: its entry in the log under the leaf of its provider. What the entry pays is
            not paid again. Anyone may send it, until the settlement is executed.
    @dev The log is not summed up on chain, so all answers for one provider may show at most what its leaf has.
    """
    self._close(opening)
    changed: Opening = opening
    epoch: Epoch = staticcall Epochs(EPOCHS).epoch(opening.coordinator, number)
    assert epoch.root != empty(bytes32), "epoch"
    assert leaf.account == opening.shares[share].provider, "proof"
    leaves._check_inclusion(epoch.root, epoch.sumFinal, epoch.sumHeld, leaves._node(leaf), position, proof)
    assignmentId: bytes32 = opening.shares[share].assignmentId
    assert assignmentId != empty(bytes32) and entry.pay > 0, "amount"
    credit_logs._check_entry(leaf.receiptsRoot, keccak256(abi_encode(assignmentId, entry.pay)), entry)
    self._count_answer(opening.coordinator, leaf, assignmentId, entry.pay)
    changed.shares[share].assignmentId = empty(bytes32)
    changed.shares[share].amount -= min(entry.pay, opening.shares[share].amount)
    left: uint256 = 0
    for each: Share in changed.shares:
        left += each.amount
    if left > 0:
        self.is_open[keccak256(abi_encode(changed))] = True
    log SettlementAnswered(coordinator=opening.coordinator, client=opening.client, jobId=opening.jobId, provider=leaf.account, amount=left, opening=changed)


@external
def outvote(opening: Opening, job: Job, session: SignedSession, countersigned: DynArray[Countersigned, EXECUTIONS_MAX]):
    """Shows that as many executions of the same job gave another result. Then nobody settles by this announcement."""
    self._close(opening)
    other: Opening = self._opening(signatures._domain(STAKES), job, session, countersigned)
    assert other.jobId == opening.jobId and other.result != opening.result, "result"
    assert len(other.shares) >= len(opening.shares), "count"
    log SettlementOutvoted(coordinator=opening.coordinator, client=opening.client, jobId=opening.jobId)


@external
def execute(opening: Opening):
    """Credits what was not answered in time, as far as the client's allocation reaches."""
    assert block.timestamp >= opening.readyAt, "early"
    self._close(opening)
    left: uint256 = self._check_owed(opening)
    word: uint256 = self.words[opening.client][opening.coordinator][opening.nonce // WORD_JOBS]
    place: uint256 = opening.nonce % WORD_JOBS * WORD_BITS
    state: uint256 = (word >> place) & MASK20
    amounts: uint256[EXECUTIONS_MAX] = empty(uint256[EXECUTIONS_MAX])
    total: uint256 = 0
    for i: uint256 in range(len(opening.shares), bound=EXECUTIONS_MAX):
        share: Share = opening.shares[i]
        if share.amount > 0 and state & 3 < SETTLED_MAX and not self._has(state, share.index):
            state = self._with(state, share.index)
            amounts[i] = share.amount
            total += share.amount
    assert total > 0, "settled"
    credits: DynArray[uint256, EXECUTIONS_MAX] = []
    paid: uint256 = 0
    for i: uint256 in range(EXECUTIONS_MAX):
        amount: uint256 = amounts[i] if total <= left else amounts[i] * left // total
        if amount > 0:
            paid += amount
            credits.append((convert(opening.shares[i].provider, uint256) << 96) | amount)
    assert paid > 0, "allocation"
    self.words[opening.client][opening.coordinator][opening.nonce // WORD_JOBS] = (word & ~(MASK20 << place)) | (state << place)
    debt: Debt = Debt(word=(convert(opening.client, uint256) << 96) | (opening.nonce << 60) | paid, upTo=opening.upTo)
    log JobSettled(coordinator=opening.coordinator, client=opening.client, jobId=opening.jobId, amount=paid)
    extcall Escrow(ESCROW).settle(opening.coordinator, [debt], credits)


@external
@view
def settled(client: address, coordinator: address, nonce: uint256) -> DynArray[uint256, SETTLED_MAX]:
    """Indices of the executions of one order that settlements paid."""
    state: uint256 = (self.words[client][coordinator][nonce // WORD_JOBS] >> (nonce % WORD_JOBS * WORD_BITS)) & MASK20
    listed: DynArray[uint256, SETTLED_MAX] = []
    for k: uint256 in range(SETTLED_MAX):
        if k < state & 3:
            listed.append((state >> (2 + 6 * k)) & INDEX_MAX)
    return listed


# ------------------------------------------------------------------------------------------------------------- evidence


@internal
@view
def _session(domain: bytes32, client: address, coordinator: address, session: SignedSession) -> KnownSession:
    """The client's session for the order's coordinator: the one shown, or the one that Epochs remembers."""
    if session.sig.v == 0:
        return staticcall Epochs(EPOCHS).session(coordinator, client)
    shown: evidence.Session = evidence.Session(client=client, sessionKey=session.sessionKey, coordinator=coordinator, upTo=session.upTo, expires=session.expires)
    signer: address = signatures._signer(signatures._digest(domain, keccak256(abi_encode(evidence.SESSION_TYPE, shown))), session.sig)
    assert signer == client, "session"
    return KnownSession(sessionKey=shown.sessionKey, upTo=min(convert(shown.upTo, uint256), MASK60), expires=convert(shown.expires, uint256))


@internal
@view
def _job_id(domain: bytes32, job: Job, session: KnownSession) -> bytes32:
    """The order's digest, once it is signed and its executions are two or more in time."""
    jobId: bytes32 = signatures._digest(domain, keccak256(abi_encode(evidence.ORDER_TYPE, job.order)))
    assert session.sessionKey != empty(address) and signatures._signer(jobId, job.orderSig) == session.sessionKey, "order"
    assert job.order.nonce < MASK36 and convert(job.order.budget, uint256) <= MASK60, "amount"
    count: uint256 = len(job.executions)
    assert count >= 2, "count"
    first: uint256 = max_value(uint256)
    for k: uint256 in range(count, bound=EXECUTIONS_MAX):
        word: uint256 = job.executions[k].place
        acceptBy: uint256 = (word >> 16) & MASK48
        first = min(first, acceptBy)
        assert acceptBy < block.timestamp, "early"
        assert acceptBy <= session.expires, "expired"
        assert block.timestamp <= acceptBy + ((word >> 64) & MASK32) + EVIDENCE_AGE, "late"
        assert job.executions[k].terms >> 128 <= convert(job.order.maxPricePerHour, uint256), "price"
        assert word & MASK16 <= INDEX_MAX, "index"
        for other: uint256 in range(k, bound=EXECUTIONS_MAX):
            assert word >> 96 != job.executions[other].place >> 96, "provider"
    assert first <= convert(job.order.expiry, uint256), "expired"
    return jobId


@internal
@view
def _check_execution(domain: bytes32, jobId: bytes32, job: Job, e: Execution, result: bytes32) -> (bytes32, bytes32, bytes32):
    """assignmentId, digest of the Assignment, digest of the Commit that its provider signed to this result."""
    provider: address = convert(e.place >> 96, address)
    acceptBy: uint256 = (e.place >> 16) & MASK48
    assignmentId: bytes32 = keccak256(abi_encode(jobId, e.place & MASK16, e.blind))
    hostClass: bytes32 = job.order.hostClass
    if hostClass == empty(bytes32):
        hostClass = job.hostClass
    assignment: bytes32 = signatures._digest(domain, keccak256(abi_encode(
        evidence.ASSIGNMENT_TYPE, assignmentId, job.order.coordinator, provider, job.order.specHash, hostClass, job.order.priceTier, e.terms >> 128,
        (e.place >> 64) & MASK32, acceptBy)))
    commit: bytes32 = signatures._digest(domain, keccak256(abi_encode(
        evidence.COMMIT_TYPE, assignment, job.classId, keccak256(abi_encode(assignment, provider, e.salt, result)), e.encryptedOutput,
        (e.terms >> 64) & MASK64, e.terms & MASK64)))
    assert provider != job.order.coordinator, "provider"
    assert staticcall Stakes(STAKES).key_valid(provider, signatures._signer(commit, e.commitSig), acceptBy), "commit"
    return assignmentId, assignment, commit


@internal
@pure
def _pay(e: Execution, budget: uint256, usageMax: uint256) -> uint256:
    """usage × price, usage counted up to maxDuration and up to `usageMax` milliseconds; at most a third of the budget."""
    usage: uint256 = min(min((e.terms >> 64) & MASK64, ((e.place >> 64) & MASK32) * 1000), usageMax)
    return min(usage * (e.terms >> 128) // 3600000, budget // SETTLED_MAX)


@internal
@pure
def _has(state: uint256, index: uint256) -> bool:
    """Whether an execution of an order was settled."""
    for k: uint256 in range(SETTLED_MAX):
        if k < state & 3 and (state >> (2 + 6 * k)) & INDEX_MAX == index:
            return True
    return False


@internal
@pure
def _with(state: uint256, index: uint256) -> uint256:
    """With one more settled execution. The caller sees to it that there is room."""
    return (state + 1) | (index << (2 + 6 * (state & 3)))


@internal
def _settled(domain: bytes32, job: Job, session: KnownSession) -> (Debt, uint256[EXECUTIONS_MAX]):
    """Notes the executions of a job as paid, and returns what its client owes and whom."""
    jobId: bytes32 = self._job_id(domain, job, session)
    result: bytes32 = keccak256(abi_encode(job.exitStatus, job.outputDigest))
    nonce: uint256 = job.order.nonce
    word: uint256 = self.words[job.order.client][job.order.coordinator][nonce // WORD_JOBS]
    place: uint256 = nonce % WORD_JOBS * WORD_BITS
    state: uint256 = (word >> place) & MASK20
    payments: uint256[EXECUTIONS_MAX] = empty(uint256[EXECUTIONS_MAX])
    total: uint256 = 0
    for i: uint256 in range(len(job.executions), bound=EXECUTIONS_MAX):
        e: Execution = job.executions[i]
        self._check_execution(domain, jobId, job, e, result)
        if state & 3 < SETTLED_MAX and not self._has(state, e.place & MASK16):
            state = self._with(state, e.place & MASK16)
            amount: uint256 = self._pay(e, convert(job.order.budget, uint256), max_value(uint256))
            payments[i] = (e.place >> 96 << 96) | amount
            total += amount
    assert total > 0, "settled"
    self.words[job.order.client][job.order.coordinator][nonce // WORD_JOBS] = (word & ~(MASK20 << place)) | (state << place)
    log JobSettled(coordinator=job.order.coordinator, client=job.order.client, jobId=jobId, amount=total)
    return Debt(word=(convert(job.order.client, uint256) << 96) | (nonce << 60) | total, upTo=session.upTo), payments


@internal
@view
def _opening(domain: bytes32, job: Job, signed: SignedSession, countersigned: DynArray[Countersigned, EXECUTIONS_MAX]) -> Opening:
    """What a job's evidence entitles its providers to, checked with the coordinator's signatures too."""
    session: KnownSession = self._session(domain, job.order.client, job.order.coordinator, signed)
    jobId: bytes32 = self._job_id(domain, job, session)
    result: bytes32 = keccak256(abi_encode(job.exitStatus, job.outputDigest))
    shares: DynArray[Share, EXECUTIONS_MAX] = []
    assert len(countersigned) == len(job.executions), "count"
    for i: uint256 in range(len(countersigned), bound=EXECUTIONS_MAX):
        e: Execution = job.executions[i]
        c: Countersigned = countersigned[i]
        acceptBy: uint256 = (e.place >> 16) & MASK48
        assignmentId: bytes32 = empty(bytes32)
        assignment: bytes32 = empty(bytes32)
        commit: bytes32 = empty(bytes32)
        assignmentId, assignment, commit = self._check_execution(domain, jobId, job, e, result)
        key: address = signatures._signer(assignment, c.assignmentSig)
        assert staticcall Stakes(STAKES).key_valid(job.order.coordinator, key, acceptBy), "assignment"
        key = signatures._signer(signatures._digest(domain, keccak256(abi_encode(RECEIPT_TYPE, commit, c.receiptTime))), c.receiptSig)
        assert staticcall Stakes(STAKES).key_valid(job.order.coordinator, key, convert(c.receiptTime, uint256)), "receipt"
        until: uint256 = convert(c.receiptTime, uint256) + USAGE_SLACK
        amount: uint256 = self._pay(e, convert(job.order.budget, uint256), (max(until, acceptBy) - acceptBy) * 1000)
        shares.append(Share(assignmentId=assignmentId, provider=convert(e.place >> 96, address), index=e.place & MASK16, amount=amount))
    return Opening(jobId=jobId, coordinator=job.order.coordinator, client=job.order.client, nonce=job.order.nonce, upTo=session.upTo,
                   result=result, readyAt=block.timestamp + RESPONSE_TIME, shares=shares)


@internal
@view
def _check_owed(opening: Opening) -> uint256:
    """What is left of the client's allocation; refused once its posted voucher covers the order."""
    left: uint256 = 0
    nonceFloor: uint256 = 0
    left, nonceFloor = staticcall Escrow(ESCROW).settleable(opening.client, opening.coordinator)
    assert opening.nonce >= nonceFloor, "covered"
    return left


@internal
def _count_answer(coordinator: address, leaf: leaves.Leaf, assignmentId: bytes32, pay: uint256):
    """What answers have shown under this leaf, each execution once; refused beyond its credits."""
    known: uint256 = self.answered[assignmentId]
    if pay <= known:
        return
    self.answered[assignmentId] = pay
    self.answered_of[coordinator][leaf.account] += pay - known
    assert self.answered_of[coordinator][leaf.account] <= (leaf.sums >> 128) + (leaf.sums & leaves.MASK128), "sums"


@internal
def _close(opening: Opening):
    key: bytes32 = keccak256(abi_encode(opening))
    assert self.is_open[key], "opened"
    self.is_open[key] = False
